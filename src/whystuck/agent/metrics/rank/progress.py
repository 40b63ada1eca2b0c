"""How far each rank has come, from the beats of the probe in it, and who it is."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from whystuck.agent.metrics.families import counter, fill, gauge
from whystuck.agent.metrics.rank.beat_files import RankBeat
from whystuck.agent.metrics.rank.labels import RANK_LABELS, RankProcess
from whystuck.collect.beats import BeatSlot
from whystuck.collect.mark_totals import read_mark_totals
from whystuck.evidence.nodes.metrics import MetricFamily, Sample

EVERY_S = 5.0
WINDOW_S = 60.0
"""Step times are means over the steps of this many last seconds."""
_MAX_POINTS = 64
_INFO_LABELS = (
    *RANK_LABELS,
    *("pid", "local_rank", "world_size"),
    *("slurm_job_id", "slurm_step", "namespace", "pod", "container", "pod_uid"),
)


def _make_info(more: Sequence[str]) -> MetricFamily:
    text = "1 for each rank; says who it is, to be joined with its metrics by node, job and rank."
    return gauge(
        "rank_info", text, *_INFO_LABELS, *(one for one in more if one not in _INFO_LABELS)
    )


_PLAIN = {
    "steps": counter("rank_optimizer_steps_total", "Optimizer steps made.", *RANK_LABELS),
    "enqueued": counter(
        "rank_collectives_enqueued_total", "Collectives issued, all groups.", *RANK_LABELS
    ),
    "completed": counter(
        "rank_collectives_completed_total", "Collectives that ended, all groups.", *RANK_LABELS
    ),
    "pending": gauge(
        "rank_collectives_pending", "Collectives issued that have not ended.", *RANK_LABELS
    ),
    "sent": counter("rank_p2p_sent_total", "Sends issued.", *RANK_LABELS),
    "received": counter("rank_p2p_received_total", "Receives issued.", *RANK_LABELS),
    "beat_age": gauge(
        "rank_beat_age_seconds",
        "Seconds since the last beat, which comes every second: it stops while a rank is stopped, "
        "or holds the GIL.",
        *RANK_LABELS,
    ),
    "collective_age": gauge(
        "rank_last_collective_age_seconds",
        "Seconds since a collective was last seen to be issued or to end, or at least that.",
        *RANK_LABELS,
    ),
    "step_age": gauge(
        "rank_last_step_age_seconds",
        "Seconds since an optimizer step was last seen, or at least that.",
        *RANK_LABELS,
    ),
    "progress_age": gauge(
        "rank_last_progress_age_seconds",
        "Seconds since a step, collective, send or receive was last seen, or at least that.",
        *RANK_LABELS,
    ),
    "step": gauge(
        "rank_step_seconds",
        "Mean seconds from one optimizer step to the next in the last minute.",
        *RANK_LABELS,
    ),
}
_PHASE_LABELS = (*RANK_LABELS, "phase")
_PHASE_SECONDS = counter(
    "rank_phase_seconds_total",
    "Seconds in phases of steps that have ended, of devices in ranges with a stream, by marks.",
    *_PHASE_LABELS,
)
_PHASES = counter(
    "rank_phases_total", "Phases of steps that have ended, while marks are on.", *_PHASE_LABELS
)
_MARKED = (_PHASE_SECONDS, _PHASES)
FAMILIES: tuple[MetricFamily, ...] = (_make_info(()), *_PLAIN.values(), *_MARKED)


class _Point(NamedTuple):
    """When a number of steps was first seen."""

    time_s: float
    steps: int


class _Progress:
    """What was seen of one rank so far; times are those of its beats."""

    def __init__(self, slot: BeatSlot) -> None:
        beat_s = slot.monotonic_ns / 1e9
        self._last = slot
        self._collective_s = self._step_s = self._any_s = beat_s
        # The first one is no point: nobody knows when its steps were made.
        self._points: deque[_Point] = deque(maxlen=_MAX_POINTS)

    def note(self, slot: BeatSlot) -> None:
        """Take a beat."""
        beat_s, last = slot.monotonic_ns / 1e9, self._last
        if (slot.enqueued, slot.completed) != (last.enqueued, last.completed):
            self._collective_s = beat_s
        if slot.optimizer_steps != last.optimizer_steps:
            self._step_s = beat_s
            self._points.append(_Point(beat_s, slot.optimizer_steps))
        if slot.progress != last.progress:
            self._any_s = beat_s
        self._last = slot

    def measure(self, now_s: float) -> dict[str, float | None]:
        """Return the figures of now; what is not known is None."""
        slot = self._last
        has_steps, has_collectives = slot.optimizer_steps > 0, slot.enqueued > 0
        return {
            "steps": _known(slot.optimizer_steps),
            "enqueued": _known(slot.enqueued),
            "completed": _known(slot.completed),
            "pending": float(max(0, slot.enqueued - slot.completed)),
            "sent": _known(slot.p2p_sent),
            "received": _known(slot.p2p_received),
            "beat_age": max(0.0, now_s - slot.monotonic_ns / 1e9),
            "collective_age": max(0.0, now_s - self._collective_s) if has_collectives else None,
            "step_age": max(0.0, now_s - self._step_s) if has_steps else None,
            "progress_age": (
                max(0.0, now_s - self._any_s) if has_steps or slot.has_communicated else None
            ),
            "step": self._step_seconds(now_s),
        }

    def _step_seconds(self, now_s: float) -> float | None:
        """Return the mean time of a step; None when the last ones are too long ago to tell."""
        points = self._points
        # Two points are kept for steps that take longer than the window.
        while len(points) > 2 and points[0].time_s < now_s - WINDOW_S:  # noqa: PLR2004
            points.popleft()
        if len(points) < 2:  # noqa: PLR2004
            return None
        first, last = points[0], points[-1]
        taken_s, steps = last.time_s - first.time_s, last.steps - first.steps
        if steps <= 0 or taken_s <= 0:
            return None
        is_old = now_s - last.time_s > max(WINDOW_S, 2 * taken_s / steps)
        return None if is_old else taken_s / steps


def _known(number: int) -> float | None:
    return float(number) if number >= 0 else None


def _list_phases(beat: RankBeat, labels: tuple[str, str], now_ns: int) -> Iterator[Sample]:
    for total in read_mark_totals(beat.folder, beat.pid):
        for family, value in ((_PHASE_SECONDS, total.seconds), (_PHASES, float(total.ended))):
            yield Sample(family=family, value=value, labels=(*labels, total.kind), time_ns=now_ns)


class RankSource:
    """Steps, collectives and their ages, of ranks with the probe; and who all ranks are.

    Args:
        list_ranks: The ranks of this node.
        every_s: Seconds between two readings.
        attributes: More labels of ``whystuck_rank_info``, taken from what a scheduler says.
    """

    name = "ranks"

    def __init__(
        self,
        list_ranks: Callable[[], Sequence[RankProcess]],
        *,
        every_s: float = EVERY_S,
        attributes: Sequence[str] = (),
    ) -> None:
        self.every_s = every_s
        self.problem = ""
        self._info = _make_info(attributes)
        self.families: Sequence[MetricFamily] = (self._info, *_PLAIN.values(), *_MARKED)
        self._list_ranks = list_ranks
        self._seen: dict[tuple[int, int], _Progress] = {}

    def collect(self) -> Iterable[Sample]:
        """Read the beats."""
        now_ns, now_s = time.time_ns(), time.monotonic()
        samples: list[Sample] = []
        seen: dict[tuple[int, int], _Progress] = {}
        for rank in self._list_ranks():
            samples.append(self._describe(rank, now_ns))
            if rank.beat is None:
                continue
            key = (rank.pid, rank.started_ticks)
            progress = seen[key] = self._seen.get(key) or _Progress(rank.beat.slot)
            progress.note(rank.beat.slot)
            samples += fill(_PLAIN, progress.measure(now_s), rank.labels, now_ns)
            samples += _list_phases(rank.beat, rank.labels, now_ns)
        self._seen = seen
        return samples

    def _describe(self, rank: RankProcess, now_ns: int) -> Sample:
        told = {
            **rank.attributes,
            **dict(zip(RANK_LABELS, rank.labels, strict=True)),
            "pid": str(rank.pid),
            "local_rank": str(rank.local_rank) if rank.local_rank >= 0 else "",
            "world_size": str(rank.world_size) if rank.world_size > 0 else "",
        }
        labels = tuple(told.get(name, "") for name in self._info.labels)
        return Sample(family=self._info, value=1.0, labels=labels, time_ns=now_ns)
