"""Hides values that their names make secret: `password=x`, `"api_key": "x"`, `--hub_token x`."""

from __future__ import annotations

import re

from whystuck.safe_text.secret_forms import SECRET

# `name=value`, `"name": "value"`, `--name value`, `'--name', 'value'`: the word that makes a name
# one of a secret, the end of the name, what leads to the value, and the quote before it.
_NAMED = re.compile(
    r"(?P<word>access[_\-]?key[_\-]?id|passw(?:or)?d|pass(?:phrase|code)|(?<![A-Za-z])pass"
    r"|pwd|secret|token|jwt"
    r"|(?:api|access|account|private|auth|secret|encryption|signing|subscription|shared[_\-]?access)"
    r"[ _\-.]?key"
    r"|(?:wandb|comet|neptune|openai|anthropic|hf|ngc|master|license)[_\-.]key"
    r"|sharedaccesssignature|sshpass(?==)|(?<![A-Za-z])auth|[_\-]pat)"
    r"(?:[_\-]?(?:prod(?:uction)?|dev|test|staging|live|main|new|old|value|b64|base64|v?[0-9]{1,2}))?"
    r"(?:(?P<assign>(?:\\{0,3}[\"']|&quot;|&#3[49];)?\]?[ \t]{0,4}(?:=>|:=|[:=])[ \t]{0,4}"
    r"(?:provided:[ \t]|[|>][+\-]?[ \t]{0,4}(?:\n|\\n)[ \t]{0,20})?)"
    r"|(?P<pair>\\{0,3}[\"']?,?(?:\s|\\n){1,20}\\{0,3}[\"']?value\\{0,3}[\"']?"
    r"[ \t]{0,4}[:=][ \t]{0,4})"
    r"|(?P<list>\\{0,3}[\"'][ \t]{0,4},\s{0,20}(?=b?\\{0,3}[\"']))"
    r"|(?P<xml>>)"
    r"|(?P<space>(?: provided:?| is:?| was| for \S{1,64} is)?[ \t]{1,4}))"
    r"(?:[bBrRuU]{0,2}(?P<quote>\\{0,3}[\"'`]|&quot;|&#3[49];))?",
    re.IGNORECASE,
)
_ENDS = r"[,;)}\]&<>](?=[\s\"'\\`,;:.)}\]&<>]|$|[\w.\- ]{1,40}=)"
_VALUE = re.compile(
    rf"(?![<(\[{{])(?:[^\s\"'`\\,;)}}\]&<>]|\\(?![nrt\"'\\u])|(?!{_ENDS})[,;)}}\]&<>]){{1,256}}"
)
_REST = re.compile(r"[^\s\"'`\\,;)}\]&<>]*+")
_NAME_BEFORE = re.compile(r"[A-Za-z0-9_\-.]{0,64}$")
_LOOKBACK = 64
# What stands where a secret would be, and is none.
_STAND_IN = re.compile(
    r"(?:none|null|nil|true|false|str|string|int|bool|bytes|any|object|secretstr|optional|required"
    r"|missing|unset|empty|invalid|expired|unknown|found|disabled|enabled|failed|failure"
    r"|denied|property|attribute|method|function|basic|bearer|not|no|is|was|has|yes|and|or|for|must|should|cannot|auto|hidden|redacted"
    r"|[|>][+\-]?|\*+|x{3,}|\.+|…|-+|<[^>]*>?|\$\{?\w+\}?|%\(?\w*\)?s?"
    r"|(?:bearer |basic )?\{[\w.\[\]'\"]*\}?)[.:,;!]?$",
    re.IGNORECASE,
)
# A name in a program, or a stand-in, tells where the secret comes from: `self.token`, `YOUR_KEY`.
_CODE = re.compile(
    r"(?:(?:self|cls|args|cfg|conf|config|opts?|options|settings|kwargs|os|env|environ|params"
    r"|hparams|context)\.[A-Za-z_.]+|(?:[A-Za-z]+[_.])*(?:password|passwd|token|secret|key|pass|passphrase)"
    r"|(?=[A-Za-z_]+[_.](?:password|passwd|token|secret|key|pass|passphrase))[A-Za-z_.]+)[.:,;]?$",
    re.IGNORECASE,
)
_NEXT_OPTION = re.compile(r"--?[A-Za-z][\w.\-]*$")
_COUNT = re.compile(r"[0-9]+(?:/[0-9]+)?$")
_CALL = re.compile(r"[A-Za-z_][\w.]{0,64}[(\[](?:[\w\"'.)\]]|$)")
_PLACE = re.compile(r"(?:~|\.{1,2})?/(?:[\w.\-]{1,30}/)+[\w.\-]{1,30}$")
# The tokens of language models are everywhere in logs; these words make one a secret.
_SECRET_TOKEN = re.compile(
    r"(?:auth|access|refresh|api|session|security|bearer|hf|hub|huggingface|github|gh|gitlab|gl|wandb"
    r"|slack|bot|deploy|secret|aws|csrf|xsrf|vault|registry|jupyter|login|private|personal|neptune|comet|mlflow"
    r"|npm|pypi|oauth2?|ngc|azure|databricks|telegram|discord|sentry|upload|admin|service|identity|git"
    r"|replicate|dagshub|consul|nomad|kube|sas|id)[_\-.]?$",
    re.IGNORECASE,
)
_MODEL_TOKEN = re.compile(
    r"(?<![A-Za-z])(?:bos|eos|pad|cls|sep|unk|mask|next|last|first|image|audio|video|special|max|min|num"
    r"|n|per|stop|start|end|begin|prompt|new|input|output|target|decoder|draft|cur|current|added)[_\-.]?$",
    re.IGNORECASE,
)
_VARIABLE = re.compile(r"(?<![A-Z0-9_])[0-9_]*[A-Z][A-Z0-9]*_[A-Z0-9_]*$")
_TOKEN_LETTERS = re.compile(r"[A-Za-z0-9_\-.+/=~%]{6,}$")
MIN_RANDOM = 16
_MIN_OPTION = 6
_MAX_JUDGED = 256


