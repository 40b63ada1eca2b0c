"""When ranks that are traced together begin, so that all trace the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from whystuck.agent.ondemand.pace import Pace, all_told_ns
from whystuck.agent.ondemand.runs import LEAD_MS, NS_A_MS, TICK_MS, Run
from whystuck.agent.ondemand.stepping import StepWatch, choose_roundup, choose_start

_STEP_MARGIN_NS = 150_000_000


@dataclass
class Watch:
    """What the polls of one process have told."""

    steps: StepWatch = field(default_factory=StepWatch)
    pace: Pace = field(default_factory=Pace)


def choose_begin(asking: Run, watches: Mapping[int, Watch], now_ns: int) -> None:
    """Choose when all processes of a request begin, while the first of them asks for work.

    Args:
        asking: The trace of that process; what is chosen is set in its job.
        watches: What is known of each process, by its pid on this host.
        now_ns: The time.
    """
    job = asking.job
    if job.raw is not None:
        return
    job.roundup, job.start_iteration = job.request.roundup, job.request.start_iteration
    job.start_ms = job.request.start_time_ms
    runs = [run for run in job.runs if not run.case.is_ended]
    if len(runs) == 1:
        return
    others = [run.entry.pid for run in runs if run is not asking]
    told_ns = all_told_ns((watches[pid].pace for pid in others if pid in watches), now_ns)
    if not job.iterations and not job.start_ms:
        warmup_ms = max(run.warmup_ms for run in runs)
        job.start_ms = told_ns // NS_A_MS + TICK_MS + 2 * LEAD_MS + warmup_ms
    elif job.iterations and job.start_iteration < 0 and job.roundup == 1:
        steps = [run.steps for run in runs]
        job.start_iteration = choose_start(steps, told_ns + _STEP_MARGIN_NS)
        if job.start_iteration >= 0:
            job.roundup = choose_roundup(steps)
