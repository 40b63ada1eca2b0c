"""For whom ranks wait in collectives, and in which of them most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from whystuck.diagnose.policy import Policy
from whystuck.diagnose.traces.cost_rule import cite, format_ns, name_rank, shorten
from whystuck.diagnose.traces.costs import TraceFacts
from whystuck.evidence.finding import Citation

_NS_PER_MS = 1e6


@dataclass(frozen=True)
class Waits:
    """Who came last to collectives: the rank that was waited for longest, and the worst one.

    ``of`` counts the collectives in which it is known who waited, ``wait_ns`` is how long all
    others together waited for ``rank``. ``worst`` is the ``row`` of ``collectives``; without one,
    -1, nobody is known to be last.
    """

    rank: int
    times: int
    of: int
    wait_ns: float
    worst: dict[str, Any]
    row: int

    def details(self) -> dict[str, Any]:
        """Return what the details of a finding say of them."""
        if self.row < 0:
            return {"collectives": self.of}
        worst = {name: self.worst[name] for name in ("op", "group", "sequence", "last_rank")}
        return {
            "last_rank": self.rank,
            "times_last": self.times,
            "collectives": self.of,
            "worst": worst | {"wait_ms": round(self.worst["wait_ns"] / _NS_PER_MS, 4)},
        }

    def describe(self) -> str:
        """Say who came last, and what that cost."""
        worst = f"worst in {self._name_worst()} ({format_ns(self.worst['wait_ns'])}"
        if self.worst["last_rank"] != self.rank:
            worst += f" for {name_rank(self.worst['last_rank'])}"
        return (
            f"rank {self.rank} comes last to {self.times} of {self.of} collectives, the others "
            f"together wait {format_ns(self.wait_ns)} for it, {worst})"
        )

    def describe_chance(self, facts: TraceFacts, policy: Policy) -> str:
        """Say whether a rank may be late throughout."""
        if 0 < self.of < policy.sure_collectives:
            return "; too few collectives to be sure that a rank is late throughout"
        return ", and no rank is late throughout" if facts.knows_late_ranks else ""

    def cite(self) -> list[Citation]:
        """Cite the worst collective."""
        if self.row < 0:
            return []
        last = name_rank(self.worst["last_rank"])
        text = f"ranks wait {format_ns(self.worst['wait_ns'])} in {self._name_worst()} for {last}"
        return [cite("collectives", self.row, text)]

    def _name_worst(self) -> str:
        number = self.worst["sequence"]
        group = f" of group {self.worst['group']}" if self.worst["group"] else ""
        return shorten(self.worst["op"]) + (f" {number}" if number >= 0 else "") + group


def find_waits(facts: TraceFacts, late: int | None = None) -> Waits:
    """Find for whom ranks wait in collectives.

    Args:
        facts: The traces.
        late: The rank to look at; all but those that are late throughout when left out.

    Returns:
        The rank that was waited for longest, and the worst collective.
    """
    table = facts.get("collectives")
    last, wait = table["last_rank"].astype(np.int64), np.maximum(table["wait_ns"], 0)
    of = int((table["wait_ns"] >= 0).sum())
    known = (last == late) if late is not None else (last >= 0) & ~np.isin(last, facts.late_ranks)
    if not known.any():
        return Waits(-1, 0, of, 0.0, {}, -1)
    spent = np.bincount(last[known], weights=wait[known])
    rank = int(spent.argmax())
    row = int(np.where(known, wait, -1).argmax())
    worst = {
        name: table[name][row : row + 1].tolist()[0]
        for name in ("op", "group", "sequence", "last_rank", "wait_ns")
    }
    times = int((last[known] == rank).sum())
    return Waits(rank, times, of, float(spent[rank]), worst, row)
