"""Functions of ours that stand around those of others, where neither warnings nor errors show them.

A warning is about the line so many frames above the one that warns, by its ``stacklevel``. Python
does not count frames of the import system there, which it knows by the names of their files.
"""

from __future__ import annotations

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


class StandIn:
    """A callable in the place of a builtin function, with all that can be asked of that one.

    A function would not do: it becomes a method where a job keeps it in a class. What is written
    there as ``leave = sys.exit`` would be called with one argument more.
    """

    __slots__ = ("__weakref__", "_original")

    def __init__(self, original: object) -> None:
        """Stand for a function; who calls it is told by `stand_in`."""
        self._original = original

    def __getattribute__(self, name: str) -> Any:
        """Return what the original tells, its type included: it is pickled as that one."""
        return getattr(object.__getattribute__(self, "_original"), name)

    def __repr__(self) -> str:
        """Return the text of the original."""
        return repr(object.__getattribute__(self, "_original"))


def stand_in(original: Any, call: Callable[..., object]) -> Any:
    """Return what looks like a builtin function, and is ``call`` where it is called."""
    fields = {"__slots__": (), "__call__": staticmethod(call)}
    return type(type(original).__name__, (StandIn,), fields)(original)


def replace_builtin(module: Any, name: str, call: Callable[..., object]) -> Any:
    """Have ``call`` called for a builtin function; return what stands for that one now.

    Modules such as `os` show functions of another one, by whose name they are pickled: there it is
    replaced, too.
    """
    original = getattr(module, name)
    made = stand_in(original, call)
    for place in (module, sys.modules.get(original.__module__)):
        if getattr(place, name, None) is original:
            setattr(place, name, made)
    return made


HIDDEN_FILE = leave_out.__code__.co_filename + _MARK
"""Where functions of `call_before` are, as their frames tell it."""


def call_before(original: Any, see: Callable[..., object]) -> Any:
    """Return a function for the place of another one, whose arguments are shown to ``see`` first.

    What ``see`` raises is dropped.
    """
    import functools  # not needed when the interpreter starts, and dear there

    return functools.update_wrapper(show_calls(original, see), original)


def show_calls(original: Any, see: Callable[..., object]) -> Callable[..., Any]:
    """Return a function that shows its arguments to ``see``, and then calls ``original``."""

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


def show_alone(original: Any, see: Callable[..., object], arguments: int) -> Any:
    """Return what shows its arguments to ``see``, and has ``original`` called by C after that.

    No function of ours runs meanwhile: what the original calls itself, such as a handler of the
    signal that it sends, sees the frame of the caller above its own.

    To make an object, Python calls `__new__` and then `__init__` with the same arguments. The
    latter is the original here, and the object is dropped by a function of `operator`.

    Args:
        original: A builtin function that returns None.
        see: Called with its arguments; what it raises is dropped.
        arguments: How many the original takes, 1 or 2, by their places.
    """
    import functools  # as above
    import operator

    def begin(kind: Any, *args: Any) -> object:
        try:
            see(*args)
        except Exception as error:  # the call is made without us
            let_through(error)
        return object.__new__(kind)

    hide_from_warnings(begin)
    call = type("Call", (), {"__slots__": (), "__new__": begin, "__init__": original})
    if arguments == 1:
        calls = type("Calls", (), {"__slots__": (), "__delitem__": call})()
        return functools.partial(operator.delitem, calls)
    calls = type("Calls", (), {"__slots__": (), "__setitem__": call})()
    return functools.partial(operator.setitem, calls)
