"""The forms of secrets that a pattern alone can tell: tokens, keys, headers, options of programs.

Every repetition is possessive, bounded, or ends at the first letter that does not fit, so that the
time grows with the text and no faster.
"""

from __future__ import annotations

import re
from typing import Final

SECRET: Final = "<secret>"  # noqa: S105 - what stands in place of one

_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    # Hubs of code, models and packages.
    r"hf_[A-Za-z0-9]{30,}+|api_org_[A-Za-z0-9]{30,}+|gh[pousr]_[A-Za-z0-9]{30,}+"
    r"|github_pat_[A-Za-z0-9_]{30,}+|gl(?:pat|rt|dt|cbt|ptt|ft|imt|agent|soat|oas)-[A-Za-z0-9_\-.]{20,}+"
    r"|npm_[A-Za-z0-9]{30,}+|pypi-[A-Za-z0-9_\-]{40,}+|dckr_(?:pat|oat)_[A-Za-z0-9_\-]{20,}+"
    # Models behind an API, experiment trackers.
    r"|sk-(?=[a-z\-]{0,60}[0-9A-Z])[A-Za-z0-9_\-]{20,}+|gsk_[A-Za-z0-9]{30,}+|xai-[A-Za-z0-9]{40,}+"
    r"|r8_[A-Za-z0-9]{30,}+|pcsk_[A-Za-z0-9_]{30,}+|tgp_v1_[A-Za-z0-9_\-]{30,}+"
    r"|(?:wandb_v1_|nvapi-)[A-Za-z0-9_\-]{20,}+|(?:sess|pplx)-[A-Za-z0-9]{40,}+|rpa_[A-Za-z0-9]{40,}+"
    r"|lsv2_(?:pt|sk)_[0-9a-f]{32}_[0-9a-f]{10}|fw_(?=[A-Za-z]{0,30}[0-9])[A-Za-z0-9]{22,}+"
    r"|rubygems_[0-9a-f]{48}|AKCp[A-Za-z0-9]{60,}+|sq[pua]_[0-9a-f]{40}|ATBB[A-Za-z0-9]{28,}+"
    # Clouds.
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|LTAI[A-Za-z0-9]{16,}+|AKID[A-Za-z0-9]{28,}+"
    r"|AIza[A-Za-z0-9_\-]{35}|ya29\.[A-Za-z0-9_\-.]{20,}+|GOCSPX-[A-Za-z0-9_\-]{20,}+"
    r"|1//0[A-Za-z0-9_\-]{20,}+|dapi[0-9a-f]{32}|do[opr]_v1_[0-9a-f]{40,}+|tskey-[a-z]{2,12}-[A-Za-z0-9\-]{16,}+"
    r"|hv[sbr]\.[A-Za-z0-9_\-]{20,}+|s\.(?=[A-Za-z]{0,23}[0-9])[A-Za-z0-9]{24}(?![A-Za-z0-9])"
    r"|GOOG1E[A-Z0-9]{55}|[A-Za-z0-9_\-.]{3}[0-9]Q~[A-Za-z0-9_\-.~]{31,34}|pul-[0-9a-f]{40}"
    r"|[A-Za-z0-9]{52}JQQJ9[A-Za-z0-9]{24,}+|[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_\-]{60,}+"
    r"|dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9_\-.]{40,}+|fm[12][a-z]?_[A-Za-z0-9+/=_\-]{60,}+"
    # Credentials of nodes and clusters, keys in base64 (no certificates), hashes of passwords.
    r"|MUNGE:[A-Za-z0-9+/=]{40,}+|base64url\.bearer\.authorization\.k8s\.io\.[A-Za-z0-9_\-]{20,}+"
    r"|LS0tLS1CRUdJTi(?!BDRVJU)[A-Za-z0-9+/=]{20,}+|\$(?:[156y]|2[aby]|argon2[id]{1,2})\$[^$\s]{1,64}\$[./A-Za-z0-9$]{20,}+"
    # Chats, mail, money, tickets, monitoring.
    r"|xox[abceoprs]-[A-Za-z0-9\-]{10,}+|xapp-[A-Za-z0-9\-]{10,}+|(?:bot)?[0-9]{8,10}:[A-Za-z0-9_\-]{35}"
    r"|SG\.[A-Za-z0-9_\-]{16,}\.[A-Za-z0-9_\-]{16,}+|[sr]k_(?:live|test)_[A-Za-z0-9]{16,}+|whsec_[A-Za-z0-9+/=]{20,}+"
    r"|(?:SK|AC)[0-9a-f]{32}(?![0-9a-f])|key-[0-9a-f]{32}(?![0-9a-f])|[0-9a-f]{32}-us[0-9]{1,2}(?![0-9])"
    r"|shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}|lin_api_[A-Za-z0-9]{30,}+|PMAK-[0-9a-f]{24}-[0-9a-f]{30,}+"
    r"|ATATT3[A-Za-z0-9_\-=]{40,}+|NRAK-[A-Z0-9]{27}|glc_[A-Za-z0-9+/=]{30,}+|glsa_[A-Za-z0-9]{30,}_[0-9a-f]{8}"
    r"|sntrys_[A-Za-z0-9+/=_]{30,}+|sntryu_[0-9a-f]{64}|ntn_[A-Za-z0-9]{40,}+|ops_eyJ[A-Za-z0-9_\-+/=]{100,}+"
    r"|AGE-SECRET-KEY-1[A-Z0-9]{20,}+|b3BlbnNzaC1rZXktdjE[A-Za-z0-9+/=]*+"
    # JSON web tokens.
    r"|eyJ[A-Za-z0-9_\-]{8,}+\.eyJ[A-Za-z0-9_\-]{8,}+(?:\.[A-Za-z0-9_\-]*+){0,4}"
    r")"
)  # fmt: skip
# The whole key, or what is left of it in a text that was cut.
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY(?: BLOCK)?-----(?:[^-]|-(?!----))*+"
    r"(?:-----END [A-Z ]{0,20}PRIVATE KEY(?: BLOCK)?-----)?"
    r"|---- BEGIN SSH2 [A-Z ]{0,20}PRIVATE KEY ----(?:[^-]|-(?!---))*+"
)
_PUTTY_KEY = re.compile(r"(Private-Lines: [0-9]{1,3}\s{1,4})[A-Za-z0-9+/=\s]++")
# Addresses that let anybody who knows them write to a channel.
_HOOK = re.compile(
    r"((?:hooks\.slack\.com/(?:services|workflows|triggers)|discord(?:app)?\.com/api/webhooks"
    r"|open\.(?:feishu\.cn|larksuite\.com)/open-apis/bot/v2/hook|webhook\.office\.com/webhookb2)/)"
    r"[^\s\"'<>]++"
)
_QUERY = re.compile(
    r"((?:[?&#]|&amp;|%3f|%26)(?:sig|sign|signature|sas|jwt|key|[a-z_\-]{0,20}api_?key"
    r"|(?:[a-z_\-]{0,20}[_\-])?token|auth|authkey|(?:client_)?secret|pass(?:word|wd)?|pwd|policy|key-pair-id"
    r"|x-(?:amz|goog|oss)-(?:signature|credential|security-token)|googleaccessid|awsaccesskeyid"
    r"|ossaccesskeyid)(?:=|%3d))"
    r"(?!<secret>)(?:(?!%26)[^&\s\"'<>#`])++",
    re.IGNORECASE,
)
# To the end of the line, or of the quotes around it: several values, each of them a secret.
_HEADER_LINE = re.compile(
    r"(\bauthorization\\{0,3}[\"']?[ \t]{0,4}[:=,][ \t]{0,4}b?(?P<quote>\\{0,3}[\"'])?"
    r"(?:digest|aws4-hmac-sha256|oauth|hawk|negotiate|ntlm|signature)[ \t]{1,4})"
    r"(?:(?!\\[nr])[^\n\r'])++",
    re.IGNORECASE,
)
_COOKIE = re.compile(
    r"((?:\b(?:set-)?cookie\\{0,3}[\"']?[ \t]{0,4}[:=,][ \t]{0,4}\[?b?\\{0,3}[\"']?))"
    r"(?=[\w.\-%]{1,128}=[^\s=(\[])(?:(?!\\[nr\"'])[^\n\r\"'])++",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"(\bauthorization\\{0,3}[\"']?[ \t]{0,4}(?:[:=]|,[ \t]{0,4}(?=b?\\{0,3}[\"']))"
    r"[ \t]{0,4}b?\\{0,3}[\"']?"
    r"(?:(?:bearer|basic|token|apikey|api-key|key|bot|splunk|sso-key)(?:[ \t]{1,4}|%20|\+)"
    r"|(?=[A-Za-z_\-]{0,64}[0-9])))"
    r"(?!<secret>)[^\s\"'\\,<{(\[$]++",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(\bbearer[ \t]{1,4})[A-Za-z0-9_\-.~+/=]{16,}+", re.IGNORECASE)

# What leads from an option to its value, in a shell and in a list of arguments.
_TO_VALUE = r"(?:[ \t]{1,4}|=|\\{0,3}[\"'],[ \t]{0,4})b?\\{0,3}[\"']?"
_VALUE = r"(?!<secret>)(?:(?<=')[^'\\\n]++|(?<=\")[^\"\\\n]++|[^\s\"'\\]++)"
_BEFORE_VALUES = (
    rf"\bsshpass\\{{0,3}}[\"']?,?[ \t]{{1,4}}\\{{0,3}}[\"']?-p(?:{_TO_VALUE})?",
    r"\b(?:mysql|mariadb)[a-z\-]{0,16}[^\n|;]{0,300}?[\s\"']-p(?=[^\s\"',])",
    rf"\bredis-cli\b[^\n|;]{{0,300}}?[\s\"'](?:-a|--pass){_TO_VALUE}",
    (
        r"\b(?:docker|podman|nerdctl|helm registry|oras|az|buildah|skopeo|crane) login\b"
        rf"[^\n|;]{{0,300}}?[\s\"']-p{_TO_VALUE}"
    ),
    rf"\bzip[ \t][^\n|;]{{0,100}}?-P{_TO_VALUE}",
    rf"\bssh-keygen\b[^\n|;]{{0,100}}?[\s\"']-[NP]{_TO_VALUE}",
    r"-pass(?:in|out)?[ \t]{1,4}pass:",
    (
        rf"(?:[\s\"']-u|--(?:proxy-)?user){_TO_VALUE}[A-Za-z][^\s:\"'/]{{0,63}}:"
        r"(?![0-9]{1,6}(?![^\s\"']))"
    ),
    rf"[\s\"'](?:-b|--cookie){_TO_VALUE}[\w.\-]{{1,40}}=(?=[A-Za-z0-9_\-.%+/=]{{16}})",
    (
        r"\blogin(?:\s|\\n){1,8}\S{1,128}(?:\s|\\n){1,8}(?:account(?:\s|\\n){1,8}\S{1,64}(?:\s|\\n){1,8})?"
        r"password(?:\s|\\n){1,8}"
    ),
    rf"\bmongo(?:sh|dump|restore|export|import)?\b[^\n|;]{{0,300}}?[\s\"']-p{_TO_VALUE}",
    rf"\bldap[a-z]{{3,8}}\b[^\n|;]{{0,300}}?[\s\"']-w{_TO_VALUE}",
    (
        rf"\b(?:smbclient|rpcclient|net rpc)\b[^\n|;]{{0,200}}?[\s\"'](?:-U|--user){_TO_VALUE}"
        r"[\w.\\/\-]{1,64}%"
    ),
    rf"\b(?:ipmitool|sqlcmd|bcp)\b[^\n|;]{{0,300}}?[\s\"']-P{_TO_VALUE}",
    r"\b7z[ar]?\b[^\n|;]{0,200}?[\s\"']-p(?=[^\s\"',])",
    rf"\blftp\b[^\n|;]{{0,200}}?[\s\"']-u{_TO_VALUE}[^\s,\"']{{1,64}},",
    (
        r"\bhtpasswd[ \t][^\n|;]{0,100}?-[a-zA-Z]{0,4}b[a-zA-Z]{0,4}[ \t]{1,4}"
        r"\S{1,128}[ \t]{1,4}\S{1,64}[ \t]{1,4}"
    ),
    # `auth=('me', 'X')`, `HTTPBasicAuth('me', 'X')`
    r"\b(?:auth=|(?:Basic|Digest|Proxy|HTTP[A-Z][a-z]{3,8})Auth)\(\s{0,4}[\"'][^\"'\n]{0,128}[\"'],\s{0,4}[\"']",
    r"\bjdbc:oracle:[a-z]{1,8}:[^\s/@]{1,64}/(?=[^\s@]{1,128}@)",
    r"\bbasic auth(?:entication)?:? [^\s:]{1,64}:(?=\S)",
    r":_auth=",
)
_OPTIONS = (
    *(re.compile(rf"({before}){_VALUE}") for before in _BEFORE_VALUES),
    re.compile(
        r"(\becho[ \t]{1,4})[^\n|]{1,300}?"
        r"(?=[ \t]{0,4}\|[^\n|]{0,200}(?:--password-stdin|\bsudo -S|\bchpasswd|passwd --stdin))"
    ),
    re.compile(r"(\.dockerconfigjson\\{0,3}[\"']?[ \t]{0,4}:[ \t]{0,4}[\"']?)[A-Za-z0-9+/=]{20,}+"),
    re.compile(
        r"(\"username\\?\"[ \t]{0,4}:[ \t]{0,4}\\?\"[^\"\n]{1,64}\",[ \t]{0,4}\\?\"key\\?\""
        r"[ \t]{0,4}:[ \t]{0,4}\\?\")[0-9a-f]{32}\b"
    ),
    re.compile(r"(://[^\s/]{1,200}/t/)(?=[^\s/]{0,64}[0-9])[A-Za-z0-9_\-]{30,}+(?=/)"),
    re.compile(r"([?&]code=)(?=[^&\s]{0,64}[0-9])[A-Za-z0-9_\-/+=.%]{32,}+"),
    # ODBC; a name in braces is that of a variable.
    re.compile(r"(;[ \t]{0,2}pwd=\{)(?![\w.\[\]()'\"]{0,64}\})[^}\n]{1,256}", re.IGNORECASE),
    re.compile(
        r"((?:password|passwd|secret|token|api_?key)%22%3a(?:%20|\+)?%22)(?:(?!%22)[^\s&]){1,256}",
        re.IGNORECASE,
    ),
    # A row of a table.
    re.compile(
        r"([|│][ \t]{0,20}[\w.\-]{0,40}(?:passw(?:or)?d|secret|api_?key)[ \t]{0,40}[|│][ \t]{0,40})"
        r"(?=[^\s|│]{0,64}[0-9])[^\s|│]{6,128}(?=[ \t]{0,64}[|│])",
        re.IGNORECASE,
    ),
    re.compile(r"(\bwandb\b(?=[^\n]{0,200}?\b(?:key|login|netrc)\b)[^\n]{0,300}?)\b[0-9a-f]{40}\b"),
    re.compile(r"(\blogin\([^\n()]{0,40}?\b(?:key|token)=[\"'])[^\s\"']{8,}+"),
    # The access key of a store: upper case and digits, twenty of them.
    re.compile(
        r"(\bkey\\?[\"']?[ \t]{0,2}[:=][ \t]{0,2}\\?[\"']?)(?=[A-Z]{0,19}[0-9])[A-Z0-9]{20}\b"
    ),
)

STAND_INS: Final = (
    (_TOKEN, SECRET),
    (_PRIVATE_KEY, SECRET),
    *(
        (pattern, rf"\g<1>{SECRET}")
        for pattern in (
            _PUTTY_KEY, _HOOK, _QUERY, _HEADER_LINE, _COOKIE, _HEADER, _BEARER, *_OPTIONS,
        )
    ),
)  # fmt: skip
"""Patterns, and what to put in place of what they match, in this order."""

# Most texts hold none of these, and need no closer look. Beginnings of tokens are searched anyway.
HINT: Final = re.compile(
    r"pass|pwd|dockerconfig|echo |%22%3a|[?&]code=| -[pPwU]|'-[pPwU]|\"-[pPwU]|secret|token|key|sig|auth|bearer|cookie|://|%3a%2f|hook|login|private|mysql|mariadb"
    r"|jdbc|zip|ssh-keygen|redis-cli|jwt|[_\-]pat\b| -[ub] |'-[ub]'|\"-[ub]\"|--user|--proxy-user",
    re.IGNORECASE,
)
TOKEN: Final = _TOKEN
