"""Marks of a long job: files with a size, a limit for all, and a disk that is full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.parse.ops.mark_files import MarkRing

from whystuck.evidence.ops.marks import Marks
from whystuck.launch.incidents.folder import EvidenceFolder
from whystuck.launch.incidents.mark_history import MarkHistory
from whystuck.launch.processes.rank_table import RankProcess, RankTable
from whystuck.pipeline import read_evidence

FORWARD, USER = 2, 6
CAPACITY = 63


class Job:
    """Ranks whose rings the test writes; each has the pid ``100 + rank``."""

    def __init__(self, folder: Path, world: int = 1, **limits: Any) -> None:
        self.folder = folder / "ev"
        self.job_dir = folder / "job"
        self.job_dir.mkdir()
        self.step = 0
        self.rings = {rank: MarkRing(rank, world, capacity=CAPACITY) for rank in range(world)}
        evidence = EvidenceFolder(self.folder, "n0")
        self.processes = [
            RankProcess(rank, 100 + rank, is_member=True, attempt=0, pidfd=None)
            for rank in range(world)
        ]
        table = RankTable(self.job_dir, "n0")
        table.processes = lambda attempt=None: self.processes  # type: ignore[method-assign]
        self.history = MarkHistory(evidence, table, **limits)

    def train(self, steps: int, *, keeps: bool = True) -> None:
        for rank, ring in self.rings.items():
            for step in range(self.step, self.step + steps):
                ring.mark(FORWARD, str(step % 50), step=step)
            (self.job_dir / f"marks-{100 + rank}").write_bytes(ring.data())
        self.step += steps
        if keeps:
            self.history.keep_all()

    def list_files(self) -> list[Path]:
        return sorted(self.folder.rglob("marks-*.ring"))

    def read(self) -> Marks:
        return read_evidence(self.folder).marks


def list_steps(marks: Marks, rank: int = 0) -> list[int]:
    steps: list[int] = marks.step[marks.rank == rank].tolist()
    return steps


def test_marks_that_the_ring_has_lost_are_in_the_evidence(tmp_path: Path) -> None:
    job = Job(tmp_path, 2)
    for _ in range(10):
        job.train(40)
    marks = job.read()

    for rank in range(2):
        assert list_steps(marks, rank) == list(range(400))
    assert [marks.names[name] for name in marks.name[:400]] == [
        str(step % 50) for step in range(400)
    ]
    assert [log.dropped for log in marks.logs] == [0, 0]
    assert len(job.list_files()) == 2


def test_what_was_open_is_kept_once_with_its_end(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.train(5, keeps=False)
    job.rings[0].mark(USER, "open", takes_ns=None)
    job.train(5)
    before = job.read()
    number = job.rings[0].newest - 5
    at = (number - 1) % CAPACITY
    record = bytearray(job.rings[0].records[at])
    record[16:24] = (int.from_bytes(record[8:16], "little") + 7).to_bytes(8, "little")
    job.rings[0].records[at] = bytes(record)
    job.train(5)
    after = job.read()

    assert (before.end_ns[before.kind == USER]).tolist() == [0]
    (row,) = np.flatnonzero(after.kind == USER)
    assert after.end_ns[row] - after.begin_ns[row] == 7
    assert len(after) == 16


def test_file_that_is_full_is_followed_by_another_one(tmp_path: Path) -> None:
    job = Job(tmp_path, file_bytes=20_000)
    for _ in range(8):
        job.train(40)

    assert len(job.list_files()) > 1
    assert all(path.stat().st_size <= 20_000 for path in job.list_files())
    assert list_steps(job.read()) == list(range(320))


def test_oldest_files_of_ours_go_when_all_take_too_much(tmp_path: Path) -> None:
    job = Job(tmp_path, file_bytes=15_000, total_bytes=45_000)
    job.train(40)
    mine = job.list_files()[0].with_name("marks-of-mine.ring")
    mine.write_bytes(b"x" * 100_000)
    os.utime(mine, (0, 0))
    for _ in range(12):
        job.train(40)

    files = [path for path in job.list_files() if path != mine]
    assert sum(path.stat().st_size for path in files) <= 45_000
    assert mine.exists()
    mine.unlink()
    steps = list_steps(job.read())
    assert steps == list(range(steps[0], 520))
    assert steps[0] > 0


def test_process_that_is_another_one_is_kept_apart(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.train(40)
    job.step = 0
    job.rings[0] = MarkRing(0, 1, capacity=CAPACITY, begin_ns=10**13, now_ns=10**13)
    job.rings[0].about = {"pid": 8}
    job.processes = [RankProcess(0, 100, is_member=True, attempt=1, pidfd=None)]
    job.history._written.clear()
    job.train(10)

    assert list_steps(job.read()) == list(range(10))


def test_file_that_is_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for _ in range(3):
        job.train(40)
    (path,) = job.list_files()
    whole = path.read_bytes()
    for size in (len(whole) - 1, len(whole) - 1300, len(whole) - 6000, len(whole) - 8000):
        path.write_bytes(whole[:size])
        steps = list_steps(job.read())
        assert 40 <= len(steps) < 120
        assert steps == list(range(len(steps)))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small disk needs root, and the right to mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_disk_that_is_full_ends_the_keeping_and_what_is_there_stays(small_disk: Path) -> None:
    job = Job(small_disk)
    for _ in range(20):
        job.train(10)
        if job.history.gaps:
            break
    job.history.look(1e9)
    (gap,) = job.history.gaps

    assert "No space left" in gap.reason
    assert gap.rank == 0
    assert list_steps(job.read())[:10] == list(range(10))
    size = job.list_files()[0].stat().st_size
    job.rings[0].mark(FORWARD, "later", step=999)
    job.history.look(2e9)
    job.history.close()
    assert job.list_files()[0].stat().st_size == size
