"""The bar for long reads: on terminals only, and only after a second."""

from __future__ import annotations

import io
import sys

import pytest

from whystuck.cli import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "after_s", "is_shown"),
    [(Terminal(), 0.0, True), (Terminal(), 3600.0, False), (io.StringIO(), 0.0, False)],
)
def test_bar_is_for_terminals_and_long_work(
    stream: io.StringIO, after_s: float, is_shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "_SHOWN_AFTER_S", after_s)
    monkeypatch.setenv("TERM", "xterm")
    with progress.show_progress("reading dumps") as tell:
        for done in range(5):
            tell(done, 4)

    assert ("reading dumps" in stream.getvalue()) is is_shown
