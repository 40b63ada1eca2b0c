"""What tells that a trace is on its way, and what only looks so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from whystuck.probe.kineto_exit import in_flight


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
        assert in_flight() is is_trace
        path.unlink()
        assert in_flight() is is_trace
    assert not in_flight()
