"""Which processes are ranks, and that each has labels of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from whystuck.agent.metrics.rank.beat_files import PREFIX, BeatFiles, _scan
from whystuck.agent.metrics.rank.labels import RankBook
from whystuck.collect.beats import LAYOUT, MAGIC
from whystuck.collect.processes.proc_files import read_start
from whystuck.evidence.agent import ProcessEntry, ProcessKind
from whystuck.launch import jobdir

CHILD = "import sys; sys.stdin.read()"


def write_beat(folder: Path, pid: int, rank: int, *, size: int = 2, time_ns: int = 0) -> None:
    mono_ns = time_ns or time.monotonic_ns()
    record = LAYOUT.pack(MAGIC, 1, mono_ns, time.time_ns(), rank, size, 5, 7, 6, 0, 0, 1)
    (folder / f"beat-{pid}").write_bytes(record)


@pytest.fixture
def pids() -> Iterator[list[int]]:
    command = [sys.executable, "-c", CHILD]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(4)]
    yield [child.pid for child in children]
    for child in children:
        child.communicate()


def told(pid: int, rank: int, job: str = "none") -> ProcessEntry:
    return ProcessEntry(pid=pid, kind=ProcessKind.RANK, rank=rank, job=job, world_size=2)


def test_ranks_come_from_polls_and_from_beats(pids: list[int], tmp_path: Path) -> None:
    write_beat(tmp_path, pids[1], 1)
    book = RankBook(lambda: [told(pids[0], 0, tmp_path.name)], BeatFiles(tmp_path))

    zero, one = book.list_all()

    assert (zero.pid, zero.labels, zero.beat) == (pids[0], (tmp_path.name, "0"), None)
    assert (one.pid, one.labels, one.world_size) == (pids[1], (tmp_path.name, "1"), 2)
    assert one.beat
    assert one.beat.slot.completed == 6
    assert one.parent_pid == os.getpid()
    assert book.find(pids[1]) == one


def test_launchers_and_helpers_are_no_ranks(pids: list[int], tmp_path: Path) -> None:
    entries = [
        ProcessEntry(pid=pids[0], kind=ProcessKind.LAUNCHER, job="j"),
        ProcessEntry(pid=pids[1], kind=ProcessKind.HELPER, job="j", rank=0),
        ProcessEntry(pid=pids[2], kind=ProcessKind.PROCESS, job="j"),
    ]

    [found] = RankBook(lambda: entries, BeatFiles(tmp_path)).list_all()

    assert (found.pid, found.labels) == (pids[2], ("j", ""))


def test_what_a_scheduler_says_fills_the_gaps(pids: list[int], tmp_path: Path) -> None:
    told_of = {"job": "pretrain", "rank": "3", "slurm_job_id": "88"}
    entry = ProcessEntry(pid=pids[0], kind=ProcessKind.PROCESS)

    [found] = RankBook(lambda: [entry], BeatFiles(tmp_path), lambda _: told_of).list_all()

    assert found.labels == ("pretrain", "3")
    assert found.attributes["slurm_job_id"] == "88"


def test_two_jobs_of_one_name_are_told_apart_and_stay_so(pids: list[int], tmp_path: Path) -> None:
    # GIVEN two ranks 0 with different parents: a child of ours, and ourselves
    entries = [told(os.getpid(), 0), told(pids[0], 0)]
    book = RankBook(lambda: entries, BeatFiles(tmp_path))

    names = {one.pid: one.job for one in book.list_all()}
    assert names == {os.getpid(): "none", pids[0]: f"none-{os.getpid()}"}

    # WHEN the first one has ended, the name of the other stays
    del entries[0]
    book._read_s = float("-inf")
    assert [one.job for one in book.list_all()] == [f"none-{os.getpid()}"]


def test_a_restarted_rank_takes_the_place_of_the_old_one(pids: list[int], tmp_path: Path) -> None:
    book = RankBook(lambda: [told(pid, 0) for pid in pids], BeatFiles(tmp_path))

    [found] = book.list_all()

    assert found.pid == max(pids)


def test_ended_processes_are_no_ranks(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    write_beat(tmp_path, child.pid, 0)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie now

    assert RankBook(lambda: [told(child.pid, 0)], BeatFiles(tmp_path)).list_all() == ()
    child.wait()


def test_a_beat_of_another_process_with_this_pid_is_not_taken(
    pids: list[int], tmp_path: Path
) -> None:
    long_ago_ns = time.monotonic_ns() - 10**12
    write_beat(tmp_path, pids[0], 0, time_ns=max(1, long_ago_ns))

    assert RankBook(beats=BeatFiles(tmp_path)).list_all() == ()


def test_job_folders_are_found_as_run_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert jobdir.PREFIX == PREFIX
    with jobdir.make_job_dir() as folder:
        write_beat(folder, os.getpid(), 3)

        beats = BeatFiles().read_all()

        assert [one.slot.rank for one in beats if one.folder == folder] == [3]


def test_strange_files_are_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "beat-1")
    (tmp_path / "beat-2").symlink_to("/dev/zero")
    (tmp_path / "beat-3").mkdir()
    (tmp_path / "beat-4").write_bytes(b"short")
    (tmp_path / "beat-5").write_bytes(os.urandom(LAYOUT.size))
    (tmp_path / "beat-x").write_bytes(b"")
    (tmp_path / "beat-²").write_bytes(b"")
    write_beat(tmp_path, 6, 0)

    assert [one.pid for one in BeatFiles(tmp_path).read_all()] == [6]


def test_folders_of_others_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a folder whose name says another user than the one who made it
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    lying = tmp_path / f"{PREFIX}{os.getuid() + 1}-abc"
    honest = tmp_path / f"{PREFIX}{os.getuid()}-abc"
    for folder in (lying, honest):
        folder.mkdir(mode=0o700)
        write_beat(folder, 7, 0)
    (tmp_path / f"{PREFIX}{os.getuid()}-link").symlink_to(honest)

    found = {one.folder for one in BeatFiles().read_all() if one.folder.parent == tmp_path}

    assert found == {honest}


def test_a_rank_that_beats_is_not_looked_up_again(pids: list[int], tmp_path: Path) -> None:
    asked: list[int] = []

    def look(pid: int) -> tuple[int, int] | None:
        asked.append(pid)
        return read_start(pid)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("whystuck.agent.metrics.rank.labels.read_start", look)
        book = RankBook(beats=BeatFiles(tmp_path))
        write_beat(tmp_path, pids[0], 0)
        [first] = book.list_all(0)
        write_beat(tmp_path, pids[0], 0)
        [second] = book.list_all(0)
        assert asked == [pids[0]]
        assert second.beat != first.beat
        # WHEN it beats no more, the kernel is asked
        [third] = book.list_all(0)

    assert asked == [pids[0]] * 2
    assert first.labels == second.labels == third.labels


def test_a_rank_that_polls_is_not_looked_up_again(pids: list[int], tmp_path: Path) -> None:
    asked: list[int] = []
    entry = msgspec.structs.replace(told(pids[0], 0), first_seen_ns=1, seen_ns=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("whystuck.agent.metrics.rank.labels.read_start", asked.append)
        book = RankBook(lambda: [entry], BeatFiles(tmp_path))
        assert book.list_all(0) == ()  # it is not there, as far as the kernel says
        patch.setattr("whystuck.agent.metrics.rank.labels.read_start", lambda _: (1, 2))
        [first] = book.list_all(0)
        patch.setattr("whystuck.agent.metrics.rank.labels.read_start", asked.append)
        # GIVEN a poll since, THEN it is there as before
        entry = msgspec.structs.replace(entry, seen_ns=2)
        assert book.list_all(0) == (first,)
        assert asked == pids[:1]
        # WHEN it has not polled since, or another one has its pid, the kernel is asked
        assert book.list_all(0) == ()
        patch.setattr("whystuck.agent.metrics.rank.labels.read_start", lambda _: (3, 4))
        entry = msgspec.structs.replace(entry, first_seen_ns=3, seen_ns=3)
        [second] = book.list_all(0)

    assert asked == pids[:1] * 2
    assert (first.started_ticks, second.started_ticks) == (2, 4)


def test_a_folder_that_has_not_changed_is_not_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr("whystuck.agent.metrics.rank.beat_files._LIST_EVERY_S", 0.0)
    files, listed = BeatFiles(), []

    def scan(folder: Path, prefix: str, limit: int) -> list[str]:
        if folder == tmp_path:
            listed.append(prefix)
        return _scan(folder, prefix, limit)

    def ranks() -> set[int]:
        found = files.read_all()
        return {one.slot.rank for one in found if one.folder.parent == tmp_path}

    monkeypatch.setattr("whystuck.agent.metrics.rank.beat_files._scan", scan)
    # One that has changed a moment ago is listed again: it may have changed once more since.
    assert (ranks(), ranks(), len(listed)) == (set(), set(), 2)
    os.utime(tmp_path, ns=(1, 1))
    assert (ranks(), ranks(), len(listed)) == (set(), set(), 3)
    (tmp_path / f"{PREFIX}{os.getuid()}-abc").mkdir(mode=0o700)
    write_beat(tmp_path / f"{PREFIX}{os.getuid()}-abc", 7, 5)
    assert (ranks(), len(listed)) == ({5}, 4)


def test_a_scheduler_is_asked_twice_a_minute(tmp_path: Path) -> None:
    asked: list[int] = []

    def tell(pid: int) -> dict[str, str]:
        asked.append(pid)
        return {"job": "pretrain"}

    with pytest.MonkeyPatch.context() as patch:
        # every process counts as young, as it may still call exec
        patch.setattr("whystuck.agent.metrics.rank.labels._YOUNG_S", float("inf"))
        book = RankBook(lambda: [told(os.getpid(), 0, "")], BeatFiles(tmp_path), tell)
        assert [book.list_all(0)[0].job for _ in range(3)] == ["pretrain"] * 3
        assert len(asked) == 3
        # ... or as old
        patch.setattr("whystuck.agent.metrics.rank.labels._YOUNG_S", 0.0)
        assert [book.list_all(0)[0].job for _ in range(3)] == ["pretrain"] * 3
        assert len(asked) == 4
