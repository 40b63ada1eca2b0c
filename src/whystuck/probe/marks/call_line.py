"""The line by which torch calls a module: tracebacks name the one that they name without marks.

torch asks a module what it is to be called by, and calls that in another line than the module's own
function. The entry of that line comes into a traceback when our function has been left. It is
exchanged at the next place where the interpreter calls something of ours in the main thread, which
comes before a call by which a handler could look at it. Errors of other threads keep the line.
"""

from __future__ import annotations

import dis
import sys
from types import TracebackType

from ..calling.main_call import MainCall
from ..threads import is_main

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType
    from typing import Any

_METHOD = "_call_impl"
_CALL = "CALL_FUNCTION_EX"
# An error is forgotten when it has met so many frames that still run.
_MAX_WAITING = 64
_with_traceback = BaseException.with_traceback


class CallLine:
    """Exchanges the entries of errors that went through a call of ours."""

    def __init__(self) -> None:
        self._waiting: list[tuple[BaseException, FrameType]] = []
        self._places: dict[CodeType, tuple[int, int] | None] = {}
        self._call = MainCall(self._look)

    def mend(self, error: BaseException, caller: FrameType) -> None:
        """Have the entry of a caller, which an error leaves next, name the other line."""
        # Before Python 3.11, our own function stays in the traceback.
        if sys.version_info < (3, 11) or not is_main():
            return
        if len(self._waiting) < _MAX_WAITING:
            self._waiting.append((error, caller))
            if not self._call.queue():
                self._waiting.pop()

    def _look(self) -> None:
        running = set()
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            running.add(frame)
            frame = frame.f_back
        over = [one for one in self._waiting if one[1] not in running]
        self._waiting = [one for one in self._waiting if one[1] in running]
        if self._waiting:
            self._call.queue()
        for error, caller in over:
            place = self._find_place(caller.f_code)
            if place is not None:
                _exchange(error, caller, *place)

    def _find_place(self, code: CodeType) -> tuple[int, int] | None:
        if code not in self._places:
            self._places[code] = find_call(code)
        return self._places[code]


def find_call(code: CodeType) -> tuple[int, int] | None:
    """Return the instruction and the line by which torch calls a module's own function."""
    is_loaded = False
    for one in dis.get_instructions(code):
        is_loaded = is_loaded or one.argval == _METHOD
        if is_loaded and one.opname == _CALL:
            positions: Any = getattr(one, "positions", None)
            line = getattr(positions, "lineno", None)
            return None if line is None else (one.offset, line)
    return None


def _exchange(error: BaseException, caller: FrameType, instruction: int, line: int) -> None:
    before: TracebackType | None = None
    entry = error.__traceback__
    while entry is not None:
        if entry.tb_frame is caller:
            other = TracebackType(entry.tb_next, caller, instruction, line)
            if before is None:
                # Not set as an attribute: some classes of errors let nobody do that.
                _with_traceback(error, other)
            else:
                before.tb_next = other
            return
        before, entry = entry, entry.tb_next
