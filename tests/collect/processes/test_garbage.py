"""Garbage collectors of real processes, seen from outside."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from whystuck.collect.processes.garbage import GarbageTracker
from whystuck.collect.processes.proc_files import read_state

# Tells where to look, and works until its input is closed.
JOB = """
import gc, sys, threading
from whystuck.probe.collector import find_collector
held = [[] for _ in range({objects})]
print(find_collector(), flush=True)
threading.Thread(target=sys.stdin.read, daemon=True).start()
while True:
    {work}
"""
FULL = "gc.collect()"
YOUNG = "gc.collect(0)"
# Each look is one of a fifth of a second for the tracker, whose clock is ours.
LOOKS = 400


@contextmanager
def _process(objects: int, work: str) -> Iterator[tuple[int, int]]:
    code = JOB.format(objects=objects, work=work)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()


def _look(pid: int, address: int, times: Iterator[int]) -> GarbageTracker:
    tracker = GarbageTracker("n0", lambda _: address)
    for at in times:
        # Its own cost may have it rest for longer.
        tracker.look([pid], 10.0 * at)
    return tracker


def test_full_collections_are_seen_and_counted() -> None:
    with _process(500_000, FULL) as (pid, address):
        tracker = GarbageTracker("n0", lambda _: address)
        for at in itertools.count(1):
            tracker.look([pid], 10.0 * at)
            looked = tracker._by_pid[pid]
            if looked.seen >= 20 and looked.full >= 10:
                break

    record = tracker.find(pid)
    assert record is not None
    assert record.node == "n0"
    assert record.points
    assert looked.seen <= looked.looks


def test_young_collections_are_none() -> None:
    with _process(1000, YOUNG) as (pid, address):
        looked = _look(pid, address, iter(range(1, LOOKS)))._by_pid[pid]

    assert (looked.looks, looked.seen) == (LOOKS - 1, 0)


@pytest.mark.parametrize("offset", [1 << 46, 16, -800])
def test_wrong_address_tells_nothing(offset: int) -> None:
    with _process(1000, FULL) as (pid, address):
        record = _look(pid, address + offset, iter(range(1, LOOKS))).find(pid)

    assert record is not None
    assert all(seen == 0 for _, _, seen, _ in record.points)


def test_process_that_is_gone_tells_nothing() -> None:
    with _process(1000, FULL) as (pid, address):
        pass

    assert _look(pid, address, iter(range(1, 5))).find(pid).points == []  # type: ignore[union-attr]


def test_process_that_may_not_be_read_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel with Yama writes a line about each attempt."""
    with _process(1000, FULL) as (pid, address):
        tries: list[str] = []
        real = os.open

        def refuse(path: str, flags: int) -> int:
            if not path.endswith("/mem"):
                return real(path, flags)
            tries.append(path)
            raise PermissionError(path, flags)

        monkeypatch.setattr(os, "open", refuse)
        record = _look(pid, address, iter(range(1, 9))).find(pid)

    assert tries == [f"/proc/{pid}/mem"]
    assert record is not None
    assert record.points == []


# A process that starts another one waits in the kernel until that one has opened its input.
BLOCKED = """
import os, sys
from whystuck.probe.collector import find_collector
print(find_collector(), flush=True)
os.posix_spawn("/bin/true", ["true"], {{}}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, {fifo!r}, 0, 0)])
sys.stdin.read()
"""


def test_memory_of_a_process_that_waits_in_the_kernel_is_not_read(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code = BLOCKED.format(fifo=str(fifo))
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        address = int(process.stdout.readline())
        while read_state(process.pid) != "D":
            assert process.poll() is None
        blocked = _look(process.pid, address, iter(range(1, 5)))._by_pid[process.pid].looks
        os.close(os.open(fifo, os.O_WRONLY))
        while read_state(process.pid) == "D":
            assert process.poll() is None
        free = _look(process.pid, address, iter(range(1, 5)))._by_pid[process.pid].looks
        process.stdin.close()

    assert (blocked, free) == (0, 4)
