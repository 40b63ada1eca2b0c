"""Work that hangs, dies or floods costs nobody more than its deadline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from whystuck.check.apart import Apart, Tell, start_apart, wait_apart

DEADLINE_S = 0.3


def run(*works: object, deadline_s: float = 30.0) -> list[Apart]:
    return list(wait_apart([start_apart(work, deadline_s) for work in works]))  # type: ignore[arg-type]


def hang(tell: Tell) -> None:
    tell(b"begun")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    while True:
        time.sleep(60)


def test_what_is_told_comes_back() -> None:
    (work,) = run(lambda tell: (tell(b"one"), tell(b"two")))

    assert work.lines == [b"one", b"two"]
    assert not work.is_late


def test_work_that_hangs_is_ended_at_its_deadline_and_keeps_what_it_told() -> None:
    (work,) = run(hang, deadline_s=DEADLINE_S)

    assert work.is_late
    assert work.lines == [b"begun"]
    assert not Path(f"/proc/{work.pid}").exists()


def test_children_of_work_that_hangs_are_ended_too() -> None:
    def start(tell: Tell) -> None:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        tell(str(child.pid).encode())
        hang(tell)

    (work,) = run(start, deadline_s=3.0)

    # It was killed; on a busy machine, its end may come some moments later.
    child = int(work.lines[0])
    if psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        psutil.Process(child).wait(60)


def test_work_that_dies_ends_without_a_line() -> None:
    (work,) = run(lambda _tell: os.kill(os.getpid(), signal.SIGKILL))

    assert work.lines == []
    assert not work.is_late


def test_work_that_raises_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    def fail(tell: Tell) -> None:
        raise ValueError("no")

    (work,) = run(fail)

    assert work.lines == []
    assert capfd.readouterr() == ("", "")


def test_work_holds_nothing_that_others_wait_for() -> None:
    # GIVEN a pipe of ours, as the one that a caller reads our output from
    reader, writer = os.pipe()
    work = start_apart(hang, 30.0)

    os.close(writer)
    ended = os.read(reader, 1)

    assert ended == b""
    os.close(reader)
    os.killpg(work.pid, signal.SIGKILL)
    list(wait_apart([work]))


def test_a_quick_one_is_told_before_a_slow_one() -> None:
    order = [
        work.lines
        for work in wait_apart([start_apart(hang, 1.0), start_apart(lambda t: t(b"done"), 1.0)])
    ]

    assert order == [[b"done"], [b"begun"]]
