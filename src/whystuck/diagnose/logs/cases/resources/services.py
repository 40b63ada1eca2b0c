"""What services that all ranks use answer when they refuse: it is the fault of no rank."""

from __future__ import annotations

import re

_BUSY = re.compile(
    r"SlowDown\b|[Rr]educe your request rate|Throttl(?:ing|ed)|TooManyRequests|Too Many Requests"
    r"|[Rr]ate ?[Ll]imit ?[Ee]xceeded|RequestLimitExceeded|ServerBusy|\b503 Service Unavailable"
    r"|\bServiceUnavailable\b|\b(?:HTTP|status|code|Error)[ :=(]{0,3}(?:429|503)\b"
)
_EXPIRED = re.compile(
    r"Expired ?Token|\b[Tt]oken (?:included in the request )?(?:has |is |was )?expired"
    r"|[Cc]redentials? (?:have |has |are |is )?expired|TokenRefreshRequired"
    r"|SSO session .{1,80}expired"
)
# What Ray writes behind a line that others have, too.
REPEATED = re.compile(r"\s?\[repeated (\d{1,9})x across (?:all nodes|(?:the )?cluster)\].*$")


def find_refusal(text: str) -> str:
    """Tell how a service refused what an exception tells of; empty where it is none."""
    if _BUSY.search(text):
        return "busy"
    return "expired" if _EXPIRED.search(text) else ""


def advise_on_refusal(kind: str) -> tuple[str, ...]:
    """Return what helps against a refusal."""
    if kind == "busy":
        return (
            "let fewer ranks ask at once: read once and broadcast, or stagger the readers",
            "spread the data over prefixes or hosts; retry more often, with longer pauses",
        )
    return ("use credentials that renew themselves, such as a role, rather than a fixed token",)
