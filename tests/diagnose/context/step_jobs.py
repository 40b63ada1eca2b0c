"""Jobs made of steps in op logs: ranks work, meet in ops, and wait for each other."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.diagnose.op_scenes import Logged
from tests.parse.ops.op_logs import ASYNC, MS

from whystuck.evidence.finding import Report
from whystuck.evidence.live import ExitRecord
from whystuck.evidence.model import Incident

# The work of a rank in a step in ms; the first argument is the rank, the second the step.
Work = Callable[[int, int], float]
START_NS = 2000 * MS


@dataclass
class Steps:
    """A job whose ranks work and wait: each method moves their clocks on."""

    world: int = 4
    seed: int = 0
    noise_ms: float = 1.0
    transfer_ms: float = 1.0
    logged: Logged = field(init=False)
    now_ns: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.logged = Logged(self.world, capacity=4096)
        self.random = random.Random(self.seed)
        self.now_ns = [float(START_NS)] * self.world
        self.pending_ns = [float(START_NS)] * self.world
        self.groups: dict[tuple[tuple[int, ...], int], int] = {}

    def work(self, rank: int, amount_ms: float) -> None:
        """Let a rank work; the scheduler adds some time of its own."""
        self.now_ns[rank] += (max(amount_ms, 0.0) + self.random.random() * self.noise_ms) * MS

    def work_all(self, work: Work, step: int) -> None:
        for rank in range(self.world):
            self.work(rank, work(rank, step))

    def meet(
        self,
        ranks: Sequence[int] = (),
        *,
        is_async: bool = False,
        lines: Sequence[int] = (),
        step: int = 0,
    ) -> None:
        """Let ranks come to an op, each from its line; they wait for it, unless it is async."""
        members = tuple(ranks) or tuple(range(self.world))
        came_ns = {rank: self.now_ns[rank] for rank in members}
        over_ns = max(came_ns.values()) + self.transfer_ms * MS
        for place, rank in enumerate(members):
            self.logged.op(
                [rank],
                group=self._find_group(rank, members),
                line=lines[place] if lines else 10,
                step=step,
                at_ns=int(came_ns[rank]),
                takes_ns=int(over_ns - came_ns[rank]),
                flags=ASYNC if is_async else 0,
            )
            self.pending_ns[rank] = over_ns
            self.now_ns[rank] = came_ns[rank] + 0.1 * MS if is_async else over_ns

    def _find_group(self, rank: int, members: tuple[int, ...]) -> int:
        """Return the number of a group in the log of a rank."""
        if len(members) == self.world:
            return 1
        known = self.groups.setdefault((members, rank), 0)
        if not known:
            name = "-".join(str(member) for member in members)
            known = self.logged.rings[rank].group(name, list(members))
            self.groups[members, rank] = known
        return known

    def wait(self) -> None:
        """Let all ranks wait for what they began."""
        for rank in range(self.world):
            self.now_ns[rank] = max(self.now_ns[rank], self.pending_ns[rank])

    def report(self) -> Report:
        """Judge the job, which ended well."""
        job = self.logged.job
        job.incident = Incident(kind="files")
        job.exits = [ExitRecord(rank=rank, pid=100 + rank, code=0) for rank in range(self.world)]
        return self.logged.report()


def train(
    job: Steps,
    work: Work,
    *,
    ops: int = 1,
    steps: int = 60,
    buckets: int = 0,
    bucket_ms: float = 3.0,
    between_ms: float = 0,
    has_steps: bool = False,
) -> Steps:
    """Train: work, buckets of gradients as in DDP, then ops one after the other."""
    for step in range(steps):
        job.work_all(work, step)
        for bucket in range(buckets):
            if bucket:
                job.work_all(lambda _rank, _step: bucket_ms, step)
            job.meet(is_async=True, step=step * has_steps)
        job.wait()
        for op in range(ops):
            if op:
                job.work_all(lambda _rank, _step: between_ms, step)
            job.meet(step=step * has_steps)
    return job


def slow(culprit: int, by_ms: float, base_ms: float = 15.0) -> Work:
    """Return work of which one rank has more in each step."""
    return lambda rank, _step: base_ms + (by_ms if rank == culprit else 0.0)