def hide_named(text: str) -> str:
    """Return a text with ``<secret>`` in place of values behind the names of secrets."""
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
    start = match.end()
    before = _NAME_BEFORE.search(text[max(0, match.start() - _LOOKBACK) : match.start()])
    name = before[0] if before else ""
    quote = match["quote"]
    if quote:
        end = _find_quote(text, start, quote)
    else:
        value = _VALUE.match(text, start)
        end = value.end() if value else start
        # A call or an item: the line of a program, which tells where the secret comes from.
        is_shell = _VARIABLE.search(name + match["word"]) and match["assign"] == "="
        if _CALL.match(text, start) and not is_shell:
            return start
    found = text[start:end]
    if (
        not found
        or SECRET in found
        or not _can_be(text, match, name)
        or not _is_secret(match, name, found)
    ):
        return start
    if end - start >= _MAX_JUDGED and not quote and (rest := _REST.match(text, end)):
        return rest.end()
    return end


def _find_quote(text: str, start: int, quote: str) -> int:
    """Return where a quoted value ends: at the same quote, or with the line."""
    if len(quote) == 1:
        closing = re.compile(rf"(?:[^{quote}\\\n]|\\.)*+").match(text, start)
        return closing.end() if closing else start
    end = text.find(quote, start)
    line_end = text.find("\n", start)
    ends = [one for one in (end, line_end) if one >= 0]
    return min(ends) if ends else len(text)


def _can_be(text: str, match: re.Match[str], name: str) -> bool:
    """Return whether what lies between a name and a value makes one of the other."""
    is_option = name.startswith("-") or match["word"].startswith("-")
    whole = name + match["word"]
    if match["list"]:
        opens = text[max(0, match.start() - len(name) - 4) : match.start() - len(name)]
        is_variable = _VARIABLE.search(whole) is not None
        return (
            is_option
            or (is_variable and "(" in opens)
            or bool(re.search(r"\(b?[\"']$", opens) and "-" in name)
        )
    if match["xml"]:
        opens = text[match.start() - len(name) - 1 : match.start() - len(name)]
        return opens == "<" and f"<{whole}>" != SECRET
    return True


def _is_secret(match: re.Match[str], name: str, value: str) -> bool:
    bare = value[:-1] if value[-1] in ".,:;" else value
    if is_stand_in(value) or (_CODE.match(value) and (not match["quote"] or value.isupper())):
        return False
    if match["list"] and _NEXT_OPTION.match(value):
        return False
    if match["space"]:
        return _is_told(match, name, bare)
    word = match["word"].lower()
    if word == "pass":
        is_given = match["assign"] == "=" or match["list"] or match["quote"]
        return bool(is_given) and not _COUNT.match(value)
    if word == "token":
        return _is_token(name, bare, is_option=name.startswith("-"))
    return _is_of_word(word, name, bare)


def _is_of_word(word: str, name: str, value: str) -> bool:
    if word == "pwd":
        return name.endswith(("_", "-")) or not value.startswith(("/", "~", "$", "."))
    if word in ("auth", "jwt"):
        return is_random(value)
    if word.endswith("id"):
        return any(map(str.isdigit, value))
    return not (word.endswith("key") and _PLACE.match(value))


def _is_told(match: re.Match[str], name: str, value: str) -> bool:
    """Judge a value behind a blank: sure behind an option, else where it looks like a secret."""
    word, led = match["word"].lower(), match["space"].strip(" \t:")
    if name.startswith("-") and (name.startswith("--") or len(name) > 1):
        if value.startswith("-"):
            return False
        return word != "token" or _is_token(name, value, is_option=True)
    has_digit = any(map(str.isdigit, value))
    if led.endswith("is") and word.startswith("pass"):
        return has_digit and len(value) >= 4  # noqa: PLR2004 - no number of days
    if _VARIABLE.search(name + match["word"]) or name.count(".") > 1 or name.endswith("_"):
        return is_random(value)
    if led == "provided":
        return has_digit
    is_mixed = any(map(str.isupper, value)) and any(map(str.islower, value))
    is_likely = is_mixed or bool(match["quote"]) or word.endswith("key")
    return is_likely and is_random(value) and "/" not in value


def _is_token(name: str, value: str, *, is_option: bool) -> bool:
    if value.isdecimal() or _MODEL_TOKEN.search(name.lstrip("-")):
        return False
    if _SECRET_TOKEN.search(name) or (_VARIABLE.search(f"{name}T") and "_" in name):
        return True
    if is_option and len(value) >= _MIN_OPTION and any(map(str.isdigit, value)):
        return True
    return is_random(value)


def is_stand_in(value: str) -> bool:
    """Return whether a value only stands where a secret would be: `None`, `$TOKEN`, `***`."""
    return _STAND_IN.match(value) is not None


def is_random(value: str) -> bool:
    """Return whether a value looks like one that a machine made up."""
    return (
        len(value) >= MIN_RANDOM
        and any(map(str.isdigit, value))
        and any(map(str.isalpha, value))
        and _TOKEN_LETTERS.match(value) is not None
    )
