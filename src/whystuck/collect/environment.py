"""The environment of a process, with what looks secret taken out."""

from __future__ import annotations

import re
from pathlib import Path

SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|PRIVATE|API_?KEY|ACCESS_?KEY|AUTH|COOKIE|DSN"
    r"|(?:^|_)(?:KEY|PAT|PWD)$",
    re.IGNORECASE,
)
_SECRET_IN_URL = re.compile(r"(?<=://)[^/\s@]+@")
_PUBLIC_NAMES = frozenset({"PWD", "OLDPWD", "SSH_AUTH_SOCK", "XAUTHORITY"})
HIDDEN = "(redacted)"


def read_environment(pid: int) -> dict[str, str]:
    """Return the environment a process was started with; raises OSError when not allowed."""
    raw = Path(f"/proc/{pid}/environ").read_bytes()
    pairs = (item.partition("=") for item in raw.decode(errors="replace").split("\0") if item)
    return {name: value for name, _, value in pairs}


def redact_environment(environment: dict[str, str]) -> dict[str, str]:
    """Hide values whose name says that they are secret, and user info in URLs."""
    return {
        name: HIDDEN
        if name not in _PUBLIC_NAMES and SECRET_NAME.search(name)
        else _SECRET_IN_URL.sub(f"{HIDDEN}@", value)
        for name, value in sorted(environment.items())
    }
