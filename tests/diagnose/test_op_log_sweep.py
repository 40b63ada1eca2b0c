"""Random small jobs on gloo with a known fault: no innocent rank may be named with confidence."""

from __future__ import annotations

from random import Random

import pytest
from tests.diagnose.op_scenes import Logged
from tests.diagnose.scenes import MODULE, at
from tests.parse.ops.op_logs import ASYNC, MS

from whystuck.evidence.finding import Confidence, Report, Severity

OPS = ["all_reduce", "reduce_scatter_base", "all_gather", "barrier", "broadcast"]
SEEDS = 40


class RandomJob:
    """Ranks that repeat a few ops and messages, and then part; some jobs have dumps, too."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.world = random.choice([2, 3, 4, 6])
        self.logged = Logged(self.world, capacity=random.choice([16, 64, 256]))
        self.culprit = random.randrange(self.world)
        self.others = [rank for rank in range(self.world) if rank != self.culprit]
        self.ops = random.choices(OPS, k=random.randint(2, 4))
        self.steps = random.randint(3, 40)
        has_messages = random.random() < 0.5
        has_dumps = random.random() < 0.5
        self.ranks_with_dumps = range(self.world) if has_dumps else range(0)
        for step in range(self.steps):
            for number, op in enumerate(self.ops):
                self.collective(range(self.world), op, 10 + number, step=step)
            if has_messages:
                self.pass_round(step)

    def collective(
        self, ranks: range | list[int], op: str, line: int, *, step: int, pending: bool = False
    ) -> None:
        self.logged.op(ranks, op, line=line, step=step, takes_ns=None if pending else MS)
        # The recorder of gloo has several rows for one reduce_scatter.
        times, name = (3, "all_reduce") if op == "reduce_scatter_base" else (1, op)
        for rank in ranks:
            if rank in self.ranks_with_dumps:
                frames = [at("/job/train.py", line), MODULE]
                self.logged.job.ops([rank], name, frames, times=times, pending=pending)

    def pass_round(self, step: int) -> None:
        for rank in range(self.world):
            flags = self.random.choice([0, ASYNC])
            takes_ns = self.random.choice([None, MS]) if flags else MS
            peer = (rank + 1) % self.world
            self.logged.op([rank], "send", peer=peer, flags=flags, step=step, takes_ns=takes_ns)
            self.logged.op([rank], "recv", peer=(rank - 1) % self.world, step=step, line=41)

    def part(self, fault: str) -> dict[str, list[int]]:
        """Let the fault happen; return the right answers."""
        step, others, culprit = self.steps, self.others, self.culprit
        if fault == "ring":
            for rank in range(self.world):
                peer = (rank + 1) % self.world
                self.logged.waits([rank], "recv", peer=peer, tag=9, step=step)
            return {"H109": list(range(self.world))}
        if fault == "unmatched":
            waiting = self.random.choice(others)
            self.logged.waits([waiting], "recv", peer=culprit, tag=9, step=step)
            there = [rank for rank in range(self.world) if rank != waiting]
            self.collective(there, "all_reduce", 60, step=step, pending=True)
            return {"H110": [culprit]}
        if fault == "extra":
            self.collective([culprit], "barrier", 70, step=step, pending=True)
        self.collective(others, "all_reduce", 60, step=step, pending=True)
        if fault == "never":
            return {"H101": [culprit]}
        return {"H102": [culprit], "H105": [culprit], "H127": others}


def list_sure(report: Report) -> list[tuple[str, list[int]]]:
    return [
        (finding.code, finding.culprits.ranks)
        for finding in report.findings
        if finding.confidence is not Confidence.POSSIBLE and finding.severity is not Severity.NOTE
    ]


@pytest.mark.parametrize("fault", ["never", "extra", "ring", "unmatched"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_fault_is_found_and_nobody_else_is_named(seed: int, fault: str) -> None:
    job = RandomJob(seed)
    truth = job.part(fault)
    found = list_sure(job.logged.report())

    assert all(truth.get(code) == ranks for code, ranks in found if ranks)
    # Which of two ranks made a call too many cannot always be told.
    assert found or fault == "extra"


@pytest.mark.parametrize("fault", ["never", "extra", "ring", "unmatched"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_nobody_else_is_named_where_a_log_is_missing(seed: int, fault: str) -> None:
    job = RandomJob(seed)
    truth = job.part(fault)
    job.logged.job.entries.clear()
    job.logged.without(job.others[0])

    assert all(truth.get(code) == ranks for code, ranks in list_sure(job.logged.report()) if ranks)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_job_that_goes_on_has_no_fault(seed: int) -> None:
    assert list_sure(RandomJob(seed).logged.report()) == []
