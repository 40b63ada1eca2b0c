"""Threads that fail all the time: the record of their errors costs the job next to nothing."""

from __future__ import annotations

import pytest

from whystuck.probe import files
from whystuck.probe.exit.exceptions import ExceptionKeeper
from whystuck.probe.identity import Identity


def test_a_thousand_errors_in_a_moment_are_not_all_written(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    now_s = [100.0]
    monkeypatch.setattr(files, "why_off", lambda *_: "")
    monkeypatch.setattr(files, "path_of", lambda kind: kind)
    monkeypatch.setattr(files, "write_json", lambda _, value: written.append(len(value["errors"])))
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    keeper = ExceptionKeeper(Identity())

    for number in range(1000):
        keeper._keep_thread_error(ValueError(number), None)
    assert len(written) == 100

    now_s[0] += 1.0
    keeper._keep_thread_error(ValueError("later"), None)
    assert (len(written), max(written)) == (101, 16)
