"""Ranks that ended themselves by a call: the line of the call is named, not the trainer's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.diagnose.scenes import MODULE, Job, at

from whystuck.diagnose.algorithms.failures.departures import explains
from whystuck.diagnose.engine import diagnose
from whystuck.evidence.finding import Finding
from whystuck.evidence.live import Departure, ExitRecord
from whystuck.parse.records import parse_leaving

CALLBACK = (
    at("/job/callbacks.py", 12, "stop"),
    at("/venv/lib/python3.11/site-packages/trainer/loop.py", 80, "run"),
    at("/job/train.py", 50, "main"),
    MODULE,
)


def judge(job: Job, *departures: Departure) -> Finding:
    report = diagnose(replace(job.evidence(), departures=departures))
    return report.findings[0]


def leave(rank: int, call: str = "sys.exit", status: str = "0") -> Departure:
    return Departure(
        rank=rank,
        call=call,
        status=status,
        frames=CALLBACK,
        artifact=f"n0/rank-{rank}/leaving.json",
    )


def make_crash() -> Job:
    job = Job().of_kind("exit", command_exit=1).steps()
    for rank in (0, 1, 3):
        job.raises(rank, "RuntimeError", "Connection closed by peer", [at("/job/train.py", 10)])
    return job


def test_rank_that_leaves_well_is_past_the_line_of_its_call() -> None:
    finding = judge(make_crash().ends(2, code=0), leave(2))

    assert (finding.code, finding.culprits.ranks) == ("H103", [2])
    assert (finding.where[0].file, finding.where[0].line) == ("/job/callbacks.py", 12)
    assert "by sys.exit in stop (callbacks.py:12)" in finding.summary
    assert finding.details["call"] == "sys.exit"


def test_rank_that_leaves_well_while_others_wait() -> None:
    job = Job().steps().waits([0, 1, 3]).ends(2, code=0)
    finding = judge(job, leave(2, "os._exit"))

    assert (finding.code, finding.culprits.ranks) == ("H103", [2])
    assert finding.where[0].line == 12
    assert "by os._exit" in finding.summary


def test_rank_that_ends_itself_with_a_code() -> None:
    finding = judge(make_crash().ends(2, code=3), leave(2, "os._exit", "3"))

    assert (finding.code, finding.culprits.ranks) == ("C204", [2])
    assert finding.where[0].line == 12
    assert finding.details == {"exit_code": 3, "call": "os._exit"} | finding.details


def test_rank_that_kills_itself() -> None:
    finding = judge(make_crash().ends(2, signal=9), leave(2, "os.kill", "9"))

    assert (finding.code, finding.culprits.ranks) == ("C201", [2])
    assert finding.details["sender"] == "itself"
    assert [text.partition(":")[0] for text in finding.remedies] == ["look at the line named"]
    assert "from outside" not in finding.summary
    assert finding.where[0].line == 12


@pytest.mark.parametrize("departure", [leave(2, "sys.exit", "3"), leave(2, "os.kill", "15")])
def test_call_that_does_not_fit_the_end_is_not_its_reason(departure: Departure) -> None:
    finding = judge(make_crash().ends(2, signal=9), departure)

    assert finding.code == "C201"
    assert finding.details["sender"] == "outside"
    assert not [place for place in finding.where if place.file == "/job/callbacks.py"]


@pytest.mark.parametrize(
    ("status", "code"),
    [("None", 0), ("0", 0), ("", 0), ("False", 0), ("True", 1), ("3", 3), ("-1", 255), ("no", 1)],
)
def test_what_a_status_ends_a_process_with(status: str, code: int) -> None:
    departure = leave(0, "sys.exit", status)

    assert explains(departure, ExitRecord(rank=0, pid=1, code=code))
    assert not explains(departure, ExitRecord(rank=0, pid=1, code=code + 1))
    assert not explains(departure, ExitRecord(rank=0, pid=1, signal=9))


def test_record_of_the_probe_is_read() -> None:
    data = (
        b'{"pid": 7, "call": "quit", "status": "None", "is_main_thread": false, "time_ns": 5,'
        b' "frames": [{"name": "stop", "filename": "/job/a.py", "line": 3}], "more": 1}'
    )
    read = parse_leaving(data, rank=4, artifact="n0/rank-4/leaving.json")

    assert (read.rank, read.call, read.is_main_thread) == (4, "quit", False)
    assert read.frames == (at("/job/a.py", 3, "stop"),)
