"""``trigger.json``: why the agent took traces by itself, and what became of them."""

from __future__ import annotations

import msgspec

from whystuck.evidence.agent import TraceProgress

TRIGGER_FILE = "trigger.json"


class TriggerRecord(msgspec.Struct, kw_only=True):
    """A rule that held, for which ranks, and the traces that were taken of them.

    ``values`` are the figures that decided, ``reason`` is one sentence about them. ``ranks`` are
    those for which it held, and traces may be of more. ``problem`` says why there are no traces.
    """

    schema_version: int = 1
    rule: str = ""
    when: str = ""
    threshold: float = 0.0
    for_s: float = 0.0
    job: str = ""
    node: str = ""
    ranks: tuple[int, ...] = ()
    reason: str = ""
    values: dict[str, float] = {}
    decided_ns: int = 0
    ended_ns: int = 0
    request_id: str = ""
    problem: str = ""
    traces: tuple[TraceProgress, ...] = ()
