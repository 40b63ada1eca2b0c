"""Why a write failed, where a library only says that it did: the disk or a quota is full.

And which rank wrote, where its traceback does not say so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.live import PythonException
from whystuck.evidence.logs.lines import LogEvent

_FULL = "py.nospace"
_BEGUN, _ENDED = "progress.file_begun", ("progress.file_done", "progress.saved", "progress.took")
_QUOTA = "uota"
# What is raised while another one is handled stands this near, with the frames between.
_NEAR = 40
_SPACE = ("df -h; df -i   # on the host that says so: space and inodes of each mount",)
# What libraries say of a write that went wrong, without why.
_WRITE = re.compile(
    r"PytorchStreamWriter failed|\bfile write failed|unexpected pos \d{1,18} vs \d"
    r"|\b\d{1,18} requested and \d{1,18} written|\b[Ff]ailed (?:to write|writing)\b"
    r"|\b[Ww]rite (?:error|failed)\b|[Ee]rror (?:while )?writing\b"
)
_PATH = re.compile(r"(?<![\w./:-])/[\w./@+=-]{1,300}")


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
    found = (_find_full(view, item) for item in items if is_failed_write(item))
    return next((one for one in found if one is not None), None)


def is_failed_write(item: PythonException) -> bool:
    """Tell whether an exception, or what it was raised for, is of a write that went wrong."""
    return any(_WRITE.search(one.message) for one in (item, *item.origins))


def find_writer(view: LogView, item: PythonException) -> int:
    """Return the rank that said which file it writes, above its write that failed; -1 for none.

    Where several ranks write files there, it may be either.
    """
    begun = list(_list_begun(view, item)) if is_failed_write(item) else []
    ranks = {event.rank for event in begun}
    return ranks.pop() if len(ranks) == 1 else -1


def _list_begun(view: LogView, item: PythonException) -> Iterator[LogEvent]:
    """Yield what tells of files above an exception whose writes have not ended before it."""
    done = [one for one in view.list_signatures(*_ENDED) if one.artifact == item.artifact]
    for event in view.list_signatures(_BEGUN):
        is_near = event.artifact == item.artifact and 0 < item.row - event.row <= _NEAR
        ends = any(one.rank == event.rank and event.row < one.row < item.row for one in done)
        if is_near and not ends:
            yield event


def _find_full(view: LogView, item: PythonException) -> LogEvent | None:
    """Return the row of `df` that shows that there is no room where an exception wrote to."""
    texts = (item.message, *(one.groups.get("file") or "" for one in _list_begun(view, item)))
    paths = [match[0] for text in texts for match in _PATH.finditer(text)]
    mounts = {event.groups["mount"]: event for event in view.list_signatures("table.disk")}
    for path in paths:
        over = [one for one in mounts if path.startswith(f"{one.rstrip('/')}/")]
        nearest = mounts[max(over, key=len)] if over else None
        if nearest is not None and nearest.groups["full"]:
            return nearest
    return None


def describe_reason(reason: LogEvent) -> str:
    """Describe what a line says of the room there is."""
    if reason.signature == "table.disk":
        return f"no room is left on {reason.groups['mount']}"
    return " ".join(reason.text.split())


def advise_space(reason: LogEvent | None) -> tuple[str, ...]:
    """Return what shows who used the space up."""
    if reason is None:
        return ()
    quota = ("quota -s; lfs quota -h -u $USER PATH   # what is used, and what is allowed",)
    return (*(quota if _QUOTA in reason.text else ()), *_SPACE)
