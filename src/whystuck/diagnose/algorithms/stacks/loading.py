"""Where a worker of a data loader is: in its dataset, and in the wait for a lock there."""

from __future__ import annotations

import re
from collections.abc import Sequence

from whystuck.diagnose.algorithms.stacks.frames import is_in, is_user_frame, name_function
from whystuck.evidence.ops.collectives import Frame

_WORKER_LOOP = "torch/utils/data/_utils/worker.py"
_FETCH = "torch/utils/data/_utils/fetch.py"
_CUT = "<cut>"
# Python code that takes a lock: of a logger, of threads and of processes.
_LOCK_FILES = ("logging/__init__.py", "threading.py", "multiprocessing/synchronize.py")
_TAKES = {"acquire", "__enter__"}
# What waits for a mutex in C. Waits for a condition are none: another thread ends them.
_MUTEX = re.compile(
    r"_{0,3}(?:GI_+)?(?:pthread_mutex_(?:lock|timedlock)|pthread_rwlock_(?:rd|wr)lock"
    r"|lll_lock_wait(?:_private)?|lll_mutex_lock_optimized|pthread_mutex_lock_full)\b"
)


def is_in_dataset(frames: Sequence[Frame]) -> bool:
    """Return whether a worker is in what its loop fetches, by frames that may be cut.

    People leave out the frames between the loop and their dataset, or the loop; an idle worker has
    none of the user's in its loop. Processes of the user's own have neither loop nor fetch.
    """
    loop = next((at for at, frame in enumerate(frames) if is_in(frame, _WORKER_LOOP)), None)
    if any(is_in(frame, _FETCH) for frame in frames):
        return loop is not None or any(frame.function == _CUT for frame in frames)
    inside = frames[:loop] if loop is not None else ()
    return any(is_user_frame(frame) and frame.file.endswith(".py") for frame in inside)


def find_lock_taken(frames: Sequence[Frame]) -> str:
    """Return the lock that the inner frames of a thread wait for, empty where they wait for none.

    It is named by who takes it: the first frame below the calls that only lock.
    """
    first = next(iter(frames), None)
    if first is None:
        return ""
    if is_in(first, *_LOCK_FILES):
        return f"{first.file}:{first.line}" if name_function(first) in _TAKES else ""
    found = [at for at, frame in enumerate(frames) if _MUTEX.match(frame.function)]
    if not found or any(frame.file.endswith(".py") for frame in frames[: found[-1]]):
        return ""
    owner = next(iter(frames[found[-1] + 1 :]), first)
    return f"{owner.function} ({owner.file})"
