"""Which rank a process is that writes a file: the one that said it would, where only one is seen.

A program prints `rank0 saving full state dict to /ckpt/step-12000.pt`, and nothing more. Of the
processes whose stacks somebody shows, one is inside of a save, and the others wait.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from whystuck.evidence.logs.lines import UNKNOWN_RANK, LogEvent
from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.stacks.seen import StackSeen

_BEGUN, _ENDED = "progress.file_begun", ("progress.file_done", "progress.saved", "progress.took")
# At the start of a line, behind a time: who else is named may be spoken of.
_SPEAKER = re.compile(
    r"^[\s\[(<]{0,4}(?:[\d:.,/ T+-]{5,40}Z?[\])]?[ ,:|-]{0,4})?[\s\[(<]{0,4}"
    r"(?:(?:DEBUG|INFO|WARN|WARNING)\b[\]:| -]{0,4})?[\[(<]{0,2}"
    r"(?:(?:global[ _]?)?rank|(?<=[\[(<])r)[ _=:#-]{0,2}(\d{1,7})(?![\w.])",
    re.IGNORECASE,
)
# What writes a file, and not what gathers tensors for it with others.
_WRITERS = ("torch/serialization.py", "safetensors/", "numpy/lib/npyio")
_WAITS = "torch/distributed/"


def find_saver(events: Iterable[LogEvent], stacks: Iterable[StackSeen]) -> tuple[int, int]:
    """Return the process and the rank of who writes the file of which a log tells.

    Args:
        events: What is known of the log.
        stacks: The stacks in it.

    Returns:
        Twice -1 where more than one process is in a save or may be, or where more than one rank, or
        none, has said that it saves a file and not that it was done.
    """
    ranks = {rank for rank in _list_open(events) if rank >= 0}
    mains = {seen.pid: seen for seen in stacks if seen.pid > 0 and not seen.is_worker}
    savers = [pid for pid, seen in mains.items() if _is_writing(seen)]
    others = [seen for pid, seen in mains.items() if pid not in savers]
    is_alone = len(savers) == 1 and others and all(_is_waiting(seen) for seen in others)
    return (savers[0], ranks.pop()) if is_alone and len(ranks) == 1 else (-1, -1)


def _list_open(events: Iterable[LogEvent]) -> Iterator[int]:
    """Yield who said that a file is being saved, and not that it was saved since."""
    told = [one for one in events if one.signature == _BEGUN or one.signature in _ENDED]
    ended = max((one.row for one in told if one.signature in _ENDED), default=0)
    for one in told:
        if one.signature == _BEGUN and one.row > ended:
            yield _find_speaker(one)


def _find_speaker(event: LogEvent) -> int:
    if event.rank != UNKNOWN_RANK:
        return event.rank
    said = _SPEAKER.match(event.text)
    return int(said[1]) if said is not None and int(said[1]) <= MAX_RANK else UNKNOWN_RANK


def _list_files(seen: StackSeen) -> list[str]:
    main = next((thread for thread in seen.threads if thread.is_main), None)
    thread = main or next(iter(seen.threads), None)
    return [frame.file.replace("\\", "/") for frame in thread.frames] if thread else []


def _is_writing(seen: StackSeen) -> bool:
    files = _list_files(seen)
    is_writing = any(part in file for file in files for part in _WRITERS)
    return is_writing and not any(_WAITS in file for file in files)


def _is_waiting(seen: StackSeen) -> bool:
    return any(_WAITS in file for file in _list_files(seen))
