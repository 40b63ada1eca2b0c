"""C207 preempted: somebody outside ended the job, a batch system, a cluster or a person."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import name_signal
from whystuck.diagnose.logs.cases.parts import find_time, is_said, name_job
from whystuck.diagnose.logs.story import OUTSIDE, TAKEN, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent

_SIGNAL = re.compile(r"Received (?:Signals\.)?(SIG\w+|\d+) death|got signal: (\d+)")
_NAMES = {"1": "SIGHUP", "2": "SIGINT", "3": "SIGQUIT", "15": "SIGTERM"}
_KINDS = {
    "slurm.timelimit": ("time-limit", "the job reached its time limit"),
    "slurm.preempt": ("preemption", "the batch system preempted the job"),
    "slurm.cancel": ("cancelled", "somebody cancelled the job"),
    "batch.walltime": ("time-limit", "the job reached its time limit"),
    "cloud.spot": ("preemption", "the cloud took a machine of the job back"),
    "k8s.node_shutdown": ("preemption", "a machine of the job was shut down"),
    "kueue.evicted": ("eviction", "a queue of Kubernetes took the job's quota back"),
    "k8s.evicted": ("eviction", "Kubernetes took a pod of the job away"),
    "elastic.got_signal": ("signal", "the launcher got {signal} from outside"),
}
# Which of several says most.
_ORDER = tuple(_KINDS)
# The job, rather than a step of it, without a reason.
_BY_USER = re.compile(r"CANCELLED by \d+|CANCELLED AT \S+ (?:BY|by)|\*\*\* JOB \S+ ON ")
_TASK_OOM = "Out Of Memory"
_ENDING = {"SIGTERM", "SIGINT", "SIGHUP"}


def make_stopped(view: LogView) -> Iterator[Case]:
    """Make the case of a job that was ended from outside, when anything says so."""
    events = [
        event
        for event in (
            *view.list_events(codes.PREEMPTED, "cause"),
            *view.list_signatures("slurm.cancel"),
        )
        if is_said(event) and _is_cause(event) and not _is_over(view, event)
    ]
    if events:
        yield _tell(view, events)
    else:
        yield from _make_silent(view)


def _is_cause(event: LogEvent) -> bool:
    # Slurm also cancels the steps of a job that failed by itself; whole jobs, only somebody does.
    return event.signature != "slurm.cancel" or bool(_BY_USER.search(event.text))


def _is_over(view: LogView, event: LogEvent) -> bool:
    """Tell whether a queue let the workload that it evicted start again: what ends then ends later.

    Events of a workload stand in their order.
    """
    if event.signature != "kueue.evicted":
        return False
    again = view.list_signatures("kueue.admitted")
    return any(one.artifact == event.artifact and one.row > event.row for one in again)


def _tell(view: LogView, events: list[LogEvent]) -> Case:
    events = sorted(events, key=_place_in_order)
    first = events[0]
    kind, words = _KINDS.get(first.signature, (first.kind, first.meaning or first.text[:120]))
    signal = _find_signal(events)
    if signal == "SIGINT":
        kind, words = "interrupt", "somebody interrupted the job (Ctrl-C)"
    job = name_job(view)
    slurm = f"`sacct -j {job} --format=State,ExitCode,Timelimit,Elapsed,Reason`"
    pods = [event for event in events if event.signature.startswith("k8s.")]
    nodes = {node for event in pods if (node := view.find_node_of(event))}
    nodes |= {node for event in events if (node := _find_cloud_node(event))}
    remedies = (f"ask the batch system: {slurm}",) if first.signature.startswith("slurm.") else ()
    return Case(
        code=codes.PREEMPTED,
        summary=words.format(signal=signal or "a signal") + "; no rank failed before",
        # Who ends a job because a rank has failed sends a signal too, and gives no reason.
        tier=TAKEN if first.signature == "elastic.got_signal" else OUTSIDE,
        nodes=tuple(sorted(nodes)) if first.signature.startswith(("k8s.", "cloud.")) else (),
        lines=tuple(events),
        time=find_time(events),
        details={"kind": kind, "signal": signal},
        remedies=remedies,
        scope=view.ranks,
        is_foreign=view.is_of_machine(first),
    )


def _find_cloud_node(event: LogEvent) -> str:
    """Return the machine that a line about a cloud names."""
    named = (event.groups.get(name) for name in ("node", "node2", "node3"))
    return next((name for name in named if name), "") if event.signature == "cloud.spot" else ""


def _place_in_order(event: LogEvent) -> tuple[int, str, int]:
    known = event.signature in _ORDER
    return _ORDER.index(event.signature) if known else len(_ORDER), event.artifact, event.row


def _find_signal(events: list[LogEvent]) -> str:
    for event in events:
        if match := _SIGNAL.search(event.text):
            name = match[1] or match[2]
            return _NAMES.get(name, name)
    return ""


def _make_silent(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that all ended by a signal to end, and of none that failed."""
    # What the launcher ended after another failure was not ended from outside.
    own = [item for item in view.exits if item.rank >= 0 and not item.after_launcher_kill]
    if any(item.reason == _TASK_OOM for item in own):
        return  # Slurm ends the others where a task has no memory left
    ends = {item.rank: name_signal(item) for item in own}
    named = {rank for rank, name in ends.items() if name in _ENDING}
    if len(named) < 2 or not view.is_everywhere(named):  # noqa: PLR2004 - one alone is a kill
        return
    names = sorted({ends[rank] for rank in named})
    exits = tuple(item for item in view.exits if item.rank in named)
    yield Case(
        code=codes.PREEMPTED,
        summary=f"all ranks ended by {' and '.join(names)}; no rank failed before",
        tier=TAKEN,
        exits=exits,
        time=find_time(exits),
        confidence=Confidence.LIKELY,
        details={"kind": "interrupt" if names == ["SIGINT"] else "signal", "signal": names[0]},
        scope=view.ranks,
    )
