"""What a killed agent left is removed by the next one; what somebody may want is not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from whystuck.agent.ondemand import raw_files, raw_roots
from whystuck.agent.ondemand.raw_files import make_raw_file
from whystuck.agent.ondemand.raw_roots import RawRoot, sweep
from whystuck.agent.ondemand.tracer import OnDemandTracer
from whystuck.agent.processes.registry import ProcessRegistry

DAY_S = 86400


@pytest.fixture
def tmp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder in which agents make theirs."""
    for module in (raw_files, raw_roots):
        monkeypatch.setattr(module, "ROOTS", tmp_path / "roots-")
    return tmp_path


@pytest.fixture(scope="module")
def dead() -> int:
    """The pid of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def leave(tmp: Path, name: str, files: tuple[str, ...], age_s: float, root: str = "a") -> Path:
    """The folder of a trace, as an agent that was killed leaves it."""
    folder = tmp / f"roots-{root}" / name
    folder.mkdir(parents=True)
    for one in files:
        (folder / one).touch()
    for path in (*folder.iterdir(), folder, folder.parent):
        os.utime(path, (time.time() - age_s,) * 2)
    return folder


def test_unfinished_traces_of_ended_processes_are_removed(tmp: Path, dead: int) -> None:
    leave(tmp, f"id-{dead}", ("trace_7.json.tmp",), 120)
    leave(tmp, f"id-{dead}", (), 120, root="b")
    (tmp / "roots-c").mkdir()
    os.utime(tmp / "roots-c", (0, 0))

    sweep()

    assert not list(tmp.iterdir())


def test_whole_trace_stays_for_a_week(tmp: Path, dead: int) -> None:
    young = leave(tmp, f"id-{dead}", ("trace_7.json",), 6 * DAY_S)
    leave(tmp, f"id-{dead}", ("trace_7.json",), 8 * DAY_S, root="b")

    sweep()

    assert list(young.iterdir())
    assert [one.name for one in tmp.iterdir()] == ["roots-a"]


@pytest.mark.parametrize("age_s", [120, 8 * DAY_S])
def test_trace_of_a_living_process_stays(tmp: Path, age_s: float) -> None:
    folder = leave(tmp, f"id-{os.getpid()}", ("trace_7.json.tmp",), age_s)

    sweep()

    assert list(folder.iterdir())


def test_what_is_new_or_not_ours_to_judge_stays(tmp: Path, dead: int) -> None:
    new = leave(tmp, f"id-{dead}", ("trace_7.json.tmp",), 5)
    other = leave(tmp, "something", (), 8 * DAY_S, root="b")
    (tmp / "roots-link").symlink_to(other.parent)
    file = leave(tmp, f"id-{dead}", (), 120, root="c").parent / "file"
    file.touch()
    os.utime(file.parent, (0, 0))

    sweep()

    assert list(new.iterdir())
    assert other.is_dir()
    assert list(file.parent.iterdir()) == [file]


def test_folder_of_a_living_agent_stays(tmp: Path, dead: int) -> None:
    root = RawRoot(None)
    root.make()
    make_raw_file(root.path, f"id-{dead}", pid=dead, host_pid=os.getpid(), probe=False)
    for path in (*root.path.iterdir(), root.path):
        os.utime(path, (0, 0))

    sweep()
    assert list(root.path.iterdir())

    root.close()  # it stays, as something lies there
    sweep()
    assert not root.path.exists()


def test_removed_folder_is_made_and_locked_anew(tmp: Path) -> None:
    root = RawRoot(None)
    root.make()
    root.path.rmdir()
    root.make()
    os.utime(root.path, (0, 0))

    sweep()
    assert root.path.is_dir()

    root.close()
    assert not list(tmp.iterdir())


def test_chosen_folder_is_neither_swept_nor_removed(tmp: Path) -> None:
    root = RawRoot(tmp / "mine")
    root.make()
    assert not root.is_sweep_due()
    root.close()
    assert (tmp / "mine").is_dir()


def test_agent_that_starts_removes_what_another_left(tmp: Path, dead: int) -> None:
    left = leave(tmp, f"id-{dead}", ("trace_7.json.tmp",), 120)
    tracer = OnDemandTracer(ProcessRegistry())
    until_s = time.monotonic() + 60
    while left.parent.exists():
        assert time.monotonic() < until_s
        time.sleep(0.01)
    tracer.close()


def test_sweep_is_due_at_the_start_and_then_once_a_minute() -> None:
    root = RawRoot(None)
    assert [root.is_sweep_due(), root.is_sweep_due()] == [True, False]
