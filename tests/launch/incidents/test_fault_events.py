"""``fault.jsonl``: the same events as ``fault.log``, as values."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.launch.running import run_whystuck, torchrun

from whystuck.evidence.fault_events import FaultKind
from whystuck.evidence.private import private_files
from whystuck.launch.incidents.fault_files import FaultNote, append_bounded
from whystuck.launch.incidents.folder import EvidenceFolder

RAISES = """
import sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    raise ValueError("bad row")
dist.barrier()
"""


def read_events(folder: Path) -> list[dict[str, Any]]:
    """The events of a job."""
    return [json.loads(line) for line in (folder / "fault.jsonl").read_text().splitlines()]


def read_texts(folder: Path) -> list[str]:
    """The sentences of a job."""
    return [line[20:] for line in (folder / "fault.log").read_text().splitlines()]


def test_a_real_job_is_told_twice_in_one_order(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RAISES)
    done = run_whystuck("run", "--evidence", "ev", "--", *torchrun(2, script), cwd=tmp_path)

    assert done.returncode == 1
    events = read_events(tmp_path / "ev")
    assert [event["text"] for event in events] == read_texts(tmp_path / "ev")
    told = [event["event"] for event in events]
    assert told[0] == "start"
    assert told[-1] == "exit"
    assert events[-1]["details"] == {"code": 1}
    assert {event["round"] for event in events} == {0}
    assert {event["node"] for event in events} == {os.uname().nodename}
    finding = next(event for event in events if event["event"] == "finding")
    assert (finding["rank"], finding["details"]["code"]) == (1, "C204")
    ends = [event for event in events if event["event"] == "rank-end"]
    assert 1 in {event["rank"] for event in ends}


@pytest.mark.parametrize("name", ["fault.log", "fault.jsonl"])
def test_files_are_their_owners_alone_and_bounded(tmp_path: Path, name: str) -> None:
    with private_files():
        evidence = EvidenceFolder(tmp_path / "ev", "n0")
        evidence.note("a", "b")
    path = tmp_path / "ev" / name
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    for _ in range(30):
        append_bounded(path, b"x" * 99 + b"\n", max_bytes=1000)
    old = path.with_name(f"{name}.1")
    assert path.stat().st_size <= 1000
    assert old.stat().st_size <= 1000
    assert set(path.read_bytes().splitlines()) == {b"x" * 99}


def test_a_link_in_the_place_of_a_log_is_not_followed(tmp_path: Path) -> None:
    evidence = EvidenceFolder(tmp_path / "ev", "n0")
    other = tmp_path / "other"
    other.write_text("mine")
    (tmp_path / "ev/fault.jsonl").symlink_to(other)
    evidence.note("said")

    assert other.read_text() == "mine"
    assert read_texts(tmp_path / "ev") == ["said"]


def test_what_a_job_says_is_one_line_of_json(tmp_path: Path) -> None:
    evidence = EvidenceFolder(tmp_path / "ev", "n0")
    evidence.note(FaultNote("a\x1b[31m\nb\u2028c", FaultKind.FINDING, 3, {"code": "C204"}))

    (event,) = read_events(tmp_path / "ev")
    assert (event["rank"], event["event"], event["details"]) == (3, "finding", {"code": "C204"})
    assert "\x1b" not in event["text"]
    assert (tmp_path / "ev/fault.jsonl").read_bytes().count(b"\n") == 1
