"""Runs the rules, puts the root cause first, and finds the one word for the job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.stack_tree import merge_stacks
from whystuck.diagnose.check_rule import is_told_by_check
from whystuck.diagnose.context.losses import Losses
from whystuck.diagnose.context.ras_facts import cite_ras, count_ranks
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.context.teardown import find_teardown_ns, set_teardown_apart
from whystuck.diagnose.failures import Failures
from whystuck.diagnose.logs.story import WAIT, Story
from whystuck.diagnose.logs.summary import summarize_logs
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Rule
from whystuck.diagnose.rulebook import Rulebook
from whystuck.diagnose.rules import RULES
from whystuck.diagnose.summaries.advice import is_doubtful, list_gaps
from whystuck.diagnose.summaries.checks import list_check_rows
from whystuck.diagnose.summaries.coverage import measure_coverage
from whystuck.diagnose.summaries.end_class import classify_end
from whystuck.diagnose.summaries.executed_lines import list_executed
from whystuck.diagnose.summaries.ops_view import View
from whystuck.diagnose.summaries.ruled_out import list_ruled_out
from whystuck.diagnose.summaries.timeline import build_timeline, find_parting
from whystuck.diagnose.summaries.values import list_values
from whystuck.diagnose.traces.overview import describe_traces
from whystuck.diagnose.traces.presence import list_traced_ranks
from whystuck.diagnose.verdict import explain_doubt, explain_health, guess, judge, withhold
from whystuck.evidence.finding import Confidence, Coverage, Finding, Report, Severity, Verdict
from whystuck.evidence.logs.report import LogSummary
from whystuck.evidence.model import Evidence
from whystuck.evidence.ranks import is_process
from whystuck.evidence.sections import Communication, ExecutedPath, StackNode, Timeline
from whystuck.evidence.traces.report import TraceOverview

# What is measured of a device, and tells whose it is only beside that.
_OF_DEVICES = {codes.DEVICE_THROTTLED, codes.PCIE_DEGRADED}
_DOUBTED = [Severity.NOTE, Severity.WARNING, Severity.ERROR]


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
    book = Rulebook((*RULES, *rules))
    failures = Failures()
    attempt, gather = failures.attempt, failures.gather
    evidence = attempt("what came after the end", lambda: _cut_end(evidence, policy), evidence)
    scene = Scene(evidence, policy)
    findings = _find(scene, rules, book, failures)
    verdict = attempt("the verdict", lambda: judge(scene, findings, book), guess(findings))
    gaps = gather("what the evidence lacks", lambda: list_gaps(scene, verdict))
    coverage = attempt("the coverage", lambda: measure_coverage(scene), Coverage(0, 0))
    context = attempt(
        "the headline", lambda: _describe(scene, verdict, findings, book), dict[str, Any]()
    )
    tables = _make_tables(scene, findings, view, book, failures)
    return replace(
        tables,
        verdict=withhold(verdict, findings) if failures or evidence.is_partly_read else verdict,
        findings=[*findings, *failures.list_findings()],
        gaps=[*evidence.gaps, *gaps],
        coverage=coverage,
        job=evidence.job,
        context=context,
    )


def _make_tables(
    scene: Scene, findings: list[Finding], view: View | None, book: Rulebook, failures: Failures
) -> Report:
    """Make a report that holds what is shown beside the findings, and nothing else."""
    attempt, gather, evidence = failures.attempt, failures.gather, scene.evidence
    return Report(
        verdict=Verdict.INCONCLUSIVE,
        stacks=gather("the merged stacks", lambda: _merge_stacks(scene)),
        timeline=gather("the timeline of ops", lambda: _show_ops(scene, findings, view, book)),
        communication=attempt(
            "what communication cost", lambda: scene.pace.communication, Communication()
        ),
        logs=attempt(
            "the lines of logs", lambda: summarize_logs(scene.story.view, findings), LogSummary()
        ),
        executed=gather("the executed lines", lambda: _list_executed(evidence, findings)),
        traces=attempt(
            "the table of traces", lambda: describe_traces(scene.traces), TraceOverview()
        ),
        values=gather("the table of values", lambda: list_values(evidence.inspections)),
        checks=gather("the table of checks", lambda: list_check_rows(evidence)),
    )


def _cut_end(evidence: Evidence, policy: Policy) -> Evidence:
    return set_teardown_apart(evidence, find_teardown_ns(evidence.incident, policy))


def _find(
    scene: Scene, rules: Sequence[type[Rule]], book: Rulebook, failures: Failures
) -> list[Finding]:
    """Run the rules, and put in order what they find."""
    attempt = failures.attempt
    if scene.evidence.incident.kind == "slow":
        # The files were copied from ranks that run, one after the other: nobody is stuck.
        rules = [rule for rule in rules if rule.code[0] == codes.SLOW]
    chosen = [rule for rule in rules if _has_needs(scene.evidence, rule.needs)]
    found = failures.run_rules(chosen, scene, scene.policy)
    losses = attempt("what lost collectives explain", lambda: scene.losses, None)
    roots = failures.gather("the order of what logs tell", lambda: _list_roots(scene.story))
    findings = [
        attempt("details of findings", partial(_complete, scene, book, item), item)
        for item in book.fold(found, losses or Losses(), roots)
    ]
    if scene.movement.has_moved_again:
        findings = [_quieten(item, book) for item in findings]
    if attempt("whether steps went on", lambda: scene.movement.has_made_steps, False):  # noqa: FBT003
        # Who waited in a stack was not stuck.
        findings = [item for item in findings if item.code[0] != codes.HANG]
    if scene.evidence.incident.is_past:
        return [_put_in_the_past(item, scene.evidence.incident.attempt, book) for item in findings]
    # A job that may have moved is not called stuck.
    may_move = attempt("whether the job moved", lambda: is_doubtful(scene), True)  # noqa: FBT003
    if may_move or scene.evidence.incident.is_idle_end:
        return [_doubt(item) for item in findings]
    seen = attempt(
        "whose evidence there is",
        lambda: scene.ranks.seen | list_traced_ranks(scene.evidence),
        frozenset[int](),
    )
    return [
        _doubt(item)
        if book.is_open(item.code, failures.rules, losses)
        # What names a rank that left no evidence, and no log tells of, is a guess.
        or (item.code not in roots and not seen.issuperset(_list_evident(item)))
        else item
        for item in findings
    ]


def _list_evident(finding: Finding) -> set[int]:
    """Return the culprits that must have left evidence.

    Of one that was counted as the only one missing, nothing is there to be left. Of a host or a
    device, what is told of it is enough.
    """
    is_host = finding.code == codes.SLOW_NODE and finding.culprits.nodes
    if is_host or (finding.code in _OF_DEVICES and finding.details.get("devices")):
        return set()
    told = finding.details
    missing, joined, expected = (told.get(name) for name in ("missing", "joined", "expected"))
    if told.get("kind") == "missing-rank" and joined and expected == joined + len(missing or ()):
        return set()
    return set(finding.culprits.ranks)


def _has_needs(evidence: Evidence, needs: Iterable[str]) -> bool:
    """Return whether any of the tables that a rule needs has rows; no needs are always met."""
    names = tuple(needs)
    return not names or any(len(getattr(evidence, name)) for name in names)


def _list_roots(story: Story) -> set[str]:
    """Return the codes of what logs show as a cause."""
    return {case.code for case in story.roots if case.lines and case.tier < WAIT}


def _merge_stacks(scene: Scene) -> list[StackNode]:
    known = {rank: at.frames for rank, at in scene.stacks.positions.items() if not is_process(rank)}
    return merge_stacks(known)


def _list_executed(evidence: Evidence, findings: Sequence[Finding]) -> list[ExecutedPath]:
    named = {rank for item in findings[:1] for rank in item.culprits.ranks}
    return list_executed(evidence.executed, named, evidence.incident.opened_ns)


def _show_ops(
    scene: Scene, findings: list[Finding], view: View | None, book: Rulebook
) -> list[Timeline]:
    if view is None and not any(book.find_rule(item.code).shows_ops for item in findings):
        return []
    parting = find_parting(scene.divergences.first)
    return build_timeline(scene.ops.table, scene.ops.groups, findings, parting, view)


def _quieten(finding: Finding, book: Rulebook) -> Finding:
    """Make a note of what did not stop the job for good; values that were lost stay lost."""
    is_loss = book.find_rule(finding.code).is_loss
    return finding if is_loss else replace(finding, severity=Severity.NOTE)


def _put_in_the_past(finding: Finding, attempt: int, book: Rulebook) -> Finding:
    """Make a note of what ended an attempt of the launcher, after which the job ended well."""
    past = _quieten(finding, book)
    return replace(past, summary=f"attempt {attempt}, before a restart: {finding.summary}")


def _quote(finding: Finding, sources: Mapping[str, str]) -> Finding:
    """Add the text of the lines that a finding names: ``details["code"]["FILE:LINE"]``."""
    code: dict[str, str] = {}
    for place in finding.where:
        lines = sources.get(place.file, "").splitlines()
        if 0 < place.line <= len(lines):
            code[f"{place.file}:{place.line}"] = lines[place.line - 1].strip()
    return replace(finding, details=finding.details | {"code": code}) if code else finding


def _complete(scene: Scene, book: Rulebook, finding: Finding) -> Finding:
    """Add the nodes of the culprits, what is ruled out, and the lines themselves."""
    nodes = scene.evidence.topology.node_by_rank
    named = {nodes[rank] for rank in finding.culprits.ranks if rank in nodes}
    named |= set(finding.culprits.nodes)
    culprits = replace(finding.culprits, nodes=sorted(named))
    ruled_out = list_ruled_out(scene, finding, book.find_rule(finding.code))
    quoted = _quote(finding, scene.evidence.sources)
    because = [
        *finding.because,
        *(
            cite_ras(scene.evidence, count_ranks(scene.ranks.all))
            if _is_stall(scene, finding)
            else ()
        ),
    ]
    sure = finding.confidence
    if sure is Confidence.CERTAIN and scene.evidence.logs.inferred & set(culprits.ranks):
        # In a job of several hosts, the process of this local rank is another rank.
        sure = Confidence.LIKELY
    return replace(quoted, culprits=culprits, ruled_out=ruled_out, because=because, confidence=sure)


def _is_stall(scene: Scene, finding: Finding) -> bool:
    return finding.code[0] == codes.HANG and scene.movement.is_hung


def _doubt(finding: Finding) -> Finding:
    """Make a finding a possible one: a running job has pending ops too."""
    if is_told_by_check(finding):
        return finding  # it was measured before the job
    severity = min(finding.severity, Severity.WARNING, key=_DOUBTED.index)
    return replace(finding, severity=severity, confidence=Confidence.POSSIBLE)


def _describe(
    scene: Scene, verdict: Verdict, findings: Sequence[Finding], book: Rulebook
) -> dict[str, Any]:
    incident = scene.evidence.incident
    context: dict[str, Any] = {"kind": incident.kind}
    end_class = classify_end(findings, book) if verdict in (Verdict.CRASHED, Verdict.STUCK) else ""
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
    if incident.is_past and verdict is Verdict.HEALTHY:
        context["sentence"] = "the job ended well after a restart; what had failed before is a note"
    elif verdict is Verdict.HEALTHY and (sentence := explain_health(scene)):
        context["sentence"] = sentence
    elif verdict is Verdict.INCONCLUSIVE and not findings and (doubt := explain_doubt(scene)):
        context["sentence"] = doubt
    return context
