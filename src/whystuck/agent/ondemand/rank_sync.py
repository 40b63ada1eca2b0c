"""When ranks that are traced together begin, so that all trace the same iterations.

Where their steps are known, all are told one that is ahead. Ranks of one job that keep in step show
in their traces whether they began at the same: their windows open together. If they did not, they
are asked again, for one that is further ahead, or, where their steps are not known, for a multiple
of so many that all are told in between.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from whystuck.agent.ondemand.jobs import Job
from whystuck.agent.ondemand.reach import Found
from whystuck.agent.ondemand.runs import LEAD_MS, NS_A_MS, TICK_MS, Run
from whystuck.agent.ondemand.stepping import NS_A_SECOND, StepWatch, choose_roundup, choose_start
from whystuck.evidence.agent import ProcessKind, TraceState

# How much later than it used to a process may ask for work.
_LATE_MS = 200
_STEP_MARGIN_NS = 150_000_000
_MAX_TRIES = 4
# So many polls of one without a better one to lead, and it leads.
_LEAD_TRIES = 2
_MAX_TRY_NS = 20 * NS_A_SECOND
# Ranks that wait for each other in every step are nearer than this part of one.
_SAME_STEP = 0.6
# How much longer than it takes to tell all ranks the time between two multiples is.
_SPREADS = 3.0
_SLACK_NS = 50_000_000
_EDGE_BYTES = 1 << 16
_US_NS = 1000
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})\b')
_TIME = re.compile(rb'"ts"\s*:\s*(\d{1,17}(?:\.\d{1,9})?)')
_END = b'"Record Window End"'
_LABELS = b'"process_labels"'
# That of Kineto without a configuration file.
_DEFAULT_NS = 5 * NS_A_SECOND
_MIN_NS = NS_A_SECOND // 2
_NEAR_NS = NS_A_SECOND // 10


class Pace:
    """The polls of one process."""

    def __init__(self) -> None:
        """Begin without any."""
        self._last_ns = 0
        self._interval_ns = 0

    def note(self, time_ns: int) -> None:
        """Take the time of a poll."""
        gap_ns = time_ns - self._last_ns
        if self._last_ns and gap_ns >= _MIN_NS:
            # One that was lost makes a gap twice as long; the shorter of two is the interval.
            known = self._interval_ns or gap_ns
            self._interval_ns = min(gap_ns, known) if gap_ns < 2 * known else known
        self._last_ns = time_ns

    @property
    def interval_ns(self) -> int:
        """How far apart its polls are, as far as that is known."""
        return self._interval_ns or _DEFAULT_NS

    def next_ns(self, now_ns: int) -> int:
        """Return when it will ask next."""
        interval_ns = self.interval_ns
        if not self._last_ns:
            return now_ns + interval_ns
        # One that was due a moment ago comes now. Of two that ask at the same time each would
        # else take the other for the one that has just asked.
        missed = max(0, now_ns - self._last_ns - _NEAR_NS) // interval_ns
        return max(now_ns, self._last_ns + (missed + 1) * interval_ns)


@dataclass
class Watch:
    """What the polls of one process have told; ``step_ns`` is what a trace told, 0 is unknown."""

    steps: StepWatch = field(default_factory=StepWatch)
    pace: Pace = field(default_factory=Pace)
    step_ns: float = 0.0


@dataclass(frozen=True)
class Window:
    """When a trace began and ended, wall-clock."""

    begin_ns: float
    end_ns: float


def choose_begin(asking: Run, watches: Mapping[int, Watch], now_ns: int) -> bool:
    """Choose when all processes of a request begin, while the first of them asks for work.

    Args:
        asking: The trace of that process; what is chosen is set in its job.
        watches: What is known of each process, by its pid on this host.
        now_ns: The time.

    Returns:
        False when it is better that another one is told first.
    """
    job = asking.job
    if not (_is_counted(job) or _is_leader(asking, watches, now_ns)):
        return False
    if job.raw is None:
        _choose(asking, watches, now_ns)
    return True


def _is_counted(job: Job) -> bool:
    """Tell whether anyone can be the first: at which step each will be in a second is known."""
    if not job.iterations:
        return False
    return all(run.counter is not None and run.steps.steps_per_s for run in _list_ranks(job))


def _list_ranks(job: Job) -> list[Run]:
    """Return the traces that are to be of the same iterations: a launcher makes none."""
    ranks = [run for run in job.runs if run.entry.kind is ProcessKind.RANK]
    return [run for run in ranks or job.runs if not run.case.is_ended]


def _is_leader(asking: Run, watches: Mapping[int, Watch], now_ns: int) -> bool:
    own = watches.get(asking.entry.pid)
    if own is None or asking.cpu.watched_ns(now_ns) > _LEAD_TRIES * own.pace.interval_ns:
        return True
    others = [
        watches[run.entry.pid].pace
        for run in asking.job.runs
        if run is not asking and not run.is_ended and run.entry.pid in watches
    ]
    return is_first_of_all(own.pace, others, now_ns)


def _choose(asking: Run, watches: Mapping[int, Watch], now_ns: int) -> None:
    job = asking.job
    job.start_ms = job.request.start_time_ms
    runs = [run for run in job.runs if not run.case.is_ended]
    others = [run.entry.pid for run in runs if run is not asking]
    told_ns = all_told_ns((watches[pid].pace for pid in others if pid in watches), now_ns)
    if job.num_tries == 1:
        job.roundup, job.start_iteration = job.request.roundup, job.request.start_iteration
    if not job.iterations:
        if others and not job.start_ms:
            warmup_ms = max(run.warmup_ms for run in runs)
            job.start_ms = told_ns // NS_A_MS + _LATE_MS + TICK_MS + LEAD_MS + warmup_ms
    elif is_compared(job):
        _choose_iteration(job, _list_ranks(job), watches, told_ns - now_ns, now_ns)


def _choose_iteration(
    job: Job, runs: Sequence[Run], watches: Mapping[int, Watch], spread_ns: int, now_ns: int
) -> None:
    for run in runs:
        run.note_steps()
    steps = [run.steps for run in runs]
    # Each try leaves more time, as polls of a busy machine come late.
    margin_ns = _STEP_MARGIN_NS * 3 ** (job.num_tries - 1)
    start = choose_start(steps, now_ns + spread_ns + margin_ns)
    job.start_iteration = _round_up(job, start) if start >= 0 else start
    if start >= 0:
        job.roundup = _round_up(job, choose_roundup(steps))
    elif job.num_tries == 1:
        known = [watches[run.entry.pid].step_ns for run in runs if run.entry.pid in watches]
        job.roundup = _round_up(job, _choose_multiple(spread_ns, min(known, default=0.0)))


def _round_up(job: Job, steps: int) -> int:
    """Return the next multiple of what a request wants multiples of."""
    return -(-steps // job.request.roundup) * job.request.roundup


def _choose_multiple(spread_ns: float, step_ns: float) -> int:
    """Choose a number of steps that take much longer than to tell all ranks."""
    if step_ns <= 0:
        return 1
    return max(1, math.ceil(_SPREADS * (spread_ns + _SLACK_NS) / step_ns))


def is_compared(job: Job) -> bool:
    """Tell whether the traces of a request are to be of the same iterations, chosen by us."""
    ranks = [run for run in job.runs if run.entry.kind is ProcessKind.RANK]
    is_left_to_us = job.raw is None and job.request.start_iteration < 0
    return is_left_to_us and bool(job.iterations) and len(ranks) > 1


def read_windows(runs: Sequence[Run], iterations: int) -> dict[int, Window]:
    """Return when the traces of some processes began and ended, by their pids; may take long."""
    files = {run.entry.pid: run.file.find() for run in runs}
    windows = {pid: read_window(one, iterations) for pid, one in files.items() if one is not None}
    return {pid: window for pid, window in windows.items() if window is not None}


def read_window(found: Found, iterations: int) -> Window | None:
    """Return when a trace of Kineto began and ended; None when it does not say.

    Args:
        found: The file.
        iterations: How many iterations lie in it; none means that it cannot be compared.
    """
    try:
        with found.opened() as file:
            head = file.stream.read(_EDGE_BYTES)
            file.stream.seek(max(0, file.stream.seek(0, os.SEEK_END) - _EDGE_BYTES))
            tail = file.stream.read(_EDGE_BYTES)
    except OSError:
        return None
    base, end, begin = _BASE.search(head), _time_behind(tail, _END), _time_behind(tail, _LABELS)
    if iterations < 1 or base is None or end is None or begin is None:
        return None
    window = Window(*(int(base[1]) + float(one[1]) * _US_NS for one in (begin, end)))
    return window if window.end_ns > window.begin_ns else None


def _time_behind(tail: bytes, name: bytes) -> re.Match[bytes] | None:
    """Return the time of the last event of a name."""
    position = tail.rfind(name)
    return None if position < 0 else _TIME.search(tail, position)


def plan_again(job: Job, windows: Mapping[int, Window], watches: Mapping[int, Watch]) -> int:
    """Tell whether ranks are to be asked again, as they have traced different iterations.

    Args:
        job: The request, whose traces are all written.
        windows: When the trace of each process began and ended.
        watches: What is known of each; the time of a step is set.

    Returns:
        A number of steps, at a multiple of which they are to begin; 0 when all is well, or they
        cannot be brought together.
    """
    parked = [run for run in list_parked(job) if run.entry.kind is ProcessKind.RANK]
    runs = [run for run in parked if run.entry.pid in windows]
    if len(runs) < 2 or len(runs) < len(parked):  # noqa: PLR2004 - one rank is like itself
        return 0
    windows = {run.entry.pid: windows[run.entry.pid] for run in runs}
    step_ns = _measure_step_ns(list(windows.values()), job.iterations)
    for run in runs:
        if run.entry.pid in watches:
            watches[run.entry.pid].step_ns = step_ns
    begins = [window.begin_ns for window in windows.values()]
    if max(begins) - min(begins) < _SAME_STEP * step_ns:
        return 0
    sent = [run.case.sent_ns for run in runs]
    took_ns = max(window.end_ns for window in windows.values()) - min(sent)
    if job.num_tries >= _MAX_TRIES or took_ns > _MAX_TRY_NS:
        for run in runs:
            run.note = "the ranks did not begin at the same iteration"
        return 0
    wanted = _choose_multiple(max(sent) - min(sent), step_ns)
    return _round_up(job, max(wanted, 2 * job.roundup) if job.num_tries > 1 else wanted)


def _measure_step_ns(windows: Sequence[Window], iterations: int) -> float:
    return min(window.end_ns - window.begin_ns for window in windows) / iterations


def ready_to_compare(job: Job) -> bool:
    """Tell whether all traces of a request that are to be compared have been written or ended."""
    return all(run.is_parked or run.is_ended for run in job.runs) and any(
        run.is_parked for run in job.runs
    )


def list_parked(job: Job) -> list[Run]:
    """Return the traces of a request that wait to be compared."""
    return [run for run in job.runs if run.is_parked and run.case.state is TraceState.WRITTEN]


def all_told_ns(paces: Iterable[Pace], now_ns: int) -> int:
    """Return when all of some processes will have asked for work."""
    return max((pace.next_ns(now_ns) for pace in paces), default=now_ns)


def is_first_of_all(asking: Pace, others: Sequence[Pace], now_ns: int) -> bool:
    """Tell whether all of some processes are told soonest when the one that asks now is the first.

    Args:
        asking: The one that asks for work at this moment.
        others: The others that are to be told.
        now_ns: The time.

    Returns:
        False when it is better to wait for another one, as those that asked shortly before this
        one will not ask again for long.
    """
    interval_ns = max((pace.interval_ns for pace in (asking, *others)), default=_DEFAULT_NS)
    waits_ns = [0, *(pace.next_ns(now_ns) - now_ns for pace in others)]
    spreads_ns = [max((wait - first) % interval_ns for wait in waits_ns) for first in waits_ns]
    return spreads_ns[0] <= min(spreads_ns) + _NEAR_NS
