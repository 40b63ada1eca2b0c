"""What a suspicion is: why a rank that others wait for does not come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from whystuck.diagnose.algorithms.processes.activity import Activity
from whystuck.diagnose.algorithms.stacks.frames import is_in
from whystuck.diagnose.context.facts import Facts
from whystuck.evidence.finding import Citation, Confidence
from whystuck.evidence.ops.collectives import Frame


@dataclass(frozen=True)
class Suspicion:
    """What keeps one rank: the code of the class, the frames to name, and the facts.

    ``frames`` are innermost first. ``text`` completes the sentence "rank 3 ...". Who is not
    ``is_blamed`` waits for others as well, only in another way.
    """

    rank: int
    code: str
    confidence: Confidence
    text: str
    frames: tuple[Frame, ...] = ()
    more_frames: tuple[Frame, ...] = ()
    because: tuple[Citation, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    measures: dict[str, float] = field(default_factory=dict)
    is_blamed: bool = True


def get_frames(facts: Facts, rank: int) -> tuple[Frame, ...]:
    """Return the frames of the main thread of a rank, innermost first."""
    position = facts.stacks.positions.get(rank)
    return position.frames if position else ()


def get_activity(facts: Facts, rank: int) -> Activity:
    """Return how the main process of a rank moved."""
    return facts.processes.activities.get(rank, Activity())


def is_moving(facts: Facts, activity: Activity) -> bool:
    """Tell whether a process used the processor, moved bytes, or changed its frames."""
    policy = facts.policy
    # The probe writes itself, which adds up when a stall is looked at for minutes.
    idle_bytes = policy.idle_io_bytes * max(1.0, activity.span_s / policy.idle_io_s)
    return (
        (activity.cpu_share or 0.0) >= policy.idle_cpu_share
        or activity.read_bytes + activity.write_bytes >= idle_bytes
        or activity.stack_moves
    )


def works_by_child(facts: Facts, rank: int) -> bool:
    """Tell whether a rank waits for a program that it has started, and that is at work."""
    frames, share = get_frames(facts, rank), get_activity(facts, rank).children_cpu_share
    is_waiting = bool(frames) and is_in(frames[0], "/subprocess.py")
    return is_waiting and share is not None and share >= facts.policy.idle_cpu_share
