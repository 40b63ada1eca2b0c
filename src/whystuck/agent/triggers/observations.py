"""From the figures of a round to what rules look at; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from whystuck.agent.triggers.history import RankLook
from whystuck.evidence.nodes.metrics import Sample

# The metrics of ranks and devices that rules go by, by the name they have in a `RankLook`.
_OF_RANKS: Final = {
    "whystuck_rank_optimizer_steps_total": "steps",
    "whystuck_rank_collectives_pending": "pending",
    "whystuck_rank_last_progress_age_seconds": "age_s",
    "whystuck_rank_beat_age_seconds": "beat_age",
}
_GPU: Final = "whystuck_gpu_utilization_ratio"
_INFO: Final = "whystuck_rank_info"
USED: Final = frozenset({*_OF_RANKS, _GPU, _INFO})
"""Names of all metrics that rules need."""
Key = tuple[str, int]
"""A job and a rank of it."""


@dataclass
class RoundLooks:
    """What one round tells of all ranks; ``pids`` are those of their processes."""

    looks: list[tuple[Key, RankLook]] = field(default_factory=list)
    pids: dict[Key, int] = field(default_factory=dict)


def read_looks(samples: Iterable[Sample], now_s: float, now_ns: int) -> RoundLooks:
    """Read a round.

    Args:
        samples: All figures; most are not looked at.
        now_s: The time, of a clock that only goes forward.
        now_ns: The same moment, by the clock of the samples.
    """
    found = RoundLooks()
    ranks: dict[Key, dict[str, float]] = {}
    devices: dict[Key, list[tuple[float, float]]] = {}
    for sample in samples:
        name = sample.family.name
        if name not in USED:
            continue
        key = _key_of(sample)
        if key is None:
            continue
        time_s = now_s - max(0, now_ns - sample.time_ns) / 1e9
        if name == _INFO:
            pid = _label(sample, "pid")
            if pid.isascii() and pid.isdecimal():
                found.pids[key] = int(pid)
        elif name == _GPU:
            devices.setdefault(key, []).append((time_s, sample.value))
        else:
            figures = ranks.setdefault(key, {})
            figures[_OF_RANKS[name]] = sample.value
            figures["time_s"] = time_s
    found.looks += [(key, _rank_look(figures)) for key, figures in ranks.items()]
    for key, loads in devices.items():
        # A rank may use several devices: together they are as busy as their mean.
        time_s = max(time_s for time_s, _ in loads)
        mean = sum(load for _, load in loads) / len(loads)
        found.looks.append((key, RankLook(time_s, gpu=mean)))
    return found


def _rank_look(figures: dict[str, float]) -> RankLook:
    """Date the counters by the beat that they came with, and not by when that was read."""
    age_s = figures.get("age_s")
    beat_age_s = figures.get("beat_age", 0.0)
    return RankLook(
        figures["time_s"] - beat_age_s,
        steps=figures.get("steps"),
        pending=figures.get("pending"),
        # It is counted up to when it was read.
        age_s=None if age_s is None else max(0.0, age_s - beat_age_s),
        read_s=figures["time_s"],
    )


def _key_of(sample: Sample) -> Key | None:
    rank = _label(sample, "rank")
    if not (rank.isascii() and rank.isdecimal() and len(rank) <= 7):  # noqa: PLR2004 - a sane rank
        return None
    return _label(sample, "job"), int(rank)


def _label(sample: Sample, name: str) -> str:
    names = sample.family.labels
    place = names.index(name) if name in names else len(sample.labels)
    return sample.labels[place] if place < len(sample.labels) else ""
