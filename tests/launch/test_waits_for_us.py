"""The exit code of a job does not wait for a process of ours that is stopped, spins or is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from tests.launch.running import clean_environment
from tests.launch.test_front import ours, read_line, started, watcher_of
from tests.probe.kineto.fabric import wait_until

# It waits for a file, so that a test can break something of ours before the command ends.
WAITS = """
echo READY
while [ ! -e go ]; do sleep 0.05; done
echo AFTER
cat lines 2>/dev/null
exit 9
"""
# A whystuck that is broken at its end, and one that waits for less: what it does is the same.
BROKEN = """
import sys
from whystuck.launch import front
from whystuck.launch.incidents import ending
from whystuck.cli import main

def spin(*_):
    while True:
        pass

def hang(*_):
    import threading
    threading.Event().wait()

def copy(*_):
    import ctypes
    ctypes.PyDLL(None).sleep(3600)  # holds the GIL: no thread of the watcher goes on

front.SILENT_S = 2.0
ending.Ending.report = {act}
sys.argv = ["whystuck", "run", "--no-agent", "--evidence", "ev", "--", "sh", "-c", {script!r}]
sys.exit(main())
"""


@contextmanager
def broken(cwd: Path, act: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a script under a whystuck whose watcher does something else at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", BROKEN.format(act=act, script=WAITS)],
        cwd=cwd, env=clean_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, process_group=0,
    ) as process:  # fmt: skip
        children: list[psutil.Process] = []
        try:
            assert read_line(process) == b"READY\n"
            children = psutil.Process(process.pid).children(recursive=True)
            yield process
        finally:
            for one in children:  # it spins for ever
                with suppress(psutil.NoSuchProcess):
                    one.kill()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("act", ["spin", "hang", "copy"])
def test_code_does_not_wait_for_a_watcher_that_never_ends(tmp_path: Path, act: str) -> None:
    with broken(tmp_path, act) as process:
        (tmp_path / "go").touch()
        assert read_line(process) == b"AFTER\n"
        assert process.wait(60) == 9
        assert process.stderr is not None
        said = b"whystuck: the report takes too long, and is not waited for\n"
        assert process.stderr.readline() == said


def test_code_does_not_wait_for_a_watcher_that_is_stopped(tmp_path: Path) -> None:
    with started(tmp_path, WAITS) as process:
        assert read_line(process) == b"READY\n"
        watcher = watcher_of(process.pid)
        watcher.suspend()
        try:
            (tmp_path / "go").touch()
            assert read_line(process) == b"AFTER\n"
            assert process.wait(60) == 9
        finally:
            watcher.resume()
        # It completes the evidence when it goes on.
        wait_until((tmp_path / "ev/incidents/000/report.json").exists)


def test_code_does_not_wait_for_a_relay_that_is_stopped(tmp_path: Path) -> None:
    with broken(tmp_path, "ending.Ending.report") as process:
        own = ours(process.pid)
        relay = next(one for one in own if any("relay.py" in part for part in one.cmdline()))
        relay.suspend()
        try:
            (tmp_path / "go").touch()
            assert process.wait(120) == 9
        finally:
            relay.resume()
        assert read_line(process) == b"AFTER\n"  # late, and not lost


def test_signals_do_not_wait_for_a_sentinel_that_is_stopped(tmp_path: Path) -> None:
    script = "trap 'echo GOT; exit 3' TERM; echo READY; while :; do sleep 0.05; done"
    with started(tmp_path, script) as process:
        assert read_line(process) == b"READY\n"
        own = ours(process.pid)
        sentinel = next(one for one in own if os.getpgid(one.pid) == process.pid)
        sentinel.suspend()
        try:
            process.send_signal(signal.SIGTERM)
            assert read_line(process) == b"GOT\n"
            assert process.wait(60) == 3
        finally:
            sentinel.resume()


def test_job_whose_reader_is_slow_is_waited_for(tmp_path: Path) -> None:
    lines = b"".join(b"line %d\n" % i for i in range(40_000))
    (tmp_path / "lines").write_bytes(lines)
    with broken(tmp_path, "ending.Ending.report") as process:
        # More than the pipe of the caller holds, and what a whystuck that is not patient would cut.
        (tmp_path / "go").touch()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(4)
        assert process.stdout is not None
        assert process.stdout.read() == b"AFTER\n" + lines
        assert process.wait(60) == 9
