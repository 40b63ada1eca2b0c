"""Polls that are noted in batches, as the parts of an agent put it together."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from whystuck.agent.interfaces import FabricPoll
from whystuck.agent.ondemand.tracer import OnDemandTracer
from whystuck.agent.poll_batcher import NoteLater
from whystuck.agent.processes.registry import ProcessRegistry
from whystuck.evidence.agent import ProcessEntry, TraceRequest


class Rig:
    """A registry and a tracer behind it."""

    def __init__(self, top: Path, pid: int) -> None:
        self.ended: list[ProcessEntry] = []
        self.registry = ProcessRegistry(node="n1", on_end=self.ended.append)
        self.tracer = OnDemandTracer(self.registry, raw_root=top / "raw")
        self.later = NoteLater(self.tracer, lambda: self.tracer.is_idle)
        self.registry.before_read = self.later.flush
        self.pid = pid
        self.wants = -1
        self.time_ns = time.time_ns() - 10_000_000_000

    def ask(self, *, wants: int = 3) -> str:
        """Poll a second after the last time, as an endpoint hands it on."""
        self.time_ns += 1_000_000_000
        if wants == self.wants and self.later.repeat("/x", self.time_ns):
            return ""
        self.wants = wants
        return self.later.answer(
            FabricPoll(
                address="/x",
                pid=self.pid,
                uid=os.getuid(),
                told_pids=(self.pid,),
                job_number=0,
                wants=wants,
                time_ns=self.time_ns,
            )
        )


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as one:
        yield one
        one.kill()


def test_what_is_read_is_what_the_last_poll_told(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    rig = Rig(tmp_path, process.pid)
    for _ in range(3):
        assert rig.ask() == ""
        (told,) = rig.registry.list_all()
        assert told.seen_ns == rig.time_ns
    assert rig.ask() == ""
    found = rig.registry.find(process.pid)
    assert found is not None
    assert found.seen_ns == rig.time_ns
    # Something new is noted at once, and after what came before it.
    rig.ask()
    assert rig.ask(wants=1) == ""
    assert [one.is_busy for one in rig.registry.list_all()] == [True]
    rig.ask(wants=1)
    rig.ask(wants=3)
    assert [one.is_busy for one in rig.registry.list_all()] == [False]


def test_who_is_to_be_told_something_is_told_at_the_next_poll(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    async def main() -> None:
        rig = Rig(tmp_path, process.pid)
        for _ in range(4):
            rig.ask()
        assert rig.tracer.is_idle
        rig.tracer.start(TraceRequest(id="a", duration_ms=100))
        assert not rig.tracer.is_idle
        assert "ACTIVITIES_DURATION_MSECS=100" in rig.ask()
        rig.tracer.close()

    asyncio.run(main())


def test_polls_that_wait_do_not_bring_back_who_has_ended(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    rig = Rig(tmp_path, process.pid)
    for _ in range(4):
        rig.ask()
    process.kill()
    process.wait()
    assert rig.registry.list_all() == []
    assert [one.seen_ns for one in rig.ended] == [rig.time_ns]


def test_no_more_than_some_wait(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    rig = Rig(tmp_path, process.pid)
    for _ in range(3000):
        rig.ask()
    assert not rig.later.repeat("/y", rig.time_ns)
    assert len(rig.later._waiting) <= 1024
