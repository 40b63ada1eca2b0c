"""The step after which all ranks apply a change: as soon as may be, and before none has heard."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from whystuck.collect.beats import BeatSlot
from whystuck.collect.recorder import RecorderError, ask_probe
from whystuck.launch.switch.ranks import live_ranks

# How long it may take from the choice of a step until the last rank has read it: of ranks whose
# probes answer at once, and of any others, which look once a second.
_MARGIN_S, _SLOW_MARGIN_S = 0.8, 2.5
_RATE_S, _POLL_S = 2.2, 0.1
_ANSWER_TIMEOUT_S = 0.5
_MAX_THREADS = 16
# Beats that are compared lie so far apart at least.
_LEAST_APART_NS = 900_000_000
_Beats = Mapping[int, BeatSlot]


def wake_probes(job_dir: Path) -> bool:
    """Have all ranks of this node look at their switch, and beat; return whether all have."""
    pids = [one.pid for one in live_ranks(job_dir)]

    def ask(pid: int) -> bool:
        path = job_dir / f"probe-{pid}"
        try:
            ask_probe(path, "switch", path, timeout_s=_ANSWER_TIMEOUT_S)
        except RecorderError:
            return False
        return True

    with ThreadPoolExecutor(_MAX_THREADS) as pool:
        return all(list(pool.map(ask, pids)))


@dataclass
class Pace:
    """The beats of ranks some seconds ago, from which their pace is told at once."""

    job_dir: Path
    _old: dict[int, BeatSlot] = field(default_factory=dict)
    _new: dict[int, BeatSlot] = field(default_factory=dict)
    _due_s: float = 0.0

    def note(self) -> None:
        """Take the beats of now, every other second."""
        if time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + 2
            self._old = self._new
            self._new = {one.pid: one.beat for one in live_ranks(self.job_dir)}

    def list_beats(self) -> _Beats:
        """Return beats that are two seconds old or more."""
        return self._old


def plan_step(job_dir: Path, earlier: _Beats | None = None) -> int:
    """Return a number of optimizer steps that all ranks will make, and none has made yet.

    Args:
        job_dir: The folder of the job.
        earlier: Beats from a while ago. Without them it takes two of each rank, which come once a
            second.

    Returns:
        The number; 0 when no rank has made a step.
    """
    have_answered = wake_probes(job_dir)
    newest = {one.pid: one.beat for one in live_ranks(job_dir)}
    if not any(beat.optimizer_steps for beat in newest.values()):
        return 0
    first = {pid: beat for pid, beat in (earlier or {}).items() if pid in newest}
    if any(pid not in first or not _is_apart(first[pid], newest[pid]) for pid in newest):
        first = newest
        newest = _wait_for_beats(job_dir, first)
    rate = max(_rate(beat, newest[pid]) for pid, beat in first.items())
    margin_s = _MARGIN_S if have_answered else _SLOW_MARGIN_S
    steps = max(beat.optimizer_steps + rate * (beat.age_s + margin_s) for beat in newest.values())
    # One more than that: where a rank is within its step is not known.
    return math.floor(steps) + 2


def _wait_for_beats(job_dir: Path, first: _Beats) -> dict[int, BeatSlot]:
    newest = dict(first)
    deadline_s = time.monotonic() + _RATE_S
    while time.monotonic() < deadline_s:
        if all(_is_apart(beat, newest[pid]) for pid, beat in first.items()):
            break
        time.sleep(_POLL_S)
        newest |= {one.pid: one.beat for one in live_ranks(job_dir)}
    return newest


def _is_apart(first: BeatSlot, last: BeatSlot) -> bool:
    return last.monotonic_ns - first.monotonic_ns >= _LEAST_APART_NS


def _rate(first: BeatSlot, last: BeatSlot) -> float:
    elapsed_s = (last.monotonic_ns - first.monotonic_ns) / 1e9
    return (last.optimizer_steps - first.optimizer_steps) / elapsed_s if elapsed_s > 0 else 0.0
