"""S310 by the times of phases: most of a step is the all-reduce of gradients, or the like.

DeepSpeed prints phases of each micro-step (`bwd_allreduce_microstep: 3750.44`), Megatron the least
and the most time that ranks take (`all-grads-sync ....: (2104.11, 2120.90)`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.cases.slow.kernel_shares import make_kernel_shares
from whystuck.diagnose.logs.cases.slow.slowest_lines import list_phases
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 6
# Of the time of a step, and in so many of the last lines: a first one may be of setting up.
_BOUND, _LEAST_LINES, _LAST = 0.5, 2, 8
# So long in ms; less is the time of a host that starts small ops.
_LEAST_MS = 20.0
# Times without a unit are seconds where none is larger.
_MOST_S = 50.0
_COMM = re.compile(
    r"all[_-]?reduce|grads?[_-]sync|all[_-]?gather|reduce[_-]?scatter|^comm(?:s|_time|unication)?$",
    re.IGNORECASE,
)
# What is a part of the backward pass by its name counts there.
_BACKWARD = re.compile(r"^(?:bwd|backward)(?:$|_microstep$|_time$|_ms$)", re.IGNORECASE)
_OF_BACKWARD = re.compile(r"^(?:bwd|backward)[_-]", re.IGNORECASE)
_WORK = re.compile(
    r"^(?:fwd|forward|step|opt|optim|optimizer|data|dataload(?:er)?|batch-generator)"
    r"(?:$|_microstep$|_time$|_ms$|_step$)",
    re.IGNORECASE,
)
_PAIR = re.compile(
    r"(?<![\w.-])(?P<name>[A-Za-z][A-Za-z_-]{1,30})\s{0,2}[:=]?\s{0,3}"
    r"(?P<value>\d{1,9}(?:\.\d{1,6})?)\s?(?P<unit>ms|us|s)?(?![\w.%])"
)
_MS = {"s": 1000.0, "us": 0.001}
_COMPARE = (
    "compare the same line of each rank: one whose share is less is late, and the others wait for "
    "it; then measure the link between hosts (`all_reduce_perf` of nccl-tests)"
)


@dataclass(frozen=True)
class _Step:
    """How long ranks communicate in a step, and how long it takes, in ms."""

    comm: float
    whole: float
    phase: str
    event: LogEvent

    @property
    def is_bound(self) -> bool:
        """Whether most of it is communication."""
        return self.comm >= max(_LEAST_MS, _BOUND * self.whole)


def make_comm_phases(view: LogView) -> Iterator[Case]:
    """Make the case of steps most of which is communication, on each rank that tells of its own.

    A rank that waits for another one in it tells the same, so this is only possible where not all
    ranks tell. Of all ranks, the one that is in it for the least time waits for nobody.
    """
    if any(make_kernel_shares(view)):
        return
    ranges = _list_ranges(view)[-_LAST:]
    found = [ranges] if ranges else [steps[-_LAST:] for steps in _list_lines(view).values()]
    if not found or not all(map(_are_bound, found)):
        return
    steps = min(found, key=_find_share)
    last = next(step for step in reversed(steps) if step.is_bound)
    events = [step.event for step in steps if step.is_bound]
    yield Case(
        code=codes.COMMUNICATION_BOUND,
        summary=f"{last.phase} takes {last.comm:.0f} of {last.whole:.0f} ms of a step: ranks wait "
        f"for transfers{'' if ranges else ', or in them for a rank that is late'}",
        tier=NOTE,
        lines=tuple(events[-_MAX_LINES:]),
        time=find_time(events),
        confidence=Confidence.LIKELY if ranges else Confidence.POSSIBLE,
        remedies=() if ranges else (_COMPARE,),
    )


def _are_bound(steps: Sequence[_Step]) -> bool:
    count = sum(min(step.event.count, _LEAST_LINES) for step in steps if step.is_bound)
    return count >= _LEAST_LINES and _find_share(steps) >= _BOUND


def _find_share(steps: Sequence[_Step]) -> float:
    return sum(step.comm for step in steps) / sum(step.whole for step in steps)


def _list_lines(view: LogView) -> dict[tuple[str, int], list[_Step]]:
    """Read the steps of each rank, from lines with several phases."""
    found: dict[tuple[str, int], list[_Step]] = {}
    for event in list_phases(view):
        if (step := _read_line(event)) is not None:
            found.setdefault((event.artifact, event.rank), []).append(step)
    return found


def _read_line(event: LogEvent) -> _Step | None:
    comm, work, backward, phase, is_ms = 0.0, 0.0, 0.0, "", "(ms)" in event.text
    inner = 0.0
    for pair in _PAIR.finditer(event.text):
        name, value = pair["name"], float(pair["value"]) * _MS.get(pair["unit"] or "", 1.0)
        is_ms |= bool(pair["unit"])
        if _COMM.search(name):
            inner += value if _OF_BACKWARD.match(name) else 0.0
            comm, phase = comm + value, phase or name
        elif _BACKWARD.match(name):
            backward = backward or value
        elif _WORK.match(name):
            work += value
    # Of a backward pass that is not told, nobody knows how long it takes.
    if not comm or not backward or not work or inner > backward:
        return None
    whole = work + backward + comm - inner
    scale = 1.0 if is_ms or whole >= _MOST_S else 1000.0
    return _Step(comm * scale, whole * scale, phase, event)


def _list_ranges(view: LogView) -> list[_Step]:
    """Read what Megatron prints of the least and the most time of all ranks.

    Lines that are the same are kept once, so the other phases of a step are those in the middle.
    """
    phases: dict[tuple[str, str], list[LogEvent]] = {}
    for event in view.list_signatures("progress.range"):
        phases.setdefault((event.artifact, event.groups["phase"]), []).append(event)
    found: list[_Step] = []
    for artifact in sorted({artifact for artifact, _ in phases}):
        own = {phase: told for (log, phase), told in phases.items() if log == artifact}
        found += _read_ranges(own)
    return found


def _read_ranges(phases: Mapping[str, Sequence[LogEvent]]) -> Iterator[_Step]:
    least = {phase: median(_read(told, "least")) for phase, told in phases.items()}
    most = {phase: median(_read(told, "most")) for phase, told in phases.items()}
    syncs = [phase for phase in phases if _COMM.search(phase)]
    # The pass as a whole may hold the syncs behind it, what it is made of does not.
    parts = [most.get("forward-compute", 0.0), most.get("backward-compute", 0.0)]
    work = sum(parts) if all(parts) else most.get("forward-backward", 0.0)
    if not syncs or not work:
        return
    main = max(syncs, key=lambda phase: least[phase])
    others = sum(least[phase] for phase in syncs if phase != main)
    # Stages of a pipeline wait for each other, which is another matter.
    work += sum(ms for phase, ms in most.items() if "recv" in phase or "send" in phase)
    work += most.get("optimizer", 0.0)
    for event, ms in zip(phases[main], _read(phases[main], "least"), strict=True):
        yield _Step(ms + others, work + ms + others, main, event)


def _read(events: Sequence[LogEvent], end: str) -> list[float]:
    return [float(event.groups[end]) for event in events]
