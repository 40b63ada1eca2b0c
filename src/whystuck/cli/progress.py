"""A bar for what takes longer than a second, on terminals only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

Progress = Callable[[int, int], None]

_SHOWN_AFTER_S = 1.0


@contextmanager
def show_progress(label: str) -> Iterator[Progress]:
    """Show a bar on stderr while a block runs, once it has run for a second.

    Args:
        label: What is done, e.g. ``reading dumps``.

    Yields:
        A function to call with the number of parts that are done, and that of all.
    """
    if not sys.stderr.isatty():
        yield _ignore
        return
    with ExitStack() as stack:
        yield _Bar(label, stack)


class _Bar:
    """Makes the bar at the first call after a second: most work is over by then."""

    def __init__(self, label: str, stack: ExitStack) -> None:
        self._label = label
        self._stack = stack
        self._started_s = time.monotonic()
        self._update: Progress | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._update is None and time.monotonic() - self._started_s >= _SHOWN_AFTER_S:
            self._update = self._make()
        if self._update is not None:
            self._update(done, total)

    def _make(self) -> Progress:
        from rich.console import Console
        from rich.progress import Progress as RichProgress

        bar = self._stack.enter_context(RichProgress(console=Console(stderr=True), transient=True))
        task = bar.add_task(self._label)
        return lambda done, total: bar.update(task, completed=done, total=total)


def _ignore(_done: int, _total: int) -> None:
    """Show nothing."""
