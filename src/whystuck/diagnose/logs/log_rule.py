"""The kind of rule that tells what logs say: its finding is a case of the story."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from msgspec.structs import replace

from whystuck.diagnose import codes
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.story import GENERIC, Case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.evidence.finding import Citation, Confidence, Finding
from whystuck.evidence.live import ExitRecord, FatalStack, PythonException
from whystuck.evidence.logs.lines import LogEvent

# What one process did or met by itself.
_OF_ONE = {
    codes.PROCESS_KILLED,
    codes.NATIVE_CRASH,
    codes.PYTHON_EXCEPTION,
    codes.DEVICE_OUT_OF_MEMORY,
}
# What all ranks of a slow job feel, whatever makes it slow.
_FELT = {codes.WHOLE_JOB_SLOWER, codes.COMMUNICATION_BOUND}
# So many lines are cited; the report says where, the logs say the rest.
_MAX_CITED = 6
_MAX_TOLD = 3
_MAX_TEXT = 240


class LogRule(Rule):
    """A rule whose findings are the cases of its code that follow from nothing else.

    What processes left behind themselves is judged by :meth:`check_live`, before any log; where
    both tell of the same, there is one finding that cites both.
    """

    needs: ClassVar[tuple[str, ...]] = ("logs", "exceptions", "exits")

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield the findings of live evidence, or those of the cases."""
        view = scene.story.view
        is_seen = view.has_records or scene.evidence.incident.kind != "files"
        allowed = scene.story.allows_live(self.code) and (is_seen or not view.files)
        live = list(self.check_live(scene, policy)) if allowed else []
        cases = scene.story.of(self.code)
        if view.has_records:
            # Where whystuck looked itself, what it saw is judged above, and better than here.
            cases = tuple(case for case in cases if case.lines or case.code not in GENERIC)
        if live and not any(case.lines for case in cases):
            yield from live
        elif live and names_more(cases[0], live[0]):
            yield tell_both(self, cases[0], live[0])
        elif live:
            # Both tell of the same: what was seen goes before what was written.
            told = [cite for case in cases for cite in cite_case(case)]
            yield replace(live[0], because=_keep_first([*live[0].because, *told]))
        else:
            for case in cases:
                yield tell_case(self, case)

    def check_live(self, scene: Scene, policy: Policy) -> Iterator[Finding]:  # noqa: ARG002
        """Yield what exit records, recorded exceptions and stacks show; nothing by default."""
        return iter(())


def tell_both(rule: Rule, case: Case, seen: Finding) -> Finding:
    """Build the finding of a case, which names who it is, with what stacks show of where it is."""
    told = tell_case(rule, case)
    because = [*told.because[:_MAX_TOLD], *seen.because, *told.because[_MAX_TOLD:]]
    return replace(told, because=_keep_first(because))


def tell_alone(rule: Rule, scene: Scene) -> Iterator[Finding]:
    """Yield the findings of cases that say what a job feels, where nothing tells why it does."""
    if all(case.code in _FELT for case in (*scene.story.roots, *scene.story.notes)):
        yield from (tell_case(rule, case) for case in scene.story.of(rule.code))


def names_more(case: Case, seen: Finding) -> bool:
    """Tell whether a case names ranks where stacks, which somebody pasted, name nobody."""
    is_open = seen.confidence is Confidence.POSSIBLE and not seen.culprits.ranks
    return bool(case.ranks) and case.confidence is not Confidence.POSSIBLE and is_open


def tell_case(rule: Rule, case: Case) -> Finding:
    """Build the finding of a case: what it says, and the lines that say so."""
    who = _find_process(case)
    finding = rule.make_finding(
        case.summary.replace("a rank ", f"{who.text} ", 1) if who.text else case.summary,
        case.confidence,
        Blame(
            ranks=[rank for rank in case.ranks if rank >= 0],
            nodes=case.nodes or who.nodes,
            victims=case.victims,
            where=case.where,
        ),
        because=cite_case(case),
        details=dict(case.details),
    )
    return replace(finding, remedies=[*dict.fromkeys((*case.remedies, *finding.remedies))])


@dataclass(frozen=True)
class _Process:
    """A process whose rank is not known: the pod or host that it ran on, and how to name it."""

    nodes: tuple[str, ...] = ()
    text: str = ""


def _find_process(case: Case) -> _Process:
    """Find the one process that a case tells of, where it knows the rank of none."""
    told: tuple[PythonException | FatalStack | ExitRecord | LogEvent, ...]
    told = (*case.exceptions, *case.fatals, *case.exits) or case.lines[:1]
    is_of_one = case.code in _OF_ONE and case.confidence is not Confidence.POSSIBLE
    if not is_of_one or not told or any(item.rank >= 0 for item in told) or case.ranks:
        return _Process()
    nodes = {item.node for item in told} - {""}
    pids = {getattr(item, "pid", 0) for item in told} - {0}
    if len(nodes) > 1 or len(pids) > 1:
        return _Process()
    where = f" on {next(iter(nodes))}" if nodes else ""
    what = f"process {next(iter(pids))}" if pids else "a rank"
    return _Process(tuple(nodes), f"{what}{where}" if nodes or pids else "")


def cite_case(case: Case) -> list[Citation]:
    """Cite the lines, tracebacks and ends of processes that a case rests on."""
    cites = [*case.cites, *(_cite_fatal(item) for item in case.fatals)]
    cites += [Citation(event.text[:_MAX_TEXT], event.artifact, event.row) for event in case.lines]
    cites += [_cite_exception(item) for item in case.exceptions]
    # What was raised before it, on the rank that is cited first.
    cites += [_cite_exception(one) for item in case.exceptions[:1] for one in item.origins]
    cites += [_cite_exit(item) for item in case.exits]
    return _keep_first(cites)


def _keep_first(cites: list[Citation]) -> list[Citation]:
    """Leave out what cites the same place again, and what is too much."""
    unique: dict[tuple[str, int | None], Citation] = {}
    for cite in cites:
        unique.setdefault((cite.artifact or cite.text, cite.row), cite)
    return list(unique.values())[:_MAX_CITED]


def _cite_exception(item: PythonException) -> Citation:
    message = item.message.partition("\n")[0]
    text = f"{item.type}: {message}" if message else item.type
    # The line that says what was raised ends the traceback; the traceback begins far above.
    return Citation(text[:_MAX_TEXT], item.artifact, item.last_row or item.row or None)


def _cite_fatal(item: FatalStack) -> Citation:
    frames = item.threads[0].frames if item.threads else ()
    text = f"faulthandler: {item.reason}"
    if frames:
        text += f' at File "{frames[0].file}", line {frames[0].line} in {frames[0].function}'
    return Citation(text[:_MAX_TEXT], item.artifact, item.site_row or item.row or None)


def _cite_exit(item: ExitRecord) -> Citation:
    who = f"rank {item.rank}" if item.rank >= 0 else f"process {item.pid}"
    how = f"by signal {item.signal}" if item.signal else f"with code {item.code}"
    return Citation(f"{who} ended {how}", item.artifact, item.row or None)
