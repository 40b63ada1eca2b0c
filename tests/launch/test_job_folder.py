"""Whose the folder of a job is, where containers share ``/dev/shm`` and have pids of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.reused_pids import start_with_pid

from whystuck.launch.jobdir import is_left, list_job_dirs, make_job_dir, owner_of

APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
WAIT = "import os, pathlib, sys; print(os.environ['WHYSTUCK_JOB_DIR'], flush=True); input()"

SUPERVISOR = """
from whystuck.launch.jobdir import make_job_dir
with make_job_dir() as folder:
    print(folder, flush=True)
    input()
"""


def run(evidence: Path, *command: str) -> list[str]:
    """Return the words that run a command under whystuck."""
    words = [sys.executable, "-m", "whystuck", "run", "--no-agent", "--evidence", str(evidence)]
    return [*words, "--", *command]


@contextmanager
def running(evidence: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Run a job that waits for a line; yield it and the folder of its job."""
    pipe = subprocess.PIPE
    command = run(evidence, sys.executable, "-c", WAIT)
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as job:
        assert job.stdout is not None
        assert job.stdin is not None
        try:
            yield job, Path(job.stdout.readline().strip())
        finally:
            with job.stdin:
                job.stdin.write("\n")


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for something that comes soon; a test that waits for a minute has failed."""
    deadline_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def is_left_or_gone(folder: Path) -> bool:
    """Return whether a supervisor has left its folder; a job of another test may remove that."""
    try:
        return is_left(folder)
    except FileNotFoundError:
        return True


@pytest.fixture
def apart() -> tuple[str, ...]:
    """Return what gives a command pids of its own."""
    if subprocess.run([*APART, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces can be made here")
    return APART


def test_job_in_another_container_leaves_the_folder_alone(
    tmp_path: Path, apart: tuple[str, ...]
) -> None:
    with running(tmp_path / "one") as (job, folder):
        done = subprocess.run(
            [*apart, *run(tmp_path / "two", "echo", "ran")],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
        assert folder in list_job_dirs()
        assert not is_left(folder)
    assert job.wait() == 0
    assert not folder.exists()


def test_job_in_another_container_is_none_of_this_one(
    tmp_path: Path, apart: tuple[str, ...]
) -> None:
    command = [sys.executable, "-m", "whystuck", "switch", "get"]
    with running(tmp_path / "one") as (_, folder):
        # So that the pid of the supervisor is one of a process there, too.
        (folder / "owner").write_text("1")
        done = subprocess.run(
            [*apart, *command], capture_output=True, text=True, check=False, timeout=60
        )
    assert "no job runs here" in done.stderr
    assert done.returncode == 2


def test_folder_of_a_supervisor_that_was_killed_is_removed(tmp_path: Path) -> None:
    with running(tmp_path / "one") as (_, folder):
        os.kill(owner_of(folder), signal.SIGKILL)
        # The processes that it has forked hold its lock until they have seen its end.
        wait_until(lambda: is_left_or_gone(folder))
        assert folder not in list_job_dirs()
        subprocess.run(run(tmp_path / "two", "true"), check=True, timeout=60)
        assert not folder.exists()


def test_folder_is_not_that_of_a_process_that_has_the_pid_of_its_supervisor() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", SUPERVISOR], stdin=pipe, stdout=pipe) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().decode().strip())
        assert folder in list_job_dirs()
        owner.kill()
    other = start_with_pid(owner.pid)
    try:
        assert is_left_or_gone(folder)
        assert folder not in list_job_dirs()
        with make_job_dir():
            assert not folder.exists()
    finally:
        other.communicate()


def test_folder_without_a_time_is_that_of_an_older_release(tmp_path: Path) -> None:
    folder = tmp_path / f"whystuck-{os.getuid()}-old"
    folder.mkdir(mode=0o700)
    (folder / "owner").write_text(str(os.getpid()))
    assert not is_left(folder)
    with subprocess.Popen(["true"]) as ended:
        pass
    (folder / "owner").write_text(str(ended.pid))
    assert is_left(folder)
