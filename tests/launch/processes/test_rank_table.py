"""Which process is which rank, over the life of a job."""

from __future__ import annotations

from pathlib import Path

from tests.probe.kineto.fabric import wait_until
from tests.reused_pids import start_sleeper, start_with_pid

from whystuck.collect.processes.proc_files import read_start
from whystuck.launch.processes.rank_table import KEPT_ATTEMPTS, RankTable


def test_a_pid_that_comes_again_is_another_process(tmp_path: Path) -> None:
    """A job of weeks that starts many ranks comes round; one seen ended would never be watched."""
    table = RankTable(tmp_path, "n1")
    table.start()
    first = start_sleeper()
    table.add(rank=0, pid=first.pid, world_size=1, is_member=True)
    first.communicate()
    wait_until(lambda: table.exits() != {})
    # What it said before its end may be heard later.
    table.add(rank=0, pid=first.pid, world_size=1, is_member=True)
    assert (table.attempt, len(table.all_processes())) == (0, 1)

    second = start_with_pid(first.pid)
    try:
        table.add(rank=0, pid=second.pid, world_size=1, is_member=True)
        assert (table.attempt, table.all_pids()) == (1, [second.pid])
        assert [one.is_alive for one in table.all_processes()] == [False, True]
    finally:
        second.communicate()
    wait_until(lambda: all(not one.is_alive for one in table.all_processes()))


def test_files_of_a_pid_that_comes_again_are_of_the_process_that_left_them(tmp_path: Path) -> None:
    table = RankTable(tmp_path, "n1")
    table.start()
    first = start_sleeper()
    _take_over(tmp_path, first.pid)
    table.add(rank=0, pid=first.pid, world_size=1, is_member=True)
    first.communicate()
    wait_until(lambda: table.exits() != {})
    (ended,) = table.all_processes()
    fatal = tmp_path / f"fatal-{first.pid}"
    fatal.write_text("Fatal Python error: Aborted\n")
    assert table.file_of(ended, "fatal") == fatal

    second = start_with_pid(first.pid)
    try:
        # Until it says that it is a rank, they are of the one that has ended.
        assert table.file_of(ended, "fatal") == fatal
        _take_over(tmp_path, second.pid)
        table.add(rank=1, pid=second.pid, world_size=2, is_member=True)
        (new,) = [one for one in table.all_processes() if one.is_alive]
        assert table.file_of(new, "fatal") == fatal
        assert table.file_of(ended, "fatal").name == "fatal-of-nobody"
        names = [one.artifact("ops") for one in table.targets(alive_only=False)]
        assert [path and path.name for path in names] == ["ops-of-nobody", f"ops-{second.pid}"]
    finally:
        second.communicate()


def _take_over(folder: Path, pid: int) -> None:
    """Do what the probe of a process does first."""
    start = read_start(pid)
    assert start is not None
    (folder / f"start-{pid}").write_text(str(start[1]))


def test_ranks_of_long_ago_are_forgotten(tmp_path: Path) -> None:
    """A script that starts a job each minute for weeks has hundreds of thousands."""
    table = RankTable(tmp_path, "n1")
    table.start()
    no_pid = 1 << 30
    for number in range(KEPT_ATTEMPTS + 50):
        table.add(rank=0, pid=no_pid + number, world_size=1, is_member=True)
    wait_until(lambda: not table.all_pids())
    assert table.attempt == KEPT_ATTEMPTS + 49
    assert KEPT_ATTEMPTS <= len(table.all_processes()) <= KEPT_ATTEMPTS + 1
    assert table.exits(table.attempt - KEPT_ATTEMPTS + 1).keys() == {0}
