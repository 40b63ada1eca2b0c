"""Doing something in the main thread, between two of its instructions.

Kernels of the dispatcher must not be replaced while a thread is on its way through one, and torch
goes on through its list of hooks after one of them, which must be there then.
"""

from __future__ import annotations

import os
import sys
import threading

from ..calling.main_call import MainCall
from ..switch import Later

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Callable

_OWN_DIR = os.path.dirname(os.path.abspath(__file__)) + os.sep
_WAIT_S = 1.0
_IS_BUSY = Later("the main thread is busy; it is done when it comes back")
# Of the last task: a second one is not put behind one that is still to come.
_WAITING: list[threading.Event] = []


def run_in_main_thread(task: Callable[[], str]) -> str:
    """Have the main thread run a task, and return its text, or one that says that it is to come."""
    if any(not is_done.is_set() for is_done in _WAITING):
        return _IS_BUSY
    results: list[str] = []
    is_done = threading.Event()
    _WAITING[:] = [is_done]

    def run() -> None:
        # When the thread was in C++, its next instruction may be the first one of a hook of ours.
        if is_inside(sys._getframe(1)) and call.queue():
            return
        try:
            results.append(task())
        except Exception as error:  # told where the task was wanted
            results.append(f"{type(error).__name__}: {error}")
        is_done.set()

    call = MainCall(run)
    if not call.queue():
        _WAITING.clear()
        return _IS_BUSY
    return results[0] if is_done.wait(_WAIT_S) else _IS_BUSY


def is_inside(frame: FrameType | None) -> bool:
    """Tell whether a frame or one of its callers is a hook or a kernel of ours."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(_OWN_DIR):
            return True
        frame = frame.f_back
    return False
