"""P504 late-rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np
from msgspec.structs import replace

from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame
from whystuck.diagnose.traces.cost_rule import CostRule, Told, cite, format_ns
from whystuck.diagnose.traces.costs import Cost, TraceFacts, name_share
from whystuck.diagnose.traces.waits import find_waits
from whystuck.evidence.finding import Citation, Confidence, Finding

_NS_PER_MS = 1e6
# Chance alone would make a rank come last as often as this in one of so many jobs.
_SURE_P = 1e-3
_CAUSES = {
    "host": "its host launches them late",
    "gpu": "its device takes longer for the work before them",
}
# Which of the remedies is for which cause.
_REMEDIES = {"host": 0, "gpu": 1}


class LateRank(CostRule):
    """One rank comes last to collectives, and the others wait for it on their devices.

    ## What it means

    All members of a collective wait for the last one. When that is the same rank more often than
    chance makes it, the job runs at the speed of this rank.

    ## How it is found

    Collectives of all ranks are matched by their sequence, or by group and order. Clocks of ranks
    are compared by the ends of collectives, which are one moment for all. The rank that comes last
    is charged with the wait of the others; a rank is named only when it is last more often, and is
    charged with more, than fair arrivals would explain (`p_value`). Where arrivals are fair, or
    follow the work, no rank is named. Of few collectives that cannot be shown, however late a rank
    is; then one that is the last of nearly all of them, by much the same amount each time, is named
    as `possible`.

    `share_of_step` is the share of the time of all ranks that is lost in exposed waits,
    `lost_ms_per_step` what a rank that waits loses, `wait_caused_ms` by how much all traced
    collectives together would begin earlier without it. `details`: `cause` (`host`: its launches
    come late; `gpu`: its kernels take longer; `unknown`), `times_last`, `times_late` (last, or
    nearly so), `collectives`, `p_value`. The finding is a warning from 1 % of the time on: unlike
    other costs, this is a defect of one place.

    ## False alarms

    A rank with legal extra work in each step, such as writing logs. Ranks that were not traced
    cannot be named: trace all of a group.

    ## What to do

    Host: compare its processor load, clocks and data with those of a peer. Device: compare
    temperature, clocks and errors of the device; run `whystuck trace diff` with a peer's trace.
    """

    code = "P504"
    name = "late-rank"
    remedies: ClassVar[tuple[str, ...]] = (
        "its host: compare processor load, binding (`numactl`), input and logging with a peer",
        (
            "its device: compare clocks, temperature, power and errors with a peer, e.g. by "
            "`nvidia-smi -q -d CLOCK,PERFORMANCE,ECC`, and its share of the work"
        ),
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield a finding for each late rank, the costliest first."""
        facts = scene.traces
        table = facts.late_rows
        if not len(table):
            return
        late = np.maximum(table["late_ns"], 0).astype(np.float64)
        for row in np.argsort(-late, kind="stable").tolist():
            part = float(late[row] / max(late.sum(), 1.0))
            yield self._make(facts, policy, row, part)

    def _make(self, facts: TraceFacts, policy: Policy, row: int, part: float) -> Finding:
        table = facts.late_rows
        rank, cause = int(table["rank"][row]), str(table["cause"][row])
        last, of = int(table["times_last"][row]), int(table["collectives"][row])
        often = int(table["times_late"][row])
        p_value = float(table["p_value"][row])
        wait = facts.late_wait
        cost = Cost(facts.time, np.rint(wait.ns * part).astype(np.int64))
        measures = measure_wait(facts, cost, float(table["wait_caused_ns"][row]))
        why = f": {_CAUSES[cause]}" if cause in _CAUSES else ""
        is_sure = not np.isnan(p_value) and p_value <= _SURE_P
        doubt = "" if is_sure else f"; {of} collectives are too few to be sure"
        found = self.make_cost_finding(
            Told(
                f"the others wait {_name_amount(measures)} in collectives for rank {rank}, "
                f"{cost.share:.1%} of {name_share(facts)}{why}{doubt}",
                Confidence.LIKELY if is_sure else Confidence.POSSIBLE,
                _cite_rank(facts, row, f"rank {rank} comes late to {often} of {of} collectives"),
                blame=Blame(ranks=[rank], victims=facts.time.ranks[cost.ns > 0].tolist()),
                details={
                    "cause": cause,
                    "times_last": last,
                    "times_late": often,
                    "collectives": of,
                    "p_value": None if np.isnan(p_value) else float(f"{p_value:.3g}"),
                },
                measures=measures,
            ),
            cost,
            policy.late_warning_share,
        )
        if cause not in _REMEDIES:
            return found
        return replace(found, remedies=[self.remedies[_REMEDIES[cause]]])


def _name_amount(measures: Mapping[str, float]) -> str:
    if "lost_ms_per_step" in measures:
        return f"{measures['lost_ms_per_step']:.3g} ms a step"
    return f"{measures['lost_ms']:.3g} ms"


def measure_wait(facts: TraceFacts, cost: Cost, caused_ns: float) -> dict[str, float]:
    """Measure the wait for one rank, on the ranks that wait."""
    waits = cost.ns > 0
    lost_ms = float(np.median(cost.ns[waits])) / _NS_PER_MS if waits.any() else 0.0
    steps = int(np.median(facts.time.steps)) if facts.has_steps else 0
    name, lost = ("lost_ms_per_step", lost_ms / steps) if steps else ("lost_ms", lost_ms)
    return {name: round(lost, 4), "wait_caused_ms": round(max(caused_ns, 0.0) / _NS_PER_MS, 4)}


def _cite_rank(facts: TraceFacts, row: int, text: str) -> list[Citation]:
    rank = int(facts.late_rows["rank"][row])
    cites = [cite("straggler", row, text), *find_waits(facts, rank).cite()]
    blame = facts.get("rank_blame")
    if len(blame) and rank in blame["rank"]:
        place = int(np.flatnonzero(blame["rank"] == rank)[0])
        own = format_ns(max(int(blame["wait_suffered_ns"][place]), 0))
        cites.append(cite("rank_blame", place, f"it waits {own} itself"))
    return cites
