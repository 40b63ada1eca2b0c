"""Whose child processes are shown: the command that lists them, or a sentence above them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from whystuck.parse.logs.blocks.stacks.seen import StackSeen

_PARENT = re.compile(
    r"\bpgrep (?:-[a-zA-Z]{1,8} ){0,3}-P[ =]?(\d{2,10})(?![\w.])"
    r"|(?<!\S)--ppid[ =](\d{2,10})(?![\w.])"
    r"|\bpstree (?:-[a-zA-Z]{1,8} ){0,3}(\d{2,10})(?![\w.])"
    r"|/proc/(\d{2,10})/task/\S{1,20}/children\b"
    r"|\b(?:workers?|children|child processes|subprocesses)\b[^\d\n#:]{0,30}?"
    r"\b(?:of|parent|ppid)\b[ =:(]{0,3}(?:pid|process|rank \d{1,7},? \(?pid)?[ =:]{0,2}(\d{3,10})\b"
    r"|^\s{0,8}Parent Process (\d{2,10}):",
    re.IGNORECASE,
)
# What people write behind the command of a process: `python fit.py (forked from 18802)`. Options of
# the command itself may be called so, too, and have a dash before them.
_OWN_PARENT = re.compile(
    r"(?<![\w-])(?:(?:forked|spawned|started) (?:from|by|off)|(?:child|worker|subprocess) of|ppid"
    r"|parent)(?: (?:process|pid|is)){0,2}[ =:(]{1,3}(\d{2,10})(?![\w.])",
    re.IGNORECASE,
)
_MOST_COMMAND = 2000
_LOADER, _FETCH = "torch/utils/data/dataloader.py", "torch/utils/data/_utils/fetch.py"


def find_parent(text: str) -> int:
    """Return the process whose children come next, 0 where a line tells of none."""
    found = _PARENT.search(text)
    return int(next(one for one in found.groups() if one)) if found else 0


def find_own_parent(command: str) -> int:
    """Return the process that what stands behind a command calls its parent, 0 where none does."""
    found = _OWN_PARENT.search(command[:_MOST_COMMAND])
    return int(found[1]) if found else 0


def is_loading_in_worker(seen: StackSeen) -> bool:
    """Tell whether what is left of a stack begins in the fetch of a data loader.

    In a process that loads its data itself, the frames of its loader stand around that.
    """
    main = next((one for one in seen.threads if one.is_main), None)
    files = [frame.file.replace("\\", "/") for frame in main.frames if frame.file] if main else []
    return bool(files) and files[-1].endswith(_FETCH)


def waits_for_worker(seen: StackSeen) -> bool:
    """Tell whether a process waits in its data loader, which has processes of its own."""
    main = next((one for one in seen.threads if one.is_main), None)
    return main is not None and any(
        frame.file.replace("\\", "/").endswith(_LOADER)
        and frame.function.rpartition(".")[2] in {"_try_get_data", "_get_data"}
        for frame in main.frames
    )


def mark_children(stacks: Sequence[StackSeen]) -> None:
    """Tell which processes are workers of data loaders, by who has started them and what they do.

    A launcher has children, too, which are ranks: only a process that waits in its data loader has
    workers.
    """
    loaders = {seen.pid for seen in stacks if seen.pid and waits_for_worker(seen)}
    for seen in stacks:
        is_child = seen.parent in loaders and seen.pid not in {0, seen.parent}
        if is_child or (loaders and is_loading_in_worker(seen)):
            seen.is_worker = True
