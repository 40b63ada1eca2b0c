"""What is kept of ranks that ended: the last attempt first, and never without a bound."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.collect.test_op_logs import make_op_log

from whystuck.collect.op_logs import OpLogKeeper
from whystuck.evidence.finding import Gap
from whystuck.evidence.records import ExitEntry
from whystuck.launch.incidents.folder import EvidenceFolder
from whystuck.launch.incidents.round_records import RoundRecords
from whystuck.launch.processes.rank_table import RankProcess, RankTable


class Round:
    """A round of which the test says which ranks ended."""

    def __init__(self, folder: Path, **bounds: Any) -> None:
        self.job_dir = folder / "job"
        self.job_dir.mkdir()
        evidence = EvidenceFolder(folder / "ev", "n0")
        table = RankTable(self.job_dir, "n0")
        self.records = RoundRecords(evidence, table, OpLogKeeper(**bounds))
        self.node = evidence.round_dir / "n0"

    def end(self, rank: int, pid: int, attempt: int = 0, *, is_member: bool = True) -> None:
        process = RankProcess(rank, pid, is_member, attempt, None, exit=ExitEntry(pid=pid))
        self.records.keep(process)

    def finish(self) -> list[str]:
        self.records.finish()
        return sorted(path.name for path in (self.node / "rank-0").glob("*"))

    def ring(self, name: str = "ops.ring.gz") -> bytes:
        return gzip.decompress((self.node / "rank-0" / name).read_bytes())[128:]

    def gaps(self) -> list[tuple[int | None, str, str]]:
        data = (self.node / "gaps.json").read_bytes()
        return [
            (gap.rank, gap.what, gap.reason) for gap in msgspec.json.decode(data, type=list[Gap])
        ]


def test_rank_without_any_record_leaves_no_folder(tmp_path: Path) -> None:
    made = Round(tmp_path)
    made.end(0, 11)
    assert made.finish() == []
    assert not made.node.exists()


def test_attempts_that_end_out_of_order(tmp_path: Path) -> None:
    made = Round(tmp_path)
    for attempt in range(3):
        make_op_log(made.job_dir / f"ops-1{attempt}", b"%d" % attempt)
    made.end(0, 10, 0)
    made.end(0, 12, 2)
    made.end(0, 11, 1)  # seen late
    assert made.finish() == ["ops-attempt-0.ring.gz", "ops-attempt-1.ring.gz", "ops.ring.gz"]
    assert made.ring() == b"2"
    assert [made.ring(f"ops-attempt-{attempt}.ring.gz") for attempt in (0, 1)] == [b"0", b"1"]


def test_attempt_without_a_log_leaves_the_one_before(tmp_path: Path) -> None:
    made = Round(tmp_path)
    make_op_log(made.job_dir / "ops-10", b"first")
    made.end(0, 10, 0)
    made.end(0, 11, 1)
    assert made.finish() == ["ops.ring.gz"]


def test_member_of_the_group_counts_more_than_a_candidate(tmp_path: Path) -> None:
    made = Round(tmp_path)
    make_op_log(made.job_dir / "ops-10", b"member")
    make_op_log(made.job_dir / "ops-11", b"helper")
    made.end(0, 10)
    made.end(0, 11, is_member=False)
    assert made.finish() == ["ops.ring.gz"]
    assert made.ring() == b"member"


def test_oldest_attempts_go_when_there_is_no_room(tmp_path: Path) -> None:
    made = Round(tmp_path, max_bytes=1 << 20)
    rings = [os.urandom(400_000) for _ in range(4)]
    for attempt, ring in enumerate(rings):
        make_op_log(made.job_dir / f"ops-1{attempt}", ring)
        made.end(0, 10 + attempt, attempt)
    assert made.finish() == ["ops-attempt-2.ring.gz", "ops.ring.gz"]
    assert made.ring() == rings[3]
    assert made.gaps() == [
        (None, "op logs", f"attempt {attempt} is left out: more than 1 MiB in all")
        for attempt in (0, 1)
    ]


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        ({"max_ranks": 2}, "those of 2 ranks are kept"),
        ({"max_bytes": 10}, "more than 0 MiB in all"),
    ],
)
def test_what_is_left_out_is_told(tmp_path: Path, bounds: dict[str, int], reason: str) -> None:
    made = Round(tmp_path, **bounds)
    for rank in range(3):
        make_op_log(made.job_dir / f"ops-{rank}")
        made.end(rank, rank)
    made.finish()
    assert made.gaps()[-1] == (2, "op log", reason)


def test_logs_of_attempts_long_over_leave_the_memory(tmp_path: Path) -> None:
    made = Round(tmp_path)
    for attempt in range(4):
        make_op_log(made.job_dir / f"ops-1{attempt}")
        made.end(0, 10 + attempt, attempt)
    made.finish()
    assert sorted(path.name for path in made.job_dir.iterdir()) == ["ops-12", "ops-13"]


def test_rank_that_speaks_before_the_end_of_its_predecessor_is_seen(tmp_path: Path) -> None:
    """The launcher has started it anew, and our own thread is late."""
    table = RankTable(tmp_path, "n0")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as old:
        table.add(rank=0, pid=old.pid, world_size=1, is_member=False)
        table.add(rank=0, pid=os.getpid(), world_size=1, is_member=True)
        assert table.attempt == 0, "both live: one is a helper of the other"
    assert old.returncode == 1
    table = RankTable(tmp_path, "n0")
    table.add(rank=0, pid=old.pid, world_size=1, is_member=False)
    table.add(rank=0, pid=os.getpid(), world_size=1, is_member=True)
    assert table.attempt == 1
