"""What programs say because a device of their host is gone, or its disk takes no more writes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import is_said
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.live import PythonException
from whystuck.evidence.logs.lines import LogEvent

LOST = "gpu_lost"
# What a program says that wants more devices than it finds, such as Lightning and torch.
LACKS_DEVICES = re.compile(
    r"You requested gpu|machine only has|No CUDA GPUs are available|no GPUs found"
    r"|invalid device ordinal|Invalid device id\b"
    r"|\bonly \d{1,3} (?:GPUs?|devices?|accelerators?) (?:is |are )?(?:available|visible|found)"
    r"|(?:GPUs?|devices?) requested,? but only \d",
    re.IGNORECASE,
)
# What a write meets after the kernel made a file system with errors read-only.
_REFUSED = re.compile(r"\[Errno 30\]|\bEROFS\b|\bRead-only file ?system", re.IGNORECASE)
_MADE_READ_ONLY = re.compile(r"\b[Rr]emounting filesystem read-only|forcing read-?only")


def _list_words(events: Sequence[LogEvent]) -> list[re.Pattern[str]]:
    """Return what programs say that meet what some lines of a machine tell."""
    words = [LACKS_DEVICES] * any(event.kind == LOST for event in events)
    is_read_only = any(_MADE_READ_ONLY.search(event.text) for event in events)
    return [*words, *([_REFUSED] * is_read_only)]


def find_raised(
    view: LogView, node: str, events: Sequence[LogEvent]
) -> tuple[PythonException, ...]:
    """Return what programs of a host raised because of what broke there."""
    words = _list_words(events)
    found = (item for item in view.exceptions if not node or item.node in {"", node})
    return tuple(item for item in found if any(one.search(item.message) for one in words))


def list_said(view: LogView, node: str, events: Sequence[LogEvent]) -> tuple[LogEvent, ...]:
    """Return lines of that host that say the same where the traceback above them was cut."""
    words = _list_words(events)
    kinds = (codes.PYTHON_EXCEPTION, codes.CONFIG_ERROR)
    said = (event for code in kinds for event in view.list_events(code, "cause"))
    found = (event for event in said if any(one.search(event.text) for one in words))
    return tuple(one for one in found if is_said(one) and (not node or one.node in {"", node}))
