"""Builds evidence of small jobs of which each rank has an op log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.diagnose.scenes import Job
from tests.parse.ops.op_logs import MS, Ring

from whystuck.diagnose.engine import diagnose
from whystuck.evidence.finding import Finding, Report
from whystuck.evidence.model import Evidence, Topology
from whystuck.parse.ops.header import LogFile
from whystuck.parse.ops.join import join_op_logs
from whystuck.parse.ops.log import parse_op_log
from whystuck.parse.ops.table import merge_op_logs


@dataclass
class Logged:
    """A job of some ranks with op logs; ``job`` holds what else is known of it."""

    world: int = 4
    capacity: int = 64
    rings: dict[int, Ring] = field(default_factory=dict)
    job: Job = field(default_factory=Job)
    nodes: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.job.world = self.world
        for rank in range(self.world):
            self.rings[rank] = Ring(rank, self.world, capacity=self.capacity)
            self.rings[rank].group()

    def op(self, ranks: Iterable[int], op: str = "all_reduce", **more: Any) -> Logged:
        for rank in ranks:
            self.rings[rank].op(op, **more)
        return self

    def steps(self, times: int = 5) -> Logged:
        for _ in range(times):
            self.op(range(self.world))
        return self

    def waits(self, ranks: Iterable[int], op: str = "all_reduce", **more: Any) -> Logged:
        return self.op(ranks, op, takes_ns=None, **more)

    def without(self, *ranks: int) -> Logged:
        for rank in ranks:
            del self.rings[rank]
        return self

    def evidence(self) -> Evidence:
        known = self.job.evidence()
        ops = merge_op_logs(
            LogFile(rank, f"n0/rank-{rank}/ops.ring", parse_op_log(ring.data()))
            for rank, ring in self.rings.items()
        )
        joined = join_op_logs(known.collectives, ops)
        return Evidence(
            **{
                name: getattr(known, name)
                for name in ("incident", "stacks", "processes", "beats", "exceptions", "exits",
                             "fatals", "sources", "peer_waits", "peer_counts")
            },
            topology=Topology(
                self.world, node_by_rank=self.nodes, members_by_group=joined.members
            ),
            collectives=joined.collectives,
            ops=ops,
            gaps=joined.gaps,
        )  # fmt: skip

    def report(self) -> Report:
        return diagnose(self.evidence())

    def finding(self) -> Finding:
        """Return the only finding there is."""
        (finding,) = self.report().findings
        return finding


__all__ = ["MS", "Logged"]
