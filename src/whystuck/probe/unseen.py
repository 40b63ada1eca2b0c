"""Functions of ours that stand around those of others, where neither warnings nor errors show them.

A warning is about the line so many frames above the one that warns, by its ``stacklevel``. Python
does not count frames of the import system there, which it knows by the names of their files.
"""

from __future__ import annotations

import functools
import sys

from .interrupts import let_through

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from types import FunctionType
    from typing import Any, Callable

# It holds the two words that `warnings` and `logging` look for.
_MARK = " (not counted: importlib_bootstrap)"
_with_traceback = BaseException.with_traceback


def hide_from_warnings(function: object) -> None:
    """Have what warns below a function name the line that it would name without it.

    To be called before the compiler is told of the function's code, which is another one then.
    """
    known: FunctionType = function  # type: ignore[assignment]
    code = known.__code__
    known.__code__ = code.replace(co_filename=code.co_filename + _MARK)


def leave_out(error: BaseException) -> None:
    """Take the function that calls this, and passes an error on, out of its traceback.

    It must do so by a plain ``raise`` afterwards. Before Python 3.11, that keeps the traceback as
    it was, and the function stays.
    """
    trace = error.__traceback__
    if trace is not None and trace.tb_frame is sys._getframe(1):
        # Not set as an attribute: some classes of errors let nobody do that.
        _with_traceback(error, trace.tb_next)


HIDDEN_FILE = leave_out.__code__.co_filename + _MARK
"""Where functions of `call_before` are, as their frames tell it."""


def call_before(original: Any, see: Callable[..., object]) -> Any:
    """Return a function for the place of another one, whose arguments are shown to ``see`` first.

    What ``see`` raises is dropped.
    """

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            see(*args, **kwargs)
        except Exception as error:  # the call is made without us
            let_through(error)
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            leave_out(error)
            raise

    hide_from_warnings(call)
    return call


def rename(function: Any, module: str, name: str) -> None:
    """Give a function the name under which it is found: it can then be pickled, for a child."""
    function.__module__, function.__name__, function.__qualname__ = module, name, name
