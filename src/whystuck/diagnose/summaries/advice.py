"""What evidence lacks that nobody has told so far, and what to collect."""

from __future__ import annotations

from collections.abc import Iterable

from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.story import MAX_CASES
from whystuck.diagnose.summaries.checks import is_only_checks, list_check_gaps
from whystuck.diagnose.traces.presence import is_only_traces
from whystuck.evidence.finding import Gap, Verdict
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.model import Evidence
from whystuck.evidence.ranks import format_ranks

_MAX_TOLD = 120


def is_doubtful(scene: Scene) -> bool:
    """Tell whether pending ops may be all that is behind the findings, in a job that goes on."""
    return scene.movement.was_moving and scene.divergences.first is None


def list_gaps(scene: Scene, verdict: Verdict) -> Iterable[Gap]:
    """Say what the evidence lacks that nobody has told so far."""
    yield from list_check_gaps(scene.evidence)
    yield from _advise(scene, verdict)
    yield from _note_unrecorded(scene)
    yield from _note_attempts(scene)
    if scene.story.is_cut:
        reason = f"of one kind there are more than {MAX_CASES}: the earliest are compared"
        yield Gap(None, "comparison of all failures in the logs", reason)


def _advise(scene: Scene, verdict: Verdict) -> Iterable[Gap]:
    """Say what to collect when the evidence does not decide."""
    if verdict is not Verdict.INCONCLUSIVE:
        return
    evidence = scene.evidence
    if is_only_checks(evidence):
        return  # the checks that are incomplete are gaps, and say why
    if is_only_traces(evidence):
        if not any(header.events for header in evidence.traces.ranks):
            yield Gap(None, "events in the traces", "nothing ran while they were taken")
        yield from scene.traces.list_gaps()
        return
    if is_doubtful(scene):
        reason = "the oldest pending op was new when they were written: dump again when it hangs"
        yield Gap(None, "dumps of a job that hangs", reason)
    silent = sorted(scene.waits.suspects - scene.ranks.seen)
    if silent:
        who = format_ranks(set(silent))
        yield Gap(
            None, f"evidence of ranks {who}", "the others wait for them: collect theirs first"
        )
    if has_only_logs(evidence):
        reason = "those of other ranks, of the launcher and of the kernel (`dmesg -T`) may tell"
        yield Gap(None, "other logs", reason)
        return
    if not len(evidence.collectives):
        yield Gap(None, "flight recorder dump", "none was found: collect one of every rank")
    if not evidence.stacks:
        yield Gap(None, "stacks", "none were found: run `py-spy dump` on every rank")


def has_only_logs(evidence: Evidence) -> bool:
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
    if scene.ops.unrecorded_ranks and not evidence.stacks and not evidence.peer_waits:
        reason = "gloo does not record them; stacks would show a rank that waits in one"
        yield Gap(None, "sends and receives", reason)
