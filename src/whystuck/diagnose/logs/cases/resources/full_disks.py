"""Why a write failed, where a library only says that it did: the disk or a quota is full."""

from __future__ import annotations

from collections.abc import Sequence

from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.live import PythonException
from whystuck.evidence.logs.lines import LogEvent

_FULL = "py.nospace"
_QUOTA = "uota"
# What is raised while another one is handled stands this near, with the frames between.
_NEAR = 40
_SPACE = ("df -h; df -i   # on the host that says so: space and inodes of each mount",)


def find_reason(view: LogView, items: Sequence[PythonException]) -> LogEvent | None:
    """Return the line that says why some exceptions were raised, where they do not say so."""
    if any(word in item.message for item in items for word in ("No space left", "quota")):
        return None
    for item in items:
        last = item.last_row or item.row
        for event in view.list_signatures(_FULL):
            is_own = event.artifact == item.artifact and event.rank == item.rank
            if is_own and abs(event.row - last) <= _NEAR:
                return event
    return None


def advise_space(reason: LogEvent | None) -> tuple[str, ...]:
    """Return what shows who used the space up."""
    if reason is None:
        return ()
    quota = ("quota -s; lfs quota -h -u $USER PATH   # what is used, and what is allowed",)
    return (*(quota if _QUOTA in reason.text else ()), *_SPACE)
