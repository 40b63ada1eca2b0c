"""Real processes that do what they are told, line by line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from whystuck.agent.metrics.rank.labels import RankProcess
from whystuck.collect.processes.proc_files import read_start

CHILD = """
import sys, threading, time
kept = []
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class Child:
    """A Python process that runs each line it is sent."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.run("pass")

    def run(self, line: str) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(line + "\n")
        assert self.process.stdout.readline() == "done\n"

    def as_rank(self, rank: int = 0, job: str = "job") -> RankProcess:
        start = read_start(self.process.pid)
        assert start
        return RankProcess(
            pid=self.process.pid, job=job, rank=rank, parent_pid=start[0], started_ticks=start[1]
        )


@contextmanager
def child() -> Iterator[Child]:
    made = Child()
    try:
        yield made
    finally:
        made.process.kill()
        made.process.communicate()
