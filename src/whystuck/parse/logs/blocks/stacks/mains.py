"""What the threads of one process tell of it: which is the main one, and where stacks were cut."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from whystuck.evidence.live import ThreadStack
from whystuck.parse.logs.blocks.stacks.seen import CUT

# What the interpreter calls by itself: nothing is below it. The last ones are its exit handlers.
_LAST = (
    *("<module>", "_bootstrap", "_shutdown", "_run_module_as_main", "_bootstrap_inner"),
    *("_exit_function", "_python_exit", "_run_exitfuncs"),
)


def mark_main(threads: list[ThreadStack]) -> list[ThreadStack]:
    """Find the main thread, and say where outer frames are missing."""
    if threads and not any(one.is_main for one in threads):
        # faulthandler prints the main thread last.
        modules = [i for i, one in enumerate(threads) if one.frames[-1].function == "<module>"]
        at = modules[-1] if modules else len(threads) - 1
        threads[at] = replace(threads[at], is_main=True)
    return [
        one
        if one.frames[-1].function.rpartition(".")[2] in _LAST
        else replace(one, frames=(*one.frames, CUT))
        for one in threads
    ]


def is_worker(threads: Iterable[ThreadStack], command: str) -> bool:
    """Tell whether a process, by its threads and its command, is one of a data loader."""
    if "pt_data_worker" in command:
        return True
    main = next((one for one in threads if one.is_main), None)
    return main is not None and any(
        frame.function.endswith("_worker_loop") and frame.file.endswith("_utils/worker.py")
        for frame in main.frames
    )
