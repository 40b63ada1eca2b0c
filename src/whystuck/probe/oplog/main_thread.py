"""Doing something in the main thread, between two of its instructions.

Kernels of the dispatcher must not be replaced while a thread is on its way through one, and torch
goes on through its list of hooks after one of them, which must be there then.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading

from ..switch import Later

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Callable

_OWN_DIR = os.path.dirname(os.path.abspath(__file__)) + os.sep
_WAIT_S = 1.0
_IS_BUSY = Later("the main thread is busy; it is done when it comes back")
# Python calls them without a reference of its own.
_CALLS: list[Any] = []
# Of the last task: a second one is not put behind one that is still to come.
_WAITING: list[threading.Event] = []


def run_in_main_thread(task: Callable[[], str]) -> str:
    """Have the main thread run a task, and return its text, or one that says that it is to come."""
    if any(not is_done.is_set() for is_done in _WAITING):
        return _IS_BUSY
    results: list[str] = []
    is_done = threading.Event()
    _WAITING[:] = [is_done]

    def run(_nothing: int | None) -> int:
        # When the thread was in C++, its next instruction may be the first one of a hook of ours.
        again = _is_inside(sys._getframe(1)) and ctypes.pythonapi.Py_AddPendingCall(call, None) == 0
        if again:
            return 0
        try:
            results.append(task())
        except Exception as error:  # raised here, it would come up in the job
            results.append(f"{type(error).__name__}: {error}")
        is_done.set()
        return 0

    call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(run)
    _CALLS.append(call)
    if ctypes.pythonapi.Py_AddPendingCall(call, None) != 0:
        _WAITING.clear()
        return _IS_BUSY
    if not is_done.wait(_WAIT_S):
        return _IS_BUSY
    # Not the call itself: it may still be on its way back.
    del _CALLS[:-1]
    return results[0]


def _is_inside(frame: FrameType | None) -> bool:
    """Tell whether a frame or one of its callers is a hook or a kernel of ours."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(_OWN_DIR):
            return True
        frame = frame.f_back
    return False
