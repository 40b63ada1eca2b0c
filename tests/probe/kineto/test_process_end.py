"""What tells that a trace is on its way, and what only looks so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from whystuck.probe.kineto import process_end
from whystuck.probe.kineto.process_end import list_parts


@pytest.mark.parametrize(
    ("name", "is_trace"),
    [
        ("trace_{pid}.json.tmp", True),
        ("trace_{pid}.pt.trace.json.tmp", True),
        ("libkineto_activities_{pid}.json.tmp", True),
        # Files of the job, which may be open for as long as it runs.
        ("checkpoint.tmp", False),
        ("state.json.tmp", False),
        ("trace_{pid}1.json.tmp", False),
        ("trace_{pid}.json", False),
    ],
)
def test_in_flight_is_told_by_files_of_kineto_only(
    tmp_path: Path, name: str, *, is_trace: bool
) -> None:
    path = tmp_path / name.format(pid=os.getpid())
    with path.open("w"):
        assert list_parts() == ({str(path)} if is_trace else set())
        path.unlink()
        assert list_parts() == ({str(path)} if is_trace else set())
    assert not list_parts()


def test_exit_does_not_wait_for_a_file_that_nobody_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_end, "_WRITING_S", 1e9)
    monkeypatch.setattr(process_end, "_IDLE_S", 0.2)
    part = tmp_path / f"trace_{os.getpid()}.json.tmp"
    with part.open("w"):
        process_end._wait_until_written(frozenset())
        assert list_parts() == {str(part)}
        part.unlink()
        assert list_parts() == {str(part)}
    assert list_parts() == set()
