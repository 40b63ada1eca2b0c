"""Hides passwords, tokens and keys in what a report quotes.

People paste reports into issues and chats, and a traceback may hold the password of a store. What
is hidden is shown as ``<secret>``, so that a reader sees that something was there. The patterns
need neither lookaround nor references, and each repetition is bounded or ends at the first letter
that does not fit: the time grows with the text and no faster.

Hashes of commits, ids of NCCL communicators and numbers of tokens are not secrets, and stay.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from whystuck.evidence.finding import Report

SECRET = "<secret>"  # noqa: S105 - what stands in place of one

# Most texts hold none of these, and need no closer look.
_HINT = re.compile(
    r"pass|pwd|secret|token|key|sig|auth|bearer|cookie|://|hook|login|-u |--user"
    r"|hf_|api_org_|gh[pousr]_|github_pat|gl[a-z]{1,3}t-|a[ks]ia|xox|xapp|sk-|wandb_v1|nvapi-"
    r"|aiza|ya29|npm_|pypi-|dapi|ltai|eyj",
    re.IGNORECASE,
)
# Tokens that their issuers made to be found: a fixed beginning, then random letters.
_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{30,}|api_org_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}"
    r"|github_pat_[A-Za-z0-9_]{30,}|gl(?:pat|rt|dt|cbt)-[A-Za-z0-9_\-]{20,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|xox[abeoprs]-[A-Za-z0-9\-]{10,}|xapp-[A-Za-z0-9\-]{10,}"
    r"|sk-[A-Za-z0-9_\-]{20,}|(?:wandb_v1_|nvapi-)[A-Za-z0-9_\-]{20,}|AIza[A-Za-z0-9_\-]{35}"
    r"|ya29\.[A-Za-z0-9_\-.]{20,}|npm_[A-Za-z0-9]{36}|pypi-[A-Za-z0-9_\-]{50,}|dapi[0-9a-f]{32}"
    r"|LTAI[A-Za-z0-9]{16,}|eyJ[A-Za-z0-9_\-]{8,}\.eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*)"
)
# The whole key, or what is left of it in a text that was cut.
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----(?:[^-]|-[^-])*"
    r"(?:-----END [A-Z ]{0,20}PRIVATE KEY-----)?"
)
_LOGIN = re.compile(r"(://[^/@\s:\"']{0,256}:)[^/@\s\"']{1,256}@")
# Addresses that let anybody who knows them write to a channel.
_HOOK = re.compile(
    r"((?:hooks\.slack\.com/(?:services|workflows)|discord(?:app)?\.com/api/webhooks"
    r"|open\.(?:feishu\.cn|larksuite\.com)/open-apis/bot/v2/hook|webhook\.office\.com/webhookb2)/)"
    r"[^\s\"'<>]+"
)
_QUERY = re.compile(
    r"([?&](?:sig|sign|signature|token|access_token|key|api_key|apikey|auth|password|secret"
    r"|x-amz-(?:signature|credential|security-token)|x-goog-signature|awsaccesskeyid)=)"
    r"[^&\s\"'<>#]+",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"(\b(?:(?:proxy-)?authorization|x-(?:api-key|auth-token)|(?:set-)?cookie)\\?[\"']?"
    r"\s{0,4}[:=]\s{0,4}\\?[\"']?(?:(?:bearer|basic|token|digest)\s{1,4})?)"
    r"(?:<secret>|[^\s\"'\\,<]+)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(\bbearer\s{1,4})[A-Za-z0-9_\-.~+/=]{16,}", re.IGNORECASE)
_NETRC = re.compile(r"(\blogin \S{1,128} password )\S+")
_WANDB = re.compile(r"(\bwandb login (?:--\S{1,32} ){0,4})[0-9a-f]{40}\b")
_SSHPASS = re.compile(r"(\bsshpass -p ?)\S+")
_USER_OPTION = re.compile(r"((?: -u| --user)[ =][\"']?[A-Za-z][^\s:\"'/]{0,63}:)[^\s\"'@]{1,256}")
_REPLACED = (
    (_TOKEN, SECRET),
    (_PRIVATE_KEY, SECRET),
    (_LOGIN, rf"\g<1>{SECRET}@"),
    *(
        (pattern, rf"\g<1>{SECRET}")
        for pattern in (
            _HOOK, _QUERY, _HEADER, _BEARER, _NETRC, _WANDB, _SSHPASS, _USER_OPTION,
        )
    ),
)  # fmt: skip

# `name=value`, `"name": "value"`, `--name value`: the end of the name, and what leads to the value.
_NAMED = re.compile(
    r"(passw(?:or)?d|passphrase|pwd|secret|token"
    r"|(?:api|access|account|private|auth|secret|encryption|sharedaccess)[ _\-.]?key"
    r"|sharedaccesssignature)(?: provided)?(\\?[\"']?\s{0,4}(?:=>|:=|[:=])\s{0,4}|\s{1,4})"
    r"(?:b?(\\?[\"']))?",
    re.IGNORECASE,
)
_VALUE = re.compile(r"[^\s\"'\\,;)}\]&<>(\[]+")
_NAME_BEFORE = re.compile(r"[A-Za-z0-9_\-.]{0,64}$")
_LOOKBACK = 64
# What stands where a secret would be, and is none.
_NO_SECRET = re.compile(
    r"(?:none|null|nil|true|false|str|string|optional|required|missing|unset|\*+|x{3,}|\.+"
    r"|\$\{?\w+\}?|%\(?\w*\)?s?|\{\w*\}?)$",
    re.IGNORECASE,
)
# The tokens of language models are everywhere in logs; these words make one a secret.
_SECRET_TOKEN = re.compile(
    r"(?:^|[_\-.])(?:auth|access|refresh|api|session|security|bearer|hf|hub|huggingface|github|gh|gitlab"
    r"|wandb|slack|bot|deploy|secret|aws|csrf|vault|registry|jupyter|login)[_\-.]?$",
    re.IGNORECASE,
)
_TOKEN_LETTERS = re.compile(r"[A-Za-z0-9_\-.+/=~]{8,}")
_MIN_RANDOM = 16


def hide_secrets(text: str) -> str:
    """Return a text with ``<secret>`` in place of passwords, tokens and keys.

    Args:
        text: One or more lines, e.g. of a log.

    Returns:
        The text; the same object when nothing in it looks like a secret.
    """
    if not _HINT.search(text):
        return text
    shown = text
    for pattern, stand_in in _REPLACED:
        shown = pattern.sub(stand_in, shown)
    return _hide_named(shown)


def hide_report_secrets(report: Report) -> Report:
    """Return a report that holds no secret known by its form, save in stacks and op tables."""
    return msgspec.structs.replace(
        report,
        findings=_hide(report.findings),
        gaps=_hide(report.gaps),
        context=_hide(report.context),
        logs=_hide(report.logs),
        executed=_hide(report.executed),
        job=_hide(report.job),
    )


def _hide(value: Any) -> Any:  # noqa: ANN401 - any value of a report in, the same shape out
    if isinstance(value, str):
        # An enumeration is a text too, and its words are ours.
        return hide_secrets(value) if type(value) is str else value
    if isinstance(value, dict):
        return {_hide(key): _hide(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_hide(item) for item in value)
    if isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **{name: _hide(one) for name, one in fields.items()})
    return value


def _hide_named(text: str) -> str:
    parts: list[str] = []
    done = at = 0
    while match := _NAMED.search(text, at):
        at = match.end()
        end = _find_end(text, match)
        if end > at:
            parts += (text[done:at], SECRET)
            done = at = end
    return "".join((*parts, text[done:])) if parts else text


def _find_end(text: str, match: re.Match[str]) -> int:
    """Return where the value ends that a name leads to; its start when it is no secret."""
    start, quote = match.end(), match[3]
    before = _NAME_BEFORE.search(text[max(0, match.start() - _LOOKBACK) : match.start()])
    name = before[0] if before else ""
    if match[2].isspace() and not (name.startswith("--") or match[1].startswith("--")):
        return start
    if quote:
        closing = text.find(quote, start)
        end = closing if closing >= 0 else len(text)
    else:
        value = _VALUE.match(text, start)
        end = value.end() if value else start
        # A call or an item: the line of a program, which tells where the secret comes from.
        if text[end : end + 1] in ("(", "["):
            return start
    found = text[start:end]
    if not found or _NO_SECRET.match(found) or found == SECRET:
        return start
    return end if _is_secret(match[1].lower(), name, text[: match.start()], found) else start


def _is_secret(word: str, name: str, before: str, value: str) -> bool:
    if word == "pwd":
        return before.endswith(("_", ";"))  # else it is the folder of a shell
    if word != "token":
        return True
    if not _TOKEN_LETTERS.fullmatch(value) or value.isdecimal():
        return False
    is_random = len(value) >= _MIN_RANDOM and any(char.isdigit() for char in value)
    return bool(_SECRET_TOKEN.search(name)) or (is_random and any(map(str.isalpha, value)))
