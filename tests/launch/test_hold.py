"""``whystuck run --hold``: what a job leaves for a look when it crashes or is stuck.

On gloo alone: what is kept are processes, whatever their ranks talk by.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.launch.running import (
    LEAVE,
    LONG,
    PATIENCE_S,
    WHYSTUCK,
    clean_environment,
    run_whystuck,
    torchrun,
)

from whystuck.collect.processes.proc_files import is_alive, read_state

pytestmark = LONG
JOB = f"""
import ctypes, os, signal, sys, time
from pathlib import Path
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
Path(f"pid-{{rank}}").write_text(str(os.getpid()))
dist.barrier()
if rank == 1:
    time.sleep(1.5)  # a beat of each rank
    match sys.argv[1]:
        case "raise": raise ValueError("bad row")
        case "exit": sys.exit(9)
        case "segv": ctypes.string_at(0)
        case "kill": os.kill(os.getpid(), signal.SIGKILL)
        case "stuck": time.sleep(3600)
dist.barrier()
{LEAVE}
"""
# A launcher that looks now and then leaves no doubt who is first.
LOOKS_LATE = ("--monitor-interval", "3")


class Job:
    """A job of two ranks whose rank 1 ends in some way."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder = folder
        self.process = process
        self.said: list[str] = []

    @property
    def pids(self) -> list[int]:
        return [int((self.folder / f"pid-{rank}").read_text()) for rank in (0, 1)]

    def wait_for(self, text: str) -> str:
        """Read stderr up to a line with a text."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if text in line:
                return line
        raise AssertionError("".join(self.said))

    def end(self) -> int:
        """Wait for the end, and return the code."""
        _, rest = self.process.communicate(timeout=PATIENCE_S)
        self.said.append(rest)
        return self.process.returncode


@contextmanager
def start(folder: Path, how: str, *options: str) -> Iterator[Job]:
    script = folder / "train.py"
    script.write_text(JOB)
    command = torchrun(2, script, how)
    command[1:1] = LOOKS_LATE
    process = subprocess.Popen(
        [*WHYSTUCK, "run", "--evidence", "ev", *options, "--", *command],
        cwd=folder, env=clean_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    job = Job(folder, process)
    try:
        yield job
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
            for pid in job.pids:
                os.kill(pid, signal.SIGKILL)


def release_by_command(job: Job) -> None:
    done = run_whystuck("release", str(job.process.pid), cwd=job.folder)
    assert done.returncode == 0, done.stderr


def release_by_folder(job: Job) -> None:
    assert run_whystuck("release", "ev", cwd=job.folder).returncode == 0


def release_by_file(job: Job) -> None:
    (job.folder / "ev/release").touch()


def release_by_signal(job: Job) -> None:
    job.process.send_signal(signal.SIGTERM)


RELEASES = [
    release_by_command,
    pytest.param(release_by_folder, marks=pytest.mark.slow),
    pytest.param(release_by_file, marks=pytest.mark.slow),
    pytest.param(release_by_signal, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("release", RELEASES)
def test_scene_of_an_exception_is_kept_until_it_is_released(
    tmp_path: Path, release: Callable[[Job], None]
) -> None:
    with start(tmp_path, "raise", "--hold", "600") as job:
        line = job.wait_for("the scene is kept for 600 s")
        # THEN the report is there, and both ranks are
        assert any("error[C204]: rank 1 raised ValueError" in one for one in job.said)
        assert "whystuck release" in line
        assert all(map(is_alive, job.pids))
        release(job)
        code = job.end()

    assert code == 1
    log = (tmp_path / "ev/fault.log").read_text()
    assert log.index("The scene is kept for 600 s") < log.index("The scene is released")
    assert log.index("The scene is released") < log.index("Round 0 ends with code 1.")
    holds = [
        event
        for event in map(json.loads, (tmp_path / "ev/fault.jsonl").read_text().splitlines())
        if event["event"] == "hold"
    ]
    assert [event["details"].get("hold_s") for event in holds] == [600.0, None]
    report = json.loads((tmp_path / "ev/incidents/000/report.json").read_text())
    assert (report["verdict"], report["findings"][0]["code"]) == ("crashed", "C204")
    assert not any(map(is_alive, job.pids))


@pytest.mark.slow
@pytest.mark.parametrize(("how", "survivors"), [("exit", 2), ("segv", 2), ("kill", 1)])
def test_scene_of_other_ends_is_kept(tmp_path: Path, how: str, survivors: int) -> None:
    with start(tmp_path, how, "--hold", "600") as job:
        job.wait_for("the scene is kept for 600 s")
        # Longer than any handler of ours sleeps.
        time.sleep(12 if how == "segv" else 0)
        assert sum(map(is_alive, job.pids)) == survivors
        assert is_alive(job.pids[0])
        assert job.process.poll() is None
        assert read_state(job.process.pid) not in "Tt"
        release_by_command(job)
        code = job.end()

    assert code == 1
    report = json.loads((tmp_path / "ev/incidents/000/report.json").read_text())
    (first, *_) = report["findings"]
    assert first["culprits"]["ranks"] == [1]
    assert not any(map(is_alive, job.pids))


@pytest.mark.slow
def test_scene_is_left_when_its_time_is_over(tmp_path: Path) -> None:
    with start(tmp_path, "raise", "--hold", "3") as job:
        job.wait_for("the scene is kept for 3 s")
        assert job.end() == 1
    assert "The scene is released: its time is over" in (tmp_path / "ev/fault.log").read_text()


@pytest.mark.slow
def test_stall_is_kept_too_and_ends_with_124(tmp_path: Path) -> None:
    with start(tmp_path, "stuck", "--hold", "600", "--stall-after", "4") as job:
        job.wait_for("the scene is kept for")
        assert all(map(is_alive, job.pids))
        release_by_command(job)
        assert job.end() == 124
    assert not any(map(is_alive, job.pids))


@pytest.mark.slow
def test_on_stall_hold_keeps_no_crash(tmp_path: Path) -> None:
    with start(tmp_path, "raise", "--on-stall", "hold", "--hold", "600") as job:
        assert job.end() == 1
    assert "the scene is kept" not in "".join(job.said)


@pytest.mark.slow
def test_without_the_option_nothing_is_kept(tmp_path: Path) -> None:
    with start(tmp_path, "raise") as job:
        assert job.end() == 1
    assert "the scene is kept" not in "".join(job.said)


@pytest.mark.slow
def test_job_whose_watcher_is_killed_while_it_keeps_the_scene_goes_on(tmp_path: Path) -> None:
    with start(tmp_path, "kill", "--hold", "600") as job:
        job.wait_for("the scene is kept for 600 s")
        children = Path(f"/proc/{job.process.pid}/task/{job.process.pid}/children").read_text()
        for pid in map(int, children.split()):
            # The watcher and the sentinel were forked from the front, and have its words.
            if b"\0run\0--evidence\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        assert job.end() == 1
    assert not any(map(is_alive, job.pids))


def test_release_says_when_nothing_is_kept(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*WHYSTUCK, "run", "--evidence", "ev", "--", "sh", "-c", "echo up; exec sleep 60"],
        cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        done = run_whystuck("release", str(process.pid), cwd=tmp_path)
        assert done.returncode == 2
        assert b"keeps no scene" in done.stderr
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


@pytest.mark.slow
def test_shell_is_where_the_rank_is(tmp_path: Path) -> None:
    with start(tmp_path, "raise", "--hold", "600") as job:
        job.wait_for("the scene is kept")
        show = (
            'echo "$RANK $WORLD_SIZE $RANK_PID ${WHYSTUCK_JOB_DIR-none} $PYTHONPATH|"; pwd; exit 5'
        )
        done = run_whystuck(
            "shell", "--job", str(job.process.pid), "1", "--", "sh", "-c", show, cwd=Path("/")
        )
        other = run_whystuck("shell", "7", "--job", str(job.process.pid), cwd=tmp_path)
        release_by_command(job)
        job.end()

    assert done.returncode == 5, done.stderr
    assert done.stdout.decode() == f"1 2 {job.pids[1]} none |\n{tmp_path}\n"
    assert other.returncode == 2
    assert b"rank 7 does not run here" in other.stderr
