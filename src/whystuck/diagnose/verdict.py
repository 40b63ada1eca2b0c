"""The one word for a job, from its findings and from what the evidence shows."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.check_rule import is_told_by_check
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.health import find_answered, find_ended
from whystuck.diagnose.rulebook import Rulebook
from whystuck.diagnose.summaries.advice import has_only_logs, is_doubtful
from whystuck.diagnose.summaries.checks import is_checked, is_only_checks
from whystuck.diagnose.traces.presence import is_only_traces
from whystuck.evidence.finding import (
    Confidence,
    Finding,
    Severity,
    Verdict,
)
from whystuck.evidence.logs.lines import LogEvent

_VERDICTS = {
    codes.CRASH: Verdict.CRASHED,
    codes.HANG: Verdict.STUCK,
    codes.NODE: Verdict.UNFIT,
    codes.COST: Verdict.SLOW,
    codes.SLOW: Verdict.SLOW,
    codes.VALUES: Verdict.DIVERGED,
}


# What launchers and schedulers write of a job that ended well.
_PASSED = {"job.passed", "job.workers_passed"}


def guess(findings: Sequence[Finding]) -> Verdict:
    """Return the verdict that the first finding alone gives."""
    blamed = [item for item in findings if item.severity is not Severity.NOTE]
    return _VERDICTS.get(blamed[0].code[0], Verdict.STUCK) if blamed else Verdict.INCONCLUSIVE


def withhold(verdict: Verdict, findings: Sequence[Finding]) -> Verdict:
    """Return a verdict in which nothing is called well that was not judged as a whole."""
    is_well = verdict is Verdict.HEALTHY or (verdict is Verdict.WAITING and not findings)
    return Verdict.INCONCLUSIVE if is_well else verdict


def judge(scene: Scene, findings: Sequence[Finding], book: Rulebook) -> Verdict:
    """Return the verdict of a job whose findings are in order."""
    if is_doubtful(scene):
        return Verdict.INCONCLUSIVE
    blamed = [item for item in findings if item.severity is not Severity.NOTE]
    is_judged = is_only_traces(scene.evidence) or _is_healthy(scene) or _tells_of_pace_alone(scene)
    if not is_judged:
        blamed = [item for item in blamed if item.code[0] != codes.COST]
    if blamed and book.find_rule(blamed[0].code).is_loss:
        return _judge_losses(scene, _list_quiet(findings, book))
    if blamed and (_is_undecided(scene, blamed[0]) or _is_mere_hint(scene, blamed[0])):
        return Verdict.INCONCLUSIVE
    if blamed:
        return _VERDICTS.get(blamed[0].code[0], Verdict.STUCK)
    return _judge_quiet(scene, _list_quiet(findings, book))


def _list_quiet(findings: Sequence[Finding], book: Rulebook) -> set[Verdict | None]:
    """Return the verdicts that findings give in which nobody is to blame."""
    return {book.find_rule(item.code).quiet_verdict for item in findings}


def _judge_quiet(scene: Scene, quiet: Collection[Verdict | None]) -> Verdict:
    """Name the state of a job in which nobody is to blame for anything."""
    if scene.movement.has_moved_again or Verdict.WAITING in quiet:
        return Verdict.WAITING
    evidence, view = scene.evidence, scene.story.view
    is_well = _is_healthy(scene) or _goes_on(scene) or scene.movement.has_made_steps
    told = _find_passed(scene) or find_ended(evidence, view) or find_answered(evidence, view)
    is_slow = Verdict.SLOW in quiet
    if is_slow and _tells_of_pace_alone(scene):
        return Verdict.SLOW
    if not (is_well or told or evidence.incident.is_past):
        return Verdict.INCONCLUSIVE
    return Verdict.SLOW if is_slow else Verdict.HEALTHY


def _tells_of_pace_alone(scene: Scene) -> bool:
    """Tell whether logs are all there is, and nothing in them stopped, failed or ended."""
    evidence, view = scene.evidence, scene.story.view
    failed = (
        *view.exceptions,
        *view.fatals,
        *(one for one in view.exits if one.code or one.signal),
        *view.list_signatures("paste.stopped"),
        *(event for event in view.events if event.role in {"cause", "cascade"}),
    )
    return evidence.incident.kind == "files" and has_only_logs(evidence) and not failed


def _goes_on(scene: Scene) -> bool:
    """Tell whether the one log that there is shows steps until somebody looked, and no end."""
    evidence = scene.evidence
    files = evidence.logs.files
    failed = (*evidence.exceptions, *evidence.fatals, *evidence.exits, *evidence.stacks)
    return (
        evidence.incident.kind == "files"
        and len(files) == 1
        and files[0].goes_on
        and not failed
        and not any(event.role in {"cause", "cascade"} for event in scene.story.view.events)
    )


def _find_passed(scene: Scene) -> LogEvent | None:
    """Return the line by which workers ended well; None where a log tells of failures."""
    view = scene.story.view
    failed = (
        *view.exceptions,
        *view.fatals,
        *(one for one in view.exits if one.code or one.signal),
    )
    if scene.evidence.incident.kind != "files" or failed:
        return None
    return next((one for one in view.events if one.signature in _PASSED), None)


def _find_overcome(scene: Scene) -> LogEvent | None:
    """Return the last trouble of the one log that a job got over, with steps after it.

    That does not tell that a job is well: it may hang behind the last step, and nobody has looked
    at it since.
    """
    evidence, view = scene.evidence, scene.story.view
    files = evidence.logs.files
    failed = (
        *view.exceptions,
        *view.fatals,
        *view.exits,
        *evidence.stacks,
        *(event for event in view.events if event.role in {"cause", "cascade"}),
        *view.list_signatures("paste.stopped"),
    )
    if evidence.incident.kind != "files" or len(files) != 1 or failed:
        return None
    past = [one for one in evidence.logs.events if one.is_past and one.role == "cause"]
    last = max(past, key=lambda one: one.row, default=None)
    return last if last is not None and files[0].steps_since > last.row else None


def explain_health(scene: Scene) -> str:
    """Say what line of a log shows that a job is well; an empty text where other things do."""
    if _is_healthy(scene):
        return ""
    if passed := _find_passed(scene):
        return f"its workers ended well, as {passed.artifact} row {passed.row} says"
    evidence, view = scene.evidence, scene.story.view
    if ended := find_ended(evidence, view):
        place = f"{ended.artifact} row {ended.row}"
        return f"its program ended with 0, as stands in {place}"
    if answered := find_answered(evidence, view):
        place = f"{answered.artifact} row {answered.row}"
        return f"its steps came at one pace, and NCCL RAS told of no error after them, in {place}"
    if scene.movement.has_made_steps:
        file = scene.evidence.logs.files[0]
        return f"steps went on after the stacks, until row {file.steps_until} of {file.artifact}"
    return "steps went on until somebody looked" if _goes_on(scene) else ""


def explain_doubt(scene: Scene) -> str:
    """Say what is known of a job of which nothing is known to be wrong; empty for nothing."""
    past = _find_overcome(scene)
    if past is None:
        return ""
    return (
        f"steps went on after row {past.row} of {past.artifact}, the last that tells of trouble; "
        "whether the job still makes them, the log does not tell"
    )


def _is_undecided(scene: Scene, first: Finding) -> bool:
    """Tell whether logs are all there is, and they leave open which of several things it was."""
    if first.confidence is not Confidence.POSSIBLE:
        return False
    # One answer of RAS does not tell a job that hangs from one that is about to go on.
    is_told = scene.ops.recorded_ranks or scene.suspects.explained or scene.suspects.parting
    is_one_look = bool(scene.evidence.ras) and not is_told
    return is_one_look or any(case.code == first.code for case in scene.story.roots)


def _is_mere_hint(scene: Scene, first: Finding) -> bool:
    """Return whether a check only warned of a node, which does not say why a job stopped."""
    is_hint = is_told_by_check(first) and first.severity is not Severity.ERROR
    return is_hint and not is_only_checks(scene.evidence) and not _is_healthy(scene)


def _judge_losses(scene: Scene, quiet: Collection[Verdict | None]) -> Verdict:
    """Name what became of a job that lost collectives; it may go on, with values of its own."""
    if scene.losses.is_cause:
        return Verdict.CRASHED if scene.exits.is_crash else Verdict.STUCK
    is_live = scene.evidence.incident.kind in {"stall", "snapshot"}
    if not is_live or not scene.movement.is_stalled or scene.movement.has_moved_again:
        return Verdict.DIVERGED
    # Why nothing moves now is another question, and whoever waits must not be called stuck.
    return Verdict.WAITING if Verdict.WAITING in quiet else Verdict.INCONCLUSIVE


def _is_healthy(scene: Scene) -> bool:
    """Tell whether the evidence shows that nothing is wrong, rather than nothing at all."""
    incident = scene.evidence.incident
    ended_badly = any(item.code or item.signal for item in scene.evidence.exits)
    if ended_badly or incident.command_exit or scene.evidence.exceptions:
        return incident.is_interrupt and incident.is_moving is True
    if is_only_traces(scene.evidence):
        return scene.traces.can_judge
    if is_only_checks(scene.evidence):
        return is_checked(scene.evidence.checks)
    if incident.kind == "exit":
        return True
    if incident.kind == "snapshot":
        return bool(scene.ranks.seen) and not scene.movement.is_stalled
    return incident.kind == "files" and _ended_well(scene)


def _ended_well(scene: Scene) -> bool:
    """Return whether files show that all ranks ended well, or that nothing was pending."""
    all_ended_well = bool(scene.ranks.all) and set(scene.exits.by_rank) >= scene.ranks.all
    # Nobody saw the last ops of a log without ends be over.
    nothing_pending = bool(scene.ops.groups) and not (
        scene.waits.waiting or scene.ops.endless_ranks
    )
    return (all_ended_well or nothing_pending) and scene.ranks.seen >= scene.ranks.all
