"""Letting the interpreter call something in the main thread, between two of its instructions."""

from __future__ import annotations

import ctypes
import os

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from typing import Callable

_add = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(
    ("Py_AddPendingCall", ctypes.pythonapi)
)
_IS_TRUE = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p).value
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep


class MainCall:
    """Something to call there; it is queued from any thread, and once at a time.

    C's API has pending calls for that, functions that take a pointer, return 0, and may raise.
    ``PyObject_IsTrue`` is one for an object that is false. A callback of ctypes would be another
    one, but what a signal handler of the job raises in the midst of it would be printed and lost.
    """

    def __init__(self, function: Callable[[], object], *, raises: bool = False) -> None:
        """Take what to call; what it raises itself is kept from the job, unless it ``raises``."""
        self._function = function
        self._raises = raises
        self._is_queued = False
        # The interpreter may call it when nobody else knows it any more.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    def queue(self) -> bool:
        """Have it called soon; False when too many others wait for that."""
        if self._is_queued:
            return True
        self._is_queued = True
        if _add(_IS_TRUE, id(self)) == 0:
            return True  # and it may have been called already
        self._is_queued = False
        return False

    def __bool__(self) -> bool:
        """Call it; always false, which is 0 in C."""
        self._is_queued = False
        try:
            self._function()
        except Exception as error:
            if self._raises or not _is_raised_here(error):
                raise  # a handler of the job ran in the midst of it
        return False


def _is_raised_here(error: Exception) -> bool:
    trace, file = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        trace = trace.tb_next
    return os.path.abspath(file).startswith(_OURS)
