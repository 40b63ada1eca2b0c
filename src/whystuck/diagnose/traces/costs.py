"""What traces tell of the cost of each cause, so that no time is charged to two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.diagnose.policy import Policy
from whystuck.diagnose.shared import cached_property
from whystuck.diagnose.traces.columns import CAUSES, has_columns, read_table
from whystuck.diagnose.traces.step_time import (
    RankTime,
    Times,
    get_column,
    measure_time,
    sum_by_rank,
)
from whystuck.evidence.finding import Gap
from whystuck.evidence.table import Column, Table
from whystuck.evidence.traces.tables import TraceSummary

_NS_PER_MS = 1e6
# Named ranks must be fewer than the others, or else they are the rule and not the exception.
_HALF = 2


@dataclass(frozen=True)
class Cost:
    """What one cause costs each rank, in ns; no ns is in the costs of two causes.

    ``share`` is that of the time of all ranks. ``uneven`` are the ranks that it costs much more
    than their peers, in which case ``share_on_ranks`` is the share of their time.
    """

    time: RankTime
    ns: Times
    uneven: tuple[int, ...] = ()

    @property
    def share(self) -> float:
        """The share of the time of all ranks."""
        wall = int(self.time.wall_ns.sum())
        return float(self.ns.sum() / wall) if wall else 0.0

    @property
    def share_on_ranks(self) -> float:
        """The share of the time of the uneven ranks, or of all where none are."""
        if not self.uneven:
            return self.share
        mine = np.isin(self.time.ranks, self.uneven)
        return float(self.ns[mine].sum() / max(int(self.time.wall_ns[mine].sum()), 1))

    @property
    def impact(self) -> float:
        """The share that tells how much it matters."""
        return max(self.share, self.share_on_ranks)

    def measures(self) -> dict[str, float]:
        """Return the figures that every finding about traces has."""
        mine = np.isin(self.time.ranks, self.uneven) if self.uneven else self.ns >= 0
        made = {"share_of_step": round(self.share, 4)}
        if self.uneven:
            made["share_on_ranks"] = round(self.share_on_ranks, 4)
        steps = int(self.time.steps[mine].sum())
        lost_ms = float(self.ns[mine].sum()) / _NS_PER_MS
        if steps:
            return made | {"lost_ms_per_step": round(lost_ms / steps, 4)}
        return made | {"lost_ms": round(lost_ms / max(int(mine.sum()), 1), 4)}


def find_uneven(time: RankTime, ns: Times, policy: Policy) -> tuple[int, ...]:
    """Find the few ranks that a cause costs much more than the middle one of their peers."""
    if len(time) < _HALF:
        return ()
    share = time.share(ns)
    low = float(np.quantile(share, 0.5, method="lower"))
    bar = max(low * policy.uneven_ratio, low + policy.uneven_share)
    ranks = time.ranks[(share > bar) & (time.ranks >= 0)]
    return tuple(ranks.tolist()) if len(ranks) * _HALF <= len(time) else ()


class TraceFacts:
    """What the tables of traces say together. Everything is worked out on first use."""

    def __init__(self, summary: TraceSummary, policy: Policy) -> None:
        self.summary = summary
        self.policy = policy
        self._tables: dict[str, Table] = {}

    def get(self, name: str) -> Table:
        """Return a table with all columns that rules read; without rows when it is missing."""
        if name not in self._tables:
            self._tables[name] = read_table(self.summary, name)
        return self._tables[name]

    @cached_property
    def time(self) -> RankTime:
        """Where the time of each rank went."""
        return measure_time(self.summary)

    @property
    def has_device(self) -> bool:
        """Whether the device of any rank did any work."""
        return bool(self.time.has_device.any())

    @cached_property
    def device_span_ns(self) -> Times:
        """From the first work of a rank's device to its last; 0 where it has none, or several."""
        devices, ranks = self.get("temporal_breakdown"), self.time.ranks
        if not len(devices):
            return np.zeros_like(ranks)
        found, count = np.unique(devices["rank"], return_counts=True)
        has_one = np.isin(ranks, found[count == 1])
        return np.where(has_one, sum_by_rank(devices, "wall_ns", ranks), 0)

    @cached_property
    def _part_in_steps(self) -> NDArray[np.float64]:
        """What part of the trace of each rank lies in its steps.

        Tables over the whole window begin with the first profiler step. Before the first step of
        an optimizer and after its last one the trace may have parts of others.
        """
        steps = self.get("steps")
        rows = (steps["step"] >= 0) & (steps["mark"] == "optimizer")
        ranks = self.time.ranks
        lengths = Table({"rank": steps["rank"], "ns": steps["end_ns"] - steps["start_ns"]})
        inside = sum_by_rank(lengths, "ns", ranks, rows)
        spans = {one.rank: one.ended_ns - one.started_ns for one in self.summary.ranks}
        whole = np.array([spans.get(rank, 0) for rank in ranks.tolist()], dtype=np.float64)
        is_known = (inside > 0) & (whole > 0)
        part: NDArray[np.float64] = np.where(is_known, inside / np.maximum(whole, 1), 1.0)
        return np.minimum(part, 1.0)

    def _sum_window(self, name: str, column: str, rows: Column | None = None) -> Times:
        """Add up a column of a table over the whole window, for the steps of each rank."""
        found = sum_by_rank(self.get(name), column, self.time.ranks, rows)
        return np.rint(found * self._part_in_steps).astype(np.int64)

    @property
    def has_steps(self) -> bool:
        """Whether shares are those of steps, for all ranks."""
        return bool(len(self.time)) and bool((self.time.steps > 0).all())

    @property
    def is_steady(self) -> bool:
        """Whether all ranks have steps after the first ones of the job."""
        numbers = self.get("step_time")
        is_warm = bool(len(numbers)) and int(numbers["step"].max()) >= self.policy.warm_up_steps
        return self.has_steps and is_warm

    @property
    def is_partial(self) -> bool:
        """Whether ranks of the job are known to lack a trace, or there is only one."""
        world_size = max((header.world_size for header in self.summary.ranks), default=0)
        return len(self.time) < max(world_size, 2)

    @property
    def can_judge(self) -> bool:
        """Whether it can be told that nothing is wrong: only with the work of a device.

        And with all that its time may have gone on.
        """
        columns = self.summary.get("step_time").columns
        return self.has_device and all(f"{name}_ns" in columns or not columns for name in CAUSES)

    @property
    def knows_late_ranks(self) -> bool:
        """Whether ranks that are late were looked for."""
        return has_columns(self.summary, "straggler")

    @cached_property
    def data_wait(self) -> Cost:
        """The device waits, and the host waits for input."""
        return self._cost(self.time.parts["data_wait"])

    @cached_property
    def is_recompilation(self) -> NDArray[np.bool_]:
        """The rows of `compilations` in steps that should be steady.

        The first traced step of a rank and the first steps of the job may compile.
        """
        table = self.get("compilations")
        if not len(table):
            return np.zeros(0, dtype=np.bool_)
        step, first = table["step"], self._first_steps
        rank_first = np.array([first.get(rank, 0) for rank in table["rank"].tolist()])
        steady: NDArray[np.bool_] = (step > rank_first) & (step >= self.policy.warm_up_steps)
        return steady

    @property
    def _first_steps(self) -> dict[int, int]:
        table = self.get("step_time")
        if not len(table):
            table = self.get("steps")
        first: dict[int, int] = {}
        if len(table):
            for rank, step in zip(table["rank"].tolist(), table["step"].tolist(), strict=True):
                if step >= 0:
                    first[rank] = min(step, first.get(rank, step))
        return first

    @cached_property
    def compilation(self) -> Cost:
        """The host compiles in a step in which nothing should be new."""
        return self._cost(self._sum_compile_ns(self.is_recompilation))

    @cached_property
    def compile_ns(self) -> Times:
        """Time in which the device had nothing to do as the host compiled, at any step."""
        return self._sum_compile_ns(np.ones(len(self.is_recompilation), dtype=np.bool_))

    def _sum_compile_ns(self, mask: NDArray[np.bool_]) -> Times:
        steps = self.get("step_time")
        if not mask.any() or not len(steps):
            return np.zeros_like(self.time.wall_ns)
        rows = self.get("compilations").take(mask)
        # A step cannot compile longer than it has time.
        key = rows["rank"].astype(np.int64) << 32 | rows["step"].astype(np.int64)
        keys, place = np.unique(key, return_inverse=True)
        spent = np.bincount(place, weights=np.maximum(rows["sum_ns"], 0))
        own = steps["rank"].astype(np.int64) << 32 | steps["step"].astype(np.int64)
        at = np.minimum(np.searchsorted(keys, own), len(keys) - 1)
        spent_by_step = np.where(keys[at] == own, spent[at], 0)
        # Where no device works, the ops of the host are the computation, and compilers among them.
        has_device = np.isin(steps["rank"], self.time.ranks[self.time.has_device])
        free = sum(get_column(steps, f"{name}_ns") for name in ("host", "launch", "idle"))
        free = free + np.where(has_device, 0, get_column(steps, "compute_ns"))
        lost = np.minimum(spent_by_step, np.maximum(free, 0)).astype(np.int64)
        made = Table({"rank": steps["rank"], "lost_ns": lost})
        return sum_by_rank(made, "lost_ns", self.time.ranks)

    @cached_property
    def sync(self) -> Cost:
        """The device has nothing to do, as the host waited for it before it gave it more."""
        after = sum_by_rank(self.get("host_syncs"), "idle_after_ns", self.time.ranks)
        left = np.maximum(self.time.idle_ns - self.compile_ns - self.queued_idle_ns, 0)
        lost = self.time.parts["sync"] + np.minimum(after, left)
        return self._cost(np.where(self.time.has_device, lost, 0))

    @cached_property
    def queued_idle_ns(self) -> Times:
        """Idle time of devices that had work in their queue: no launch was late."""
        queued = self._sum_window("idle_summary", "kernel_wait_ns")
        queued += self._sum_window("idle_summary", "other_ns")
        lost: Times = np.minimum(queued, self.time.idle_ns - self.compile_ns)
        return np.maximum(lost, 0)

    @cached_property
    def launch(self) -> Cost:
        """The device has nothing to do, as the host launches too late, for no other reason."""
        time = self.time
        left = time.idle_ns - self.compile_ns - self.queued_idle_ns
        left -= self.sync.ns - time.parts["sync"]
        # Before its first work and after its last, the device waits for nothing.
        if len(self.get("idle_summary")):
            left = np.minimum(left, self._sum_window("idle_summary", "host_wait_ns"))
        is_told = time.has_device & ~np.isin(time.ranks, self.late_ranks)
        return self._cost(np.where(is_told, np.maximum(left, 0), 0))

    @cached_property
    def late_rows(self) -> Table:
        """Ranks that come last to collectives, more than by chance."""
        return self.get("straggler")

    @property
    def late_ranks(self) -> tuple[int, ...]:
        """The ranks of ``late_rows``."""
        return tuple(self.late_rows["rank"].tolist()) if len(self.late_rows) else ()

    @cached_property
    def late_suffered_ns(self) -> Times:
        """How long each rank waited for late ranks, in all steps and hidden or not."""
        ranks, blame = self.time.ranks, self.get("rank_blame")
        if not self.late_ranks or not len(blame):
            return np.zeros(len(ranks), dtype=np.int64)
        # What a late rank held up alone is less where two are late together.
        late = int(np.maximum(self.late_rows["late_ns"], 0).sum())
        lost = np.minimum(sum_by_rank(blame, "wait_suffered_ns", ranks), late)
        return np.where(np.isin(ranks, self.late_ranks), 0, lost)

    @cached_property
    def late_wait(self) -> Cost:
        """Ranks wait in exposed collectives for a late rank."""
        time, calls = self.time, self.get("comm_ops")
        # Waits are known over all collectives; those in the steps are told by their number.
        inside = sum_by_rank(calls, "count", time.ranks)
        every = sum_by_rank(calls, "all_count", time.ranks)
        share = np.where(every > 0, inside / np.maximum(every, 1), 1.0)
        lost = np.rint(self.late_suffered_ns * share).astype(np.int64)
        return Cost(time, np.minimum(lost, time.parts["exposed_comm"]))

    @cached_property
    def comm(self) -> Cost:
        """Nothing computes while the device communicates; waits with a known cause left out."""
        waits = np.maximum(self.late_wait.ns, self._local_wait_ns())
        return Cost(self.time, self.time.parts["exposed_comm"] - waits)

    def _local_wait_ns(self) -> Times:
        """How long ranks may wait in collectives for those that a cause of their own holds up."""
        lost = np.zeros(len(self.time))
        for cost in (self.data_wait, self.compilation, self.sync):
            if not cost.uneven:
                continue
            mine = np.isin(self.time.ranks, cost.uneven)
            extra = float(cost.ns[mine].mean()) - cost.ns
            lost = np.maximum(lost, np.where(mine, 0, extra))
        return np.minimum(np.rint(lost).astype(np.int64), self.time.parts["exposed_comm"])

    @cached_property
    def is_pageable(self) -> NDArray[np.bool_]:
        """The rows of `copies` from or to pageable memory."""
        table = self.get("copies")
        if not len(table):
            return np.zeros(0, dtype=np.bool_)
        return np.asarray(table["is_pageable"] > 0, dtype=np.bool_)

    @cached_property
    def copies(self) -> Cost:
        """Nothing else runs while the device copies from or to pageable memory."""
        table = self.get("copies")
        pageable = sum_by_rank(table, "sum_ns", self.time.ranks, self.is_pageable)
        total = np.maximum(sum_by_rank(table, "sum_ns", self.time.ranks), 1)
        exposed = self.time.parts["exposed_memory"]
        return self._cost(np.rint(exposed * (pageable / total)).astype(np.int64))

    @cached_property
    def is_short(self) -> NDArray[np.bool_]:
        """The rows of `short_kernels` that compute."""
        table = self.get("short_kernels")
        if not len(table):
            return np.zeros(0, dtype=np.bool_)
        return np.asarray(table["class"] == "compute", dtype=np.bool_)

    @cached_property
    def short(self) -> Cost:
        """Devices run short kernels, or wait between them although the next one is queued."""
        busy = self._sum_window("short_kernels", "sum_ns", self.is_short)
        gaps = self._sum_window("short_kernels", "gap_ns", self.is_short)
        busy = np.minimum(busy, self.time.parts["compute"])
        queued = self._sum_window("idle_summary", "kernel_wait_ns")
        return Cost(self.time, busy + np.minimum(gaps, np.minimum(queued, self.queued_idle_ns)))

    def count_per_step(
        self, table: Table, rows: Column | None = None, *, inside: bool = False
    ) -> float:
        """Return how often the rows of a table happened, for each step of a rank."""
        count = np.maximum(get_column(table, "count"), 0)
        total = int(count.sum() if rows is None else count[rows].sum())
        return self.per_step(total, inside=inside)

    def per_step(
        self, total: float, ranks: Sequence[int] | None = None, *, inside: bool = False
    ) -> float:
        """Return an amount over some ranks, or all, for each step of a rank, or for each rank.

        Args:
            total: The amount.
            ranks: The ranks; all when left out.
            inside: Whether it is one of the steps, and not of the whole window.
        """
        is_one = np.isin(self.time.ranks, self.time.ranks if ranks is None else ranks)
        steps = int(self.time.steps[is_one].sum())
        if steps and not inside:
            total *= float(self._part_in_steps[is_one].mean())
        return total / (steps or max(int(is_one.sum()), 1))

    def list_gaps(self) -> list[Gap]:
        """Tell what the traces lack of what could be judged."""
        advice = "trace with ProfilerActivity.CUDA (or the one of the device) as well as CPU"
        gaps = []
        if not self.has_device:
            gaps.append(Gap(None, "work of devices in the traces", advice))
        steps = self.get("steps")
        if not (self.time.steps > 0).any() and not (steps["step"] >= 0).any():
            reason = (
                "no optimizer marks steps either: call `profiler.step()` after each step; times "
                "are those of the whole trace"
            )
            gaps.append(Gap(None, "profiler steps in the traces", reason))
        return gaps

    def _cost(self, ns: Times) -> Cost:
        return Cost(self.time, ns, find_uneven(self.time, ns, self.policy))


def name_share(facts: TraceFacts) -> str:
    """Name what shares are shares of."""
    return "the step" if facts.has_steps else "the traced time"
