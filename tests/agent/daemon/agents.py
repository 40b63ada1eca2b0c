"""Real agents for tests: started as a user would, awaited by their record."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from whystuck.agent.agent_folder import read_agent
from whystuck.evidence.agent import AgentRecord

LIMIT_S = 60


def wait_until(holds: Callable[[], object], what: str) -> None:
    """Wait for a condition, with a generous limit."""
    until_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < until_s, f"waited {LIMIT_S} s for: {what}"
        time.sleep(0.02)


class RunningAgent:
    """An agent in a process of its own; stderr is its log."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self._log = folder.parent / f"{folder.name}-{time.monotonic_ns()}.log"
        command = [sys.executable, "-m", "whystuck", "agent"]
        where = () if "--job-dir" in options else ("--folder", str(folder))
        environment = {key: one for key, one in os.environ.items() if "WHYSTUCK" not in key}
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, *where, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def record(self) -> AgentRecord:
        record = read_agent(self.folder)
        assert record
        return record

    def wait_for_start(self) -> None:
        def has_started() -> bool:
            assert self.process.poll() is None, self.log
            record = read_agent(self.folder)
            return record is not None and record.pid == self.process.pid

        wait_until(has_started, "the record of the agent")

    def wait_for_log(self, text: str) -> None:
        wait_until(lambda: text in self.log, f"{text!r} in the log")

    def wait_for_end(self) -> int:
        try:
            return self.process.wait(LIMIT_S)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait_for_end()


@contextmanager
def running_agent(folder: Path, *options: str) -> Iterator[RunningAgent]:
    agent = RunningAgent(folder, *options)
    try:
        agent.wait_for_start()
        yield agent
    finally:
        if agent.process.poll() is None:
            agent.process.kill()
            agent.wait_for_end()


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder whose path Kineto can take; that of pytest is often too long."""
    with tempfile.TemporaryDirectory(prefix="wa-", dir="/tmp") as name:
        yield Path(name)
