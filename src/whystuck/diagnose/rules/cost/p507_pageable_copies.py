"""P507 pageable-copies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.traces.cost_rule import CostRule, Told, cite, name_who
from whystuck.diagnose.traces.costs import name_share
from whystuck.diagnose.traces.step_time import sum_rows
from whystuck.evidence.finding import Confidence, Finding

_MIB = 1024 * 1024


class PageableCopies(CostRule):
    """The device copies from or to pageable memory while nothing else runs.

    ## What it means

    Memory that the system may move cannot be read by the device: the driver copies it to a buffer
    of its own first. Such copies are slower, and the host waits for them, so that they lie
    between steps rather than under them.

    ## How it is found

    From copies that the trace marks as pageable, and the time in which nothing else ran on the
    device. Copies that lie under computation cost nothing and are not told. `details`: `kind` of
    the copies, `mib_per_step`, `gbps` (mean), `copies_per_step`.

    Of logs, from copies that `nsys analyze` lists and that come again and again, each for 5 %
    of the time until the next one, or from a table of `torch.profiler` where they take a tenth of
    the time of the device. `details`: `kind`, `share`.

    ## False alarms

    Copies that are made once, such as loading a checkpoint, in a trace without steps.

    ## What to do

    Pin the memory on the host, and copy without waiting.
    """

    code = codes.PAGEABLE_COPIES
    name = "pageable-copies"
    needs = ("traces", "logs")
    remedies: ClassVar[tuple[str, ...]] = (
        "`DataLoader(..., pin_memory=True)` and `batch.to(device, non_blocking=True)`",
        "for own buffers: `torch.empty(..., pin_memory=True)` once, and copy into it",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield a finding when pageable copies are exposed."""
        yield from (tell_case(self, case) for case in scene.story.of(self.code))
        facts = scene.traces
        cost = facts.copies
        if cost.impact < policy.cost_note_share:
            return
        table = facts.get("copies")
        (kind,), _, row = sum_rows(table, "sum_ns", ["kind"], facts.is_pageable)[0]
        rows = facts.is_pageable & (table["kind"] == kind)
        size, spent = float(table["bytes"][rows].sum()), float(table["sum_ns"][rows].sum())
        mib = facts.per_step(size) / _MIB
        gbps = size / max(spent, 1.0)
        yield self.make_cost_finding(
            Told(
                f"{name_who(cost)}: copies {kind} of pageable memory take "
                f"{cost.share_on_ranks:.0%} of "
                f"{name_share(facts)}, {mib:.3g} MiB at {gbps:.2g} GB/s",
                Confidence.CERTAIN,
                [cite("copies", row, f"{kind}, pageable: {mib:.3g} MiB a step at {gbps:.2g} GB/s")],
                details={
                    "kind": kind,
                    "mib_per_step": round(mib, 3),
                    "gbps": round(gbps, 3),
                    "copies_per_step": round(facts.count_per_step(table, rows), 2),
                },
            ),
            cost,
            policy.cost_warning_share,
        )
