"""Errors of signal handlers that come while an op is issued: they wait until it is.

Without us, Python runs no handler while torch issues an op, such as those of a backward on the
host: what a handler raises comes when the backward is over. With a kernel of ours in between, a
handler runs in it. An error that went up from there would leave the op out, and end the backward in
its middle: peers would wait for this rank, and DDP refuses the next step.
"""

from __future__ import annotations

import dis
import sys
from collections import deque

from ..calling.interrupts import find_handler
from ..calling.main_call import MainCall
from .main_thread import is_inside
from .uncompiled import leave_uncompiled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_AFTER_YIELD_FROM = 2


class HeldErrors:
    """Raises errors in the main thread, as soon as it is in no code of the op log."""

    def __init__(self) -> None:
        self._errors: deque[BaseException] = deque()
        self._call = MainCall(self._raise, raises=True)

    def keep(self, error: BaseException) -> None:
        """Raise an error later; one that is our own is dropped."""
        if isinstance(error, Exception) and find_handler(error) is None:
            return
        self._errors.append(error)
        if not self._call.queue():
            raise self._errors.pop()

    def _raise(self) -> None:
        if is_inside(sys._getframe(2)):
            self._call.queue()
            return
        error = self._errors.popleft()
        if self._errors:
            self._call.queue()
        raise error.with_traceback(find_handler(error))


HELD = HeldErrors()


def begin_unchecked(function: Any) -> None:
    """Have Python look for signals after the first instruction of a function, not before it.

    What comes between is nothing that a ``try`` could hold. Before Python 3.11 there is no such
    instruction, and no look before a function that begins with ``try``. A compiler of functions,
    which does not know such a beginning, passes by it.
    """
    code = function.__code__
    for one in dis.get_instructions(code):
        if one.opname == "RESUME":
            raw = bytearray(code.co_code)
            # What follows a `yield from`: there the look was made by the generator.
            raw[one.offset + 1] = _AFTER_YIELD_FROM
            function.__code__ = code.replace(co_code=bytes(raw))
            break
    leave_uncompiled(function)
