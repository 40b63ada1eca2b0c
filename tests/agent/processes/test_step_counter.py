"""The count of steps in memory of another process, which may hold anything."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from whystuck.agent.processes.step_counter import StepCounter, StepsAt, open_counter
from whystuck.probe.shared_steps import KEPT, SIZE_BYTES, VERSION, SharedSteps

S = 1_000_000_000


@contextmanager
def counter_with(data: bytes) -> Iterator[StepCounter]:
    """A counter that holds what is given."""
    descriptor = os.memfd_create("whystuck-steps")
    os.write(descriptor, data)
    counter = StepCounter(descriptor)
    try:
        yield counter
    finally:
        counter.close()


def words(count: int, times_ns: dict[int, int], version: int = VERSION) -> bytes:
    """Return what a probe writes that has seen the ends of some steps."""
    kept = [0] * KEPT
    for step, time_ns in times_ns.items():
        kept[step % KEPT] = time_ns
    return struct.pack(f"={KEPT + 2}Q", version, count, *kept)


def test_probe_and_agent_agree_and_nobody_can_cut_what_is_written_to() -> None:
    # One in a process only: it is kept for good.
    shared = SharedSteps()
    counter = open_counter(os.getpid())
    assert counter is not None
    assert counter.read() == []
    for step in range(1, 40):
        shared.note(step)
        found = counter.read()
        assert found[-1].steps == step
        before = {max(1, step - back) for back in (14, 8, 4)} - {step}
        assert [one.steps for one in found[:-1]] == sorted(before)
        assert found == sorted(found, key=lambda one: one.time_ns)
    # Some steps at once: the places between are those of no older step.
    time.sleep(0.01)
    for step in (43, 47, 51, 55, 100):
        before_ns = time.time_ns()
        shared.note(step)
        older = [one.time_ns for one in counter.read()[:-1] if one.steps > 39]
        assert all(before_ns - S < one < time.time_ns() for one in older)
        assert [one.time_ns for one in counter.read()] == sorted(
            one.time_ns for one in counter.read()
        )
    assert [one.steps for one in counter.read()] == [100]
    with pytest.raises(PermissionError):
        os.truncate(f"/proc/self/fd/{counter.descriptor}", 8)
    shared.leave()
    shared.note(101)
    assert counter.read()[-1].steps == 100
    counter.close()
    assert counter.read() == []


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (words(20, {20: 9 * S, 6: 2 * S}), [StepsAt(6, 2 * S), StepsAt(20, 9 * S)]),
        (
            words(20, {20: 9 * S, 16: 8 * S, 12: 7 * S, 6: 2 * S}),
            [StepsAt(6, 2 * S), StepsAt(12, 7 * S), StepsAt(16, 8 * S), StepsAt(20, 9 * S)],
        ),
        # The first steps were not seen, or the clock was set back: only the newest counts.
        (words(20, {20: 9 * S}), [StepsAt(20, 9 * S)]),
        (words(20, {20: 9 * S, 6: 10 * S}), [StepsAt(20, 9 * S)]),
        (words(1, {1: 9 * S}), [StepsAt(1, 9 * S)]),
        (words(20, {}), []),
        (words(0, {0: 9 * S}), []),
        (words(2**64 - 1, {2**64 - 1: S}), []),
        (words(20, {20: 2**64 - 1}), []),
        (words(20, {20: 9 * S}, version=2), []),
        (words(20, {20: 9 * S})[:-8], []),
        (b"", []),
    ],
)
def test_what_makes_no_sense_is_no_count(data: bytes, found: list[StepsAt]) -> None:
    with counter_with(data) as counter:
        assert counter.read() == found


PRETENDS = """
import os, sys
fd = os.memfd_create(sys.argv[1])
os.write(fd, bytes(int(sys.argv[2])))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("name", "size"), [("other", SIZE_BYTES), ("whystuck-steps", 4096)])
def test_process_with_something_else_has_no_counter(name: str, size: int) -> None:
    command = [sys.executable, "-c", PRETENDS, name, str(size)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert open_counter(process.pid) is None
        process.communicate()
    assert open_counter(process.pid) is None
