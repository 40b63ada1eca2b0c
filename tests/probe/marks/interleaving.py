"""Runs two functions in all orders in which their threads can take turns, line by line.

Its text is put into the job of a test, where the functions are those of the probe.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from types import CodeType, FrameType
from typing import Any

_TIMEOUT_S = 20.0


class Stepped:
    """A function in a thread of its own, which pauses before one of its lines."""

    def __init__(self, function: Callable[[], object], is_ours: Callable[[CodeType], bool]) -> None:
        self.error: Exception | None = None
        self.is_over = False
        self._function, self._is_ours = function, is_ours
        self._line = self._left = 0
        self._paused, self._go = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def run_to(self, line: int) -> bool:
        """Start it, and wait until it is before a line; return whether it has so many."""
        self._left = line
        self._thread.start()
        assert self._paused.wait(_TIMEOUT_S), "it hangs"
        return not self.is_over

    def finish(self) -> None:
        """Have it go on to its end."""
        self._go.set()
        self._thread.join(_TIMEOUT_S)
        assert self.is_over, "it hangs"

    def _run(self) -> None:
        sys.settrace(self._trace)
        try:
            self._function()
        except Exception as error:  # noqa: BLE001 - it is the result
            self.error = error
        finally:
            sys.settrace(None)
            self.is_over = True
            self._paused.set()

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not self._is_ours(frame.f_code):
            return None
        if event == "line":
            if not self._left:
                self._paused.set()
                self._go.wait(_TIMEOUT_S)
            self._left -= 1
        return self._trace


def interleave(
    first: Callable[[], object],
    second: Callable[[], object],
    is_ours: Callable[[CodeType], bool],
    begin: Callable[[], object],
) -> Iterator[tuple[tuple[int, int, int], list[Exception]]]:
    """Run the first one up to a line, then the second one up to a line, then one to its end.

    Args:
        first: One of the functions.
        second: The other one.
        is_ours: Whether the lines of some code count.
        begin: Called before each order.

    Yields:
        The lines, which of the two ends first, and what they raised.
    """
    for line in count():
        is_within = False
        for other in count():
            has_other = False
            for ending in (0, 1):
                begin()
                both = Stepped(first, is_ours), Stepped(second, is_ours)
                is_within = both[0].run_to(line)
                has_other = both[1].run_to(other)
                both[ending].finish()
                both[1 - ending].finish()
                yield (line, other, ending), [one.error for one in both if one.error is not None]
                if not (is_within and has_other):
                    break  # one of them is over: the other one has nobody to meet
            if not has_other:
                break
        if not is_within:
            return
