"""The kind of rule that tells what logs say: its finding is a case of the story."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from whystuck.diagnose.log_view import LogView
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.diagnose.scene import Scene
from whystuck.diagnose.story import GENERIC, Case
from whystuck.evidence.finding import Citation, Finding
from whystuck.evidence.live import ExitRecord, PythonException

# So many lines are cited; the report says where, the logs say the rest.
_MAX_CITED = 6
_MAX_TEXT = 240


class LogRule(Rule):
    """A rule whose findings are the cases of its code that follow from nothing else.

    What processes left behind themselves is judged by :meth:`check_live`, before any log; where
    both tell of the same, there is one finding that cites both.
    """

    needs = ("logs", "exceptions", "exits")

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield the findings of live evidence, or those of the cases."""
        live = list(self.check_live(scene, policy)) if scene.story.allows_live(self.code) else []
        cases = scene.story.of(self.code)
        if scene.story.view.has_records:
            # Where whystuck looked itself, what it saw is judged above, and better than here.
            cases = tuple(case for case in cases if case.lines or case.code not in GENERIC)
        if live and not any(case.lines for case in cases):
            yield from live
        elif live:
            # Both tell of the same: what was seen goes before what was written.
            told = [cite for case in cases for cite in cite_case(scene.story.view, case)]
            yield replace(live[0], because=[*live[0].because, *told][:_MAX_CITED])
        else:
            for case in cases:
                yield self.make_case_finding(scene.story.view, case)

    def check_live(self, scene: Scene, policy: Policy) -> Iterator[Finding]:  # noqa: ARG002
        """Yield what exit records, recorded exceptions and stacks show; nothing by default."""
        return iter(())

    def make_case_finding(self, view: LogView, case: Case) -> Finding:
        """Build the finding of a case: what it says, and the lines that say so."""
        finding = self.make_finding(
            case.summary,
            case.confidence,
            Blame(
                ranks=[rank for rank in case.ranks if rank >= 0],
                nodes=case.nodes,
                victims=case.victims,
                where=case.where,
            ),
            because=cite_case(view, case),
            details=dict(case.details),
        )
        return replace(finding, remedies=[*case.remedies, *finding.remedies])


def cite_case(view: LogView, case: Case) -> list[Citation]:
    """Cite the lines, tracebacks and ends of processes that a case rests on."""
    cites = [Citation(event.text[:_MAX_TEXT], event.artifact, event.row) for event in case.lines]
    cites += [_cite_exception(view, item) for item in case.exceptions]
    cites += [_cite_exit(item) for item in case.exits]
    unique: dict[tuple[str, int | None], Citation] = {}
    for cite in cites:
        unique.setdefault((cite.artifact, cite.row), cite)
    return list(unique.values())[:_MAX_CITED]


def _cite_exception(view: LogView, item: PythonException) -> Citation:
    message = item.message.partition("\n")[0]
    text = f"{item.type}: {message}" if message else item.type
    # The line that says what was raised ends the traceback; the traceback begins far above.
    end = view.find_event_of(item)
    return Citation(text[:_MAX_TEXT], item.artifact, end.row if end else item.row or None)


def _cite_exit(item: ExitRecord) -> Citation:
    who = f"rank {item.rank}" if item.rank >= 0 else f"process {item.pid}"
    how = f"by signal {item.signal}" if item.signal else f"with code {item.code}"
    return Citation(f"{who} ended {how}", item.artifact, item.row or None)
