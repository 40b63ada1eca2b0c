"""Hides passwords, tokens and keys in any text, in command lines and in environments.

People paste reports into issues and chats, and a traceback may hold the password of a store. What
is hidden is shown as ``<secret>``, so that a reader sees that something was there. The time grows
with the text and no faster.

Hashes of commits, ids of NCCL communicators and numbers of tokens are not secrets, and stay.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from whystuck.safe_text.named_secrets import MIN_RANDOM, hide_named, is_random, is_stand_in
from whystuck.safe_text.secret_forms import HINT, SECRET, STAND_INS, TOKEN

__all__ = [
    "SECRET",
    "hide_arguments",
    "hide_environment",
    "hide_secrets",
    "is_secret_name",
]

_URL = re.compile(r"://([^\s\"'<>`\\|]{1,4096})")
_ENCODED_LOGIN = re.compile(
    r"(%3a%2f%2f[^\s%:/@]{0,64}%3a)(?:(?!%40)[^\s&\"'@/]){1,256}(?=%40)", re.IGNORECASE
)
_HEAD_END = re.compile(r"[/?#]")
_VERSIONED = re.compile(r"(?:git|hg|svn|bzr)\+\w{1,5}$")
_USER = re.compile(r"[\w.\-+%;]*$")
_PORT = re.compile(r"(?:[0-9]{1,5}|[{$<%][^@]{0,64})(?![^,/?#])")
_KEY_END = re.compile(r"-----END [A-Z ]{0,20}PRIVATE KEY")
_KEY_CHARS = "".join(map(chr, (*range(48, 58), *range(65, 91), *range(97, 123)))) + "+/= \t\r\n\\"
_KEY_LOOKBACK = 4096

_NAME = re.compile(r"-{0,2}[A-Za-z_][\w.\-]{0,100}$")
_BETWEEN = "', '"
# Stands for a quote inside an argument: private use, in no real one.
_QUOTE = "\ue000"
_PUBLIC_NAMES: Final = frozenset({"PWD", "OLDPWD", "SSH_AUTH_SOCK", "XAUTHORITY"})
_SECRET_NAME = re.compile(
    r"TOKEN$|SECRET|PASSW|PASSPHRASE|CREDENTIAL|PRIVATE|API_?KEY|ACCESS_?KEY|AUTH|COOKIE|DSN|JWT"
    r"|TOKEN(?!S|IZ|_(?:ID|TYPE|LEN|COUNT|EMBED))|(?:^|_)(?:KEY|PAT|PWD|PASS)$",
    re.IGNORECASE,
)


def hide_secrets(text: str) -> str:
    """Return a text with ``<secret>`` in place of passwords, tokens and keys.

    Args:
        text: One or more lines, e.g. of a log.

    Returns:
        The text; the same object when nothing in it looks like a secret.
    """
    if not HINT.search(text):
        return TOKEN.sub(SECRET, text)
    shown = text
    if "://" in text:
        shown = _URL.sub(_hide_login, shown)
    if "PRIVATE KEY" in text:
        shown = _hide_key_ends(shown)
    shown = _ENCODED_LOGIN.sub(rf"\g<1>{SECRET}", shown)
    for pattern, stand_in in STAND_INS:
        shown = pattern.sub(stand_in, shown)
    shown = hide_named(shown)
    return text if shown == text else shown


def hide_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command without the secrets in them.

    A secret may be an item of its own, behind the option that names it.
    """
    shown = [_hide_argument(item).replace("'", _QUOTE) for item in arguments]
    # As a shell or a log would write them: that is the form the patterns know.
    parts = hide_secrets(f"'{_BETWEEN.join(shown)}'")[1:-1].split(_BETWEEN)
    if len(parts) == len(shown):
        shown = parts
    return [item.replace(_QUOTE, "'") for item in shown]


def _hide_argument(item: str) -> str:
    """Hide in an argument; a value behind a ``=`` goes on to the end, blanks and quotes too."""
    name, given, value = item.partition("=")
    if given and value and _NAME.match(name):
        quoted = f"{name}='{value.replace(chr(39), _QUOTE)}'"
        if hide_secrets(quoted) == f"{name}='{SECRET}'":
            return f"{name}={SECRET}"
    return hide_secrets(item)


def hide_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables by name, without values whose name or form says that they are secret."""
    return {
        name: SECRET if is_secret_name(name) and value else hide_secrets(value)
        for name, value in sorted(environment.items())
    }


def is_secret_name(name: str) -> bool:
    """Return whether a variable of this name holds a secret, as ``HF_TOKEN`` does."""
    return name not in _PUBLIC_NAMES and _SECRET_NAME.search(name) is not None


def drop_logins(text: str, stand_in: str = "") -> str:
    """Return a text in which no URL has a user or a password.

    Args:
        text: Any text.
        stand_in: What to put in place of both, and of the ``@`` behind them.
    """

    def drop(match: re.Match[str]) -> str:
        end = _find_login(match)
        return f"://{stand_in}{match[1][end + 1 :]}" if end >= 0 else match[0]

    return _URL.sub(drop, text) if "://" in text else text


def _hide_login(match: re.Match[str]) -> str:
    end = _find_login(match)
    user, colon, password = match[1][: max(end, 0)].partition(":")
    if is_random(user):
        user = SECRET
    elif end < 0 or not password or is_stand_in(password):
        return match[0]
    return f"://{user}{colon}{SECRET if colon else ''}{match[1][end:]}"


def _find_login(match: re.Match[str]) -> int:
    """Return where the user and password of a URL end, at an ``@``; -1 where there are none.

    A password may hold any of the letters that end one.
    """
    rest = match[1]
    head = _HEAD_END.split(rest, maxsplit=1)[0]
    user, colon, password = head.partition(":")
    at = rest.rfind("@", 0, len(head))
    if at < 0:
        # `user:pa/ss@host`, which is no host and port.
        is_place = not _USER.match(user) or not password or _PORT.match(password)
        return rest.rfind("@") if colon and not is_place else -1
    if not colon or "@" in user:
        return at
    before = match.string[max(0, match.start() - 16) : match.start()]
    if _VERSIONED.search(before):
        return at  # another `@` is that of a version
    query = rest.find("?")
    return rest.rfind("@", 0, query if query >= 0 else len(rest))


def _hide_key_ends(text: str) -> str:
    """Hide what comes before the end of a private key whose beginning was cut off."""
    parts: list[str] = []
    done = 0
    for match in _KEY_END.finditer(text):
        before = text[max(done, match.start() - _KEY_LOOKBACK) : match.start()]
        start = match.start() - len(before) + len(before.rstrip(_KEY_CHARS))
        if match.start() - start >= MIN_RANDOM:
            parts += (text[done:start], SECRET, " ")
            done = match.start()
    return "".join((*parts, text[done:])) if parts else text
