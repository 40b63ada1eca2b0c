"""What recording lines costs on this machine, measured once when it starts."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Protocol

    class Recording(Protocol):
        """What can be measured."""

        def start(self) -> str:
            """Begin; return why not, or an empty text."""

        def stop(self) -> None:
            """End."""


_ROUNDS = 2000
_TIMES = 3
# A file name that is the user's, and one that is not.
_LINES = compile(f"for i in range({_ROUNDS}):\n    x = i\n", "measured.py", "exec")
_CALLS = compile(f"for i in range({_ROUNDS}):\n    f()\n", "<measured>", "exec")
_LINES_EACH = 2


def measure_costs(recorder: Recording) -> tuple[float, float]:
    """Return the thread time in ns of a line of the user's and of a call of a library.

    Args:
        recorder: One that is not started, whose file nobody reads; it is stopped again.
    """
    before = _time(_LINES), _time(_CALLS)
    recorder.start()
    try:
        after = _time(_LINES), _time(_CALLS)
    finally:
        recorder.stop()
    line, call = (max(0, late - early) / _ROUNDS for early, late in zip(before, after))
    return line / _LINES_EACH, call


def _time(code: CodeType) -> int:
    """Return the shortest thread time of a run, in ns."""
    names: dict[str, object] = {"__builtins__": {"range": range}}
    exec(compile("def f():\n    pass\n", "<measured>", "exec"), names)  # noqa: S102 - a constant
    best = 1 << 62
    for _ in range(_TIMES):
        begin = time.thread_time_ns()
        exec(code, names)  # noqa: S102 - a constant
        best = min(best, time.thread_time_ns() - begin)
    return best
