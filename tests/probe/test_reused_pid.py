"""A rank with the pid of one that has ended, whose files still lie in the job folder."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.probe.job import artifact, job_dir, read_until_trained, start_rank
from tests.reused_pids import start_with_pid

from whystuck.collect.processes.proc_files import read_start
from whystuck.collect.processes.target import Target
from whystuck.launch.switch.ranks import live_ranks

# The signal that the probe waits for the shortest time.
CRASHES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
RAISES = "raise ZeroDivisionError('of the first')"
# Of a process that takes care of that signal itself, as some libraries do.
LIVES = """
import signal
signal.signal(signal.SIGILL, signal.SIG_DFL)
time.sleep(3)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A job folder."""
    with job_dir() as made:
        yield made


def end_rank(tmp_path: Path, folder: Path, then: str) -> subprocess.Popen[bytes]:
    """Run a rank to its end, which must not be a good one."""
    process = start_rank(tmp_path, folder, then)
    assert process.wait(240) != 0
    process.communicate()
    return process


def test_rank_is_not_ended_by_the_crash_of_another(tmp_path: Path, folder: Path) -> None:
    first = end_rank(tmp_path, folder, CRASHES)
    fatal = artifact(folder, "fatal", first)
    assert b"Illegal" in fatal.read_bytes()
    long_ago_s = time.time() - 60
    os.utime(fatal, (long_ago_s, long_ago_s))

    second = start_with_pid(first.pid, lambda: start_rank(tmp_path, folder, LIVES))

    out, errors = second.communicate(timeout=240)
    assert (second.returncode, out) == (0, b"trained\n"), errors
    assert fatal.read_bytes() == b""


def test_nothing_of_another_rank_is_there_when_one_says_hello(tmp_path: Path, folder: Path) -> None:
    first = end_rank(tmp_path, folder, RAISES)
    left = {path.name.rpartition("-")[0] for path in folder.glob(f"*-{first.pid}")}
    assert {"exception", "beat", "switched", "start", "ops"} <= left
    # What an agent says to a process, and what another process has left.
    told, other = folder / f"trace-{first.pid}", folder / f"fatal-1{first.pid}"
    told.touch()
    other.touch()
    half = folder / f"exception-{first.pid}.part-{first.pid}-1"
    half.touch()

    second = start_with_pid(first.pid, lambda: start_rank(tmp_path, folder, "time.sleep(300)"))
    try:
        read_until_trained(second)
        assert not artifact(folder, "exception", second).exists()
        assert not half.exists()
        assert told.exists()
        assert other.exists()
        start = read_start(second.pid)
        assert start is not None
        assert int(artifact(folder, "start", second).read_text()) == start[1]
        (rank,) = live_ranks(folder)
        assert rank.pid == second.pid
    finally:
        second.kill()
        second.communicate()


def test_process_without_a_probe_is_no_rank(tmp_path: Path, folder: Path) -> None:
    """Any process of the machine may get the pid, and nobody takes the files away then."""
    first = end_rank(tmp_path, folder, RAISES)
    exception = artifact(folder, "exception", first)
    assert json.loads(exception.read_bytes())["type"] == "ZeroDivisionError"
    time.sleep(3)  # a beat is believed for so long, as its rank may be in another namespace

    second = start_with_pid(first.pid)
    try:
        assert live_ranks(folder) == []
        start = read_start(second.pid)
        assert start is not None
        target = Target(0, second.pid, "n0", folder, start_ticks=start[1])
        path = target.artifact("exception")
        assert path is not None
        assert not path.exists()
    finally:
        second.communicate()
    assert exception.exists()
