"""Runs the rules, puts the root cause first, and finds the one word for the job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from whystuck.diagnose.algorithms.communication import measure_communication
from whystuck.diagnose.algorithms.stack_tree import merge_stacks
from whystuck.diagnose.end_class import classify_end
from whystuck.diagnose.executed import list_executed
from whystuck.diagnose.log_summary import summarize_logs
from whystuck.diagnose.losses import CODE as LOST_CODE
from whystuck.diagnose.losses import Losses
from whystuck.diagnose.ops_view import View
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Rule
from whystuck.diagnose.ruled_out import list_ruled_out
from whystuck.diagnose.rules import RULES
from whystuck.diagnose.scene import Scene
from whystuck.diagnose.story import WAIT, Story
from whystuck.diagnose.timeline import CODES, build_timeline, find_parting
from whystuck.diagnose.trace_overview import describe_traces
from whystuck.diagnose.traced import COST_FAMILY, is_only_traces, list_traced_ranks
from whystuck.evidence.finding import (
    Confidence,
    Coverage,
    Finding,
    Gap,
    Report,
    Severity,
    Timeline,
    Verdict,
)
from whystuck.evidence.logs import LogEvent
from whystuck.evidence.model import Evidence
from whystuck.evidence.ranks import format_ranks

_MAX_TOLD = 120
_WAITING_CODES = {"H117", "H118"}
# What only follows from something else is dropped when that else is known.
_FALLBACK_CODES = ("C211", "C209")
_BEFORE_TRAINING = {"H101", "H103", "H117"}
_VERDICTS = {
    "C": Verdict.CRASHED,
    "H": Verdict.STUCK,
    "N": Verdict.UNFIT,
    "P": Verdict.SLOW,
    "S": Verdict.SLOW,
    "V": Verdict.DIVERGED,
}
_COSTS = ("share_of_step", "share_on_ranks")
# A rank that differs from its peers is a fault, with one place to mend; what all ranks share is
# how the job is made, and comes first only where it costs far more.
_FAULT_WEIGHT = 2.0
_SEVERITY_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}
_DOUBTED = [Severity.NOTE, Severity.WARNING, Severity.ERROR]
_CONFIDENCE_ORDER = {Confidence.CERTAIN: 0, Confidence.LIKELY: 1, Confidence.POSSIBLE: 2}


def diagnose(
    evidence: Evidence,
    policy: Policy | None = None,
    rules: Sequence[type[Rule]] = RULES,
    view: View | None = None,
) -> Report:
    """Judge one evidence.

    Args:
        evidence: All that is known.
        policy: The thresholds; the defaults when left out.
        rules: The rules to run.
        view: What to show of the ops; when left out, little, and only for findings about them.

    Returns:
        The report, root cause first.
    """
    policy = policy or Policy()
    scene = Scene(evidence, policy)
    found: list[Finding] = []
    for rule in rules:
        if _has_needs(evidence, rule.needs):
            found += rule().check(scene, policy)
    findings = [_complete(scene, item) for item in _fold(found, scene.losses, scene.story)]
    if scene.has_moved_again:
        findings = [_quieten(item) for item in findings]
    if _is_doubtful(scene):
        findings = [_doubt(item) for item in findings]
    verdict = _judge(scene, findings)
    return Report(
        verdict=verdict,
        findings=findings,
        gaps=[*evidence.gaps, *_list_gaps(scene, verdict)],
        coverage=_measure_coverage(scene),
        stacks=merge_stacks({rank: at.frames for rank, at in scene.positions.items()}),
        timeline=_show_ops(scene, findings, view),
        communication=measure_communication(evidence.ops),
        logs=summarize_logs(scene.story.view, findings),
        executed=list_executed(
            evidence.executed,
            {rank for item in findings[:1] for rank in item.culprits.ranks},
            evidence.incident.opened_ns,
        ),
        traces=describe_traces(scene.traces),
        context=_describe(evidence, verdict, findings),
    )


def _show_ops(scene: Scene, findings: list[Finding], view: View | None) -> list[Timeline]:
    if view is None and not any(item.code in CODES for item in findings):
        return []
    parting = find_parting(scene.divergence)
    return build_timeline(scene.table, scene.groups, findings, parting, view)


def _has_needs(evidence: Evidence, needs: Iterable[str]) -> bool:
    """Tell whether any of the tables that a rule needs has rows; no needs are always met."""
    names = tuple(needs)
    return not names or any(len(getattr(evidence, name)) for name in names)


def _fold(found: list[Finding], losses: Losses, story: Story) -> list[Finding]:
    """Drop what only follows from another finding, and put the root cause first."""
    kept = [item for item in found if not losses.explains(item)]
    for code in _FALLBACK_CODES:
        # How a machine is set up explains nothing by itself.
        others = [item for item in kept if item.code != code and item.code[0] != "N"]
        if any(item.severity is not Severity.NOTE for item in others):
            kept = [item for item in kept if item.code != code]
    if any(item.code == "H121" and item.severity is Severity.ERROR for item in kept):
        # Training has not begun: whoever seems to wait for others waits for them to come.
        kept = [item for item in kept if item.code not in _BEFORE_TRAINING]
    if any(item.code == "C207" for item in kept):
        # What ranks did when the job was ended is not why it was.
        kept = [item for item in kept if item.code[0] != "H" or item.code == LOST_CODE]

    roots = {case.code for case in story.roots if case.lines and case.tier < WAIT}

    def order(item: Finding) -> tuple[float, ...]:
        severity = _SEVERITY_ORDER[item.severity]
        # Where time goes explains nothing that stands still or died.
        if item.code[0] == COST_FAMILY:
            cost = max(item.measures.get(name, 0.0) for name in _COSTS)
            return severity, True, -cost * (_FAULT_WEIGHT if item.culprits.ranks else 1.0)
        # What was lost comes before all that it may explain, or else after what stopped the job.
        place = 0 if item.code != LOST_CODE else -1 if losses.is_cause else 1
        is_late = item.code not in roots
        return severity, False, place, is_late, _CONFIDENCE_ORDER[item.confidence]

    return sorted(kept, key=order)


def _quieten(finding: Finding) -> Finding:
    """Make a note of what did not stop the job for good; values that were lost stay lost."""
    return finding if finding.code == LOST_CODE else replace(finding, severity=Severity.NOTE)


def _quote(finding: Finding, sources: Mapping[str, str]) -> Finding:
    """Add the text of the lines that a finding names: ``details["code"]["FILE:LINE"]``."""
    code: dict[str, str] = {}
    for place in finding.where:
        lines = sources.get(place.file, "").splitlines()
        if 0 < place.line <= len(lines):
            code[f"{place.file}:{place.line}"] = lines[place.line - 1].strip()
    return replace(finding, details=finding.details | {"code": code}) if code else finding


def _complete(scene: Scene, finding: Finding) -> Finding:
    """Add the nodes of the culprits, what is ruled out, and the lines themselves."""
    nodes = scene.evidence.topology.node_by_rank
    named = {nodes[rank] for rank in finding.culprits.ranks if rank in nodes}
    named |= set(finding.culprits.nodes)
    culprits = replace(finding.culprits, nodes=sorted(named))
    ruled_out = list_ruled_out(scene, finding)
    quoted = _quote(finding, scene.evidence.sources)
    return replace(quoted, culprits=culprits, ruled_out=ruled_out)


def _is_doubtful(scene: Scene) -> bool:
    """Tell whether pending ops may be all that is behind the findings, in a job that goes on."""
    return scene.divergence is None and scene.was_moving


def _doubt(finding: Finding) -> Finding:
    """Make a finding a possible one: a running job has pending ops too."""
    severity = min(finding.severity, Severity.WARNING, key=_DOUBTED.index)
    return replace(finding, severity=severity, confidence=Confidence.POSSIBLE)


def _judge(scene: Scene, findings: Sequence[Finding]) -> Verdict:
    if _is_doubtful(scene):
        return Verdict.INCONCLUSIVE
    blamed = [item for item in findings if item.severity is not Severity.NOTE]
    if not (is_only_traces(scene.evidence) or _is_healthy(scene)):
        blamed = [item for item in blamed if item.code[0] != COST_FAMILY]
    if blamed and blamed[0].code == LOST_CODE:
        return _judge_losses(scene, findings)
    if blamed and _is_undecided(scene, blamed[0]):
        return Verdict.INCONCLUSIVE
    if blamed:
        return _VERDICTS.get(blamed[0].code[0], Verdict.STUCK)
    if scene.has_moved_again or any(item.code in _WAITING_CODES for item in findings):
        return Verdict.WAITING
    return Verdict.HEALTHY if _is_healthy(scene) else Verdict.INCONCLUSIVE


def _is_undecided(scene: Scene, first: Finding) -> bool:
    """Tell whether logs are all there is, and they leave open which of several things it was."""
    is_possible = first.confidence is Confidence.POSSIBLE
    return is_possible and any(case.code == first.code for case in scene.story.roots)


def _judge_losses(scene: Scene, findings: Sequence[Finding]) -> Verdict:
    """Name what became of a job that lost collectives; it may go on, with values of its own."""
    if scene.losses.is_cause:
        return Verdict.CRASHED if scene.is_crash else Verdict.STUCK
    is_live = scene.evidence.incident.kind in {"stall", "snapshot"}
    if not is_live or not scene.is_stalled or scene.has_moved_again:
        return Verdict.DIVERGED
    # Why nothing moves now is another question, and whoever waits must not be called stuck.
    is_waiting = any(item.code in _WAITING_CODES for item in findings)
    return Verdict.WAITING if is_waiting else Verdict.INCONCLUSIVE


def _is_healthy(scene: Scene) -> bool:
    """Tell whether the evidence shows that nothing is wrong, rather than nothing at all."""
    incident = scene.evidence.incident
    ended_badly = any(item.code or item.signal for item in scene.evidence.exits)
    if ended_badly or incident.command_exit or scene.evidence.exceptions:
        return False
    if is_only_traces(scene.evidence):
        return scene.traces.can_judge
    if incident.kind == "exit":
        return True
    if incident.kind == "snapshot":
        return bool(scene.seen_ranks) and not scene.is_stalled
    if incident.kind == "files":
        all_ended_well = bool(scene.ranks) and set(scene.exits_by_rank) >= scene.ranks
        nothing_pending = bool(scene.groups) and not scene.waiting
        return (all_ended_well or nothing_pending) and scene.seen_ranks >= scene.ranks
    return False


def _list_gaps(scene: Scene, verdict: Verdict) -> Iterable[Gap]:
    """Say what the evidence lacks that nobody has told so far."""
    yield from _advise(scene, verdict)
    yield from _note_unrecorded(scene)
    yield from _note_attempts(scene)


def _advise(scene: Scene, verdict: Verdict) -> Iterable[Gap]:
    """Say what to collect when the evidence does not decide."""
    if verdict is not Verdict.INCONCLUSIVE:
        return
    evidence = scene.evidence
    if is_only_traces(evidence):
        if not any(header.events for header in evidence.traces.ranks):
            yield Gap(None, "events in the traces", "nothing ran while they were taken")
        yield from scene.traces.list_gaps()
        return
    if _is_doubtful(scene):
        reason = "the oldest pending op was new when they were written: dump again when it hangs"
        yield Gap(None, "dumps of a job that hangs", reason)
    silent = sorted(scene.suspects - scene.seen_ranks)
    if silent:
        who = format_ranks(set(silent))
        yield Gap(
            None, f"evidence of ranks {who}", "the others wait for them: collect theirs first"
        )
    if _has_only_logs(evidence):
        reason = "those of other ranks, of the launcher and of the kernel (`dmesg -T`) may tell"
        yield Gap(None, "other logs", reason)
        return
    if not len(evidence.collectives):
        yield Gap(None, "flight recorder dump", "none was found: collect one of every rank")
    if not evidence.stacks:
        yield Gap(None, "stacks", "none were found: run `py-spy dump` on every rank")


def _has_only_logs(evidence: Evidence) -> bool:
    """Tell whether all that is known of a job is what it printed."""
    tables = (evidence.collectives, evidence.stacks, evidence.processes, evidence.beats)
    return bool(evidence.logs.files) and not any(len(table) for table in tables)


def _note_attempts(scene: Scene) -> Iterable[Gap]:
    """Say how earlier attempts ended: the ranks were started again, so they are no cause."""
    first: dict[int, LogEvent] = {}
    for event in scene.story.view.earlier:
        if event.role == "cause":
            first.setdefault(event.attempt, event)
    for attempt, event in sorted(first.items()):
        reason = f"started again after: {event.text[:_MAX_TOLD]} ({event.artifact}:{event.row})"
        yield Gap(None, f"attempt {attempt}", reason)


def _note_unrecorded(scene: Scene) -> Iterable[Gap]:
    """Say that some ops cannot be seen in what there is."""
    evidence = scene.evidence
    if scene.unrecorded_ranks and not evidence.stacks and not evidence.peer_waits:
        reason = "gloo does not record them; stacks would show a rank that waits in one"
        yield Gap(None, "sends and receives", reason)


def _measure_coverage(scene: Scene) -> Coverage:
    evidence = scene.evidence
    tables = {
        "flight recorder": evidence.recorded_ops or _count_recorded(evidence),
        "op log": len(evidence.ops),
        "logs": len(evidence.logs.files),
        "stacks": len(evidence.stacks),
        "processes": len(evidence.processes),
        "heartbeats": len(evidence.beats),
        "exceptions": len(evidence.exceptions),
        "exits": len(evidence.exits),
        "fatal stacks": len(evidence.fatals),
        "inspection": len(evidence.inspections),
        "traces": len(evidence.traces),
    }
    sources = [name for name, rows in tables.items() if rows]
    traced = list_traced_ranks(evidence)
    seen = scene.seen_ranks | traced
    expected = scene.ranks | traced | {gap.rank for gap in evidence.gaps if gap.rank is not None}
    world_size = max((header.world_size for header in evidence.traces.ranks), default=0)
    return Coverage(max(len(expected), world_size), len(seen), sources)


def _count_recorded(evidence: Evidence) -> int:
    table = evidence.collectives
    return 0 if all(dump.is_op_log for dump in table.dumps) else len(table)


def _describe(evidence: Evidence, verdict: Verdict, findings: Sequence[Finding]) -> dict[str, Any]:
    incident = evidence.incident
    context: dict[str, Any] = {"kind": incident.kind}
    end_class = classify_end(findings) if verdict in (Verdict.CRASHED, Verdict.STUCK) else ""
    if end_class:
        context["end_class"] = end_class
    if incident.kind == "stall":
        context |= {"stalled_s": incident.stalled_s, "limit_s": incident.limit_s}
    if incident.closed_after_s is not None:
        context["closed_after_s"] = incident.closed_after_s
    if incident.cwd:
        context["cwd"] = incident.cwd
    if incident.command_exit is not None:
        context["command_exit"] = incident.command_exit
    return context
