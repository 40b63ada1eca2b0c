"""``fault.jsonl``: the life of a job as events, the same that ``fault.log`` tells in sentences."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

FAULT_LOG_FILE = "fault.log"
FAULT_EVENTS_FILE = "fault.jsonl"
OLD_SUFFIX = ".1"
"""Of the older half of a log that has become too long."""


class FaultKind(StrEnum):
    """What an event is about."""

    START = "start"
    CHECK = "check"
    STALL = "stall"
    FINDING = "finding"
    RANK_END = "rank-end"
    RESTART = "restart"
    HOLD = "hold"
    EXIT = "exit"
    NOTE = "note"


class FaultEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One line of ``fault.jsonl``.

    Attributes:
        time: Local time with its offset, in milliseconds, as ISO 8601 has it.
        round: The start by whystuck that it belongs to, from 0.
        node: Whose watcher tells it.
        rank: The one rank that it is about, null where it is about none or several.
        event: One of `FaultKind`.
        text: The sentence in ``fault.log``.
        details: Values of the event, by name; which there are depends on the kind.
    """

    time: str
    round: int
    node: str
    rank: int | None = None
    event: str
    text: str
    details: dict[str, Any] = {}
