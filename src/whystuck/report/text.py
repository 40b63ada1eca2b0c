"""The report on one screen: root cause first, the shape known from compilers."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence

from whystuck.evidence.finding import Report, Verdict
from whystuck.evidence.sections import Timeline
from whystuck.report.checks import render_checks
from whystuck.report.communication import render_communication
from whystuck.report.executed import render_executed
from whystuck.report.logs import render_logs
from whystuck.report.redact import redact_report
from whystuck.report.stacks import StackRow, label_ranks
from whystuck.report.timeline import render_tables
from whystuck.report.traces import HINT, TraceWords, lay_out_traces
from whystuck.report.values import render_values
from whystuck.report.words import (
    FAILED_CODE,
    GAP_CODE,
    FindingWords,
    PlaceWords,
    ReportWords,
    describe_report,
)
from whystuck.safe_text.escaping import show_line

# One screen: what does not fit is counted, and stands in the JSON and HTML reports.
_MAX_FINDINGS = 3
_MAX_COSTS = 5
_MAX_GAPS = 5
_MAX_PLACES = 4
_MAX_ROWS = 8
_MAX_TIMELINES = 4
_MAX_WHY = 6
# Facts of ours are shorter, and differ by their numbers.
_LONG_WHY = 100
_NUMBER = re.compile(r"[0-9]+")

_CHANGE_HINT = "`whystuck explain P509` · `--tables DIR` writes all changes and the tree of calls"
# Narrower, the columns of the stack table leave no room for a frame.
_MIN_WIDTH = 60

# The few ANSI styles used, by role. No colour carries a meaning that the words do not.
_STYLES = {
    "error": "1;31",
    "warning": "1;33",
    "note": "1;36",
    "healthy": "1;32",
    "inconclusive": "1;33",
    "strong": "1",
    "frame": "34",
    "dim": "2",
}


def render_text(
    report: Report, *, color: bool, width: int, redact: bool = False, ops: bool = False
) -> str:
    """Return the report as text, wrapped at ``width`` columns, with a newline at its end.

    The timeline of the ops is left out unless ``ops``: it takes a screen of its own.
    """
    shown = redact_report(report) if redact else report
    layout = _Layout(color=color, width=width)
    timelines = shown.timeline[:_MAX_TIMELINES] if ops else []
    words = describe_report(shown)
    if words.findings and shown.context.get("kind") == "trace diff":
        return "\n".join(layout.change(words)) + "\n"
    if shown.traces.files and all(_is_of_traces(item.code) for item in shown.findings):
        return "\n".join(layout.costs(words, lay_out_traces(shown.traces))) + "\n"
    tables = [
        *render_checks(shown.checks, max(width, _MIN_WIDTH)),
        *render_executed(shown),
        *render_values(shown.values),
        *render_communication(shown.communication),
    ]
    if _concerns_logs(shown):
        tables = [*render_logs(shown.logs, max(width, _MIN_WIDTH)), *tables]
    return "\n".join(layout.report(words, timelines, tables)) + "\n"


def _is_of_traces(code: str) -> bool:
    return code[0] == "P" or code == FAILED_CODE


def _concerns_logs(report: Report) -> bool:
    """Tell whether errors in logs have to do with the verdict; logs are never free of them."""
    if report.verdict in (Verdict.CRASHED, Verdict.INCONCLUSIVE):
        return True
    return any(line.is_cause for line in report.logs.first)


def make_painter(*, color: bool) -> Callable[[str, str], str]:
    """Return a function that colours a text for a role; without colour, one that does nothing."""
    return _Layout(color=color, width=_MIN_WIDTH).paint


class _Layout:
    """Lays words out in lines of one width."""

    def __init__(self, *, color: bool, width: int) -> None:
        self._color = color
        self._width = max(width, _MIN_WIDTH)

    def report(
        self, words: ReportWords, timelines: Sequence[Timeline], tables: Sequence[str]
    ) -> Iterator[str]:
        """Yield all lines of a report; ``tables`` are lines that come after the findings."""
        is_short = not (words.findings or words.gaps or words.other_runs)
        if words.verdict == "healthy" and is_short:
            yield self._healthy(words)
            yield from self._timelines(words, timelines)
            yield from ("", *tables[:-1]) if tables else ()
            return
        yield from self._headline(words)
        yield ""
        if words.verdict in ("healthy", "inconclusive"):
            yield from self._titled(words.verdict, words.verdict, words.sentence)
            if words.next_step:
                yield from self._entry(2, "fix", [words.next_step])
            yield ""
        findings, failed = _split(words.findings)
        if not findings and words.stacks:
            yield from self._stacks(2, words.stacks, frozenset())
            yield ""
        yield from self._findings(findings, words.stacks)
        yield from self._timelines(words, timelines)
        yield from tables
        yield from self._failed(failed)
        yield from self._gaps(words.gaps)
        if words.other_runs:
            yield from self._wrap(words.other_runs, indent="      ", first="note: ")
            yield ""
        yield self._closing(words)

    def costs(self, words: ReportWords, traces: TraceWords | None) -> Iterator[str]:
        """Yield the lines of a report about traces alone, some for each finding."""
        split = traces.split if traces else ""
        yield from self._headline(words)
        yield from self._wrap(split, indent="     ", first=" ") if split else ()
        yield ""
        if words.verdict in ("healthy", "inconclusive"):
            yield from self._titled(words.verdict, words.verdict, words.sentence)
            yield from self._entry(2, "fix", [words.next_step])
        findings, failed = _split(words.findings)
        for finding in findings[:_MAX_COSTS]:
            label = f"{finding.severity}[{finding.code}]"
            yield from self._titled(finding.severity, label, finding.summary)
            gutter = _gutter(finding)
            yield from self._places(gutter, finding.places)
            if finding.severity != "note":
                yield from self._entry(gutter, "why", [" · ".join(text for text, _ in finding.why)])
                yield from self._entry(gutter, "fix", finding.remedies[:1])
        if len(findings) > _MAX_COSTS:
            yield f"and {len(findings) - _MAX_COSTS} more: `--format json` has all"
        yield from self._failed(failed)
        yield from self._gaps(words.gaps)
        first = f"`whystuck explain {words.findings[0].code}` · " if words.findings else ""
        yield from self._wrap(first + HINT, indent="      ", first="hint: ")
        yield self._closing(words)

    def change(self, words: ReportWords) -> Iterator[str]:
        """Yield the lines of a report about what changed between two runs."""
        yield from self._headline(words)
        yield ""
        for finding in words.findings:
            label = f"{finding.severity}[{finding.code}]"
            yield from self._titled(finding.severity, label, finding.summary)
            gutter = _gutter(finding)
            yield from self._entry(gutter, "why", _why_lines(finding))
            yield from self._entry(gutter, "fix", finding.remedies[:1])
        yield from self._gaps(words.gaps)
        yield from self._wrap(_CHANGE_HINT, indent="      ", first="hint: ")
        yield self._closing(words)

    def _headline(self, words: ReportWords) -> Iterator[str]:
        for parts in (words.job, words.headline):
            if parts:
                yield from self._wrap(" · ".join(parts), indent=" ")

    def _healthy(self, words: ReportWords) -> str:
        label = self.paint("healthy", "healthy")
        return f"{label}: {words.sentence} ({' · '.join((*words.job, *words.headline))})"

    def _findings(
        self, findings: Sequence[FindingWords], stacks: Sequence[StackRow]
    ) -> Iterator[str]:
        for index, finding in enumerate(findings[:_MAX_FINDINGS]):
            yield from self._finding(finding, stacks if index == 0 else ())
            yield ""
        rest = findings[_MAX_FINDINGS:]
        if rest:
            names = ", ".join(f"{finding.code} {finding.name}" for finding in rest)
            yield from self._wrap(f"and {len(rest)} more: {names}", indent="  ")
            yield ""
        if findings:
            yield f"hint: `whystuck explain {findings[0].code}` explains this finding"
            yield ""

    def _failed(self, findings: Sequence[FindingWords]) -> Iterator[str]:
        """Yield what whystuck itself failed at; all of it is shown."""
        for finding in findings:
            yield from self._titled("note", f"note[{finding.code}]", finding.summary)
            yield from self._entry(2, "why", [text for text, _ in finding.why])
            yield from self._entry(2, "fix", finding.remedies)
        if findings:
            yield ""

    def _finding(self, finding: FindingWords, stacks: Sequence[StackRow]) -> Iterator[str]:
        gutter = _gutter(finding)
        label = f"{finding.severity}[{finding.code}]"
        yield from self._titled(finding.severity, label, finding.summary)
        yield from self._places(gutter, finding.places)
        if stacks:
            yield from self._stacks(gutter, stacks, finding.culprit_ranks)
        yield from self._entry(gutter, "why", _why_lines(finding))
        yield from self._entry(gutter, "evidence", _evidence_lines(finding))
        yield from self._entry(gutter, "figures", [" · ".join(finding.figures)])
        yield from self._entry(gutter, "culprit", [finding.culprits])
        yield from self._entry(gutter, "victims", [finding.victims])
        yield from self._entry(gutter, "ruled out", [" · ".join(finding.ruled_out)])
        yield from self._entry(gutter, "fix", finding.remedies)
        yield from self._entry(gutter, "confidence", [finding.confidence])

    def _places(self, gutter: int, places: Sequence[PlaceWords]) -> Iterator[str]:
        bar = self.paint("frame", " " * (gutter + 1) + "|")
        for place in places[:_MAX_PLACES]:
            arrow = self.paint("frame", " " * gutter + "-->")
            yield f"{arrow} {place.file}:{place.line} in {place.function} · {place.ranks}"
            if place.code:
                number = self.paint("frame", f"{place.line:>{gutter}} |")
                yield bar
                yield f"{number} {place.code}"
        if len(places) > _MAX_PLACES:
            yield f"{bar} and {len(places) - _MAX_PLACES} more places"
        if places:
            yield bar

    def _stacks(
        self, gutter: int, rows: Sequence[StackRow], culprits: frozenset[int]
    ) -> Iterator[str]:
        bar = self.paint("frame", " " * (gutter + 1) + "|")
        ordered = sorted(rows, key=lambda row: not row.ranks & culprits)
        shown = ordered[:_MAX_ROWS]
        column = max(len(label_ranks(row.ranks)) for row in shown)
        yield f"{bar}  where the ranks are now (main thread):"
        for row in shown:
            mark = "->" if row.ranks & culprits else "  "
            label = f"{label_ranks(row.ranks):<{column}}"
            room = self._width - gutter - column - 10
            line = f"{mark} {label}  {_chain(row, room)}"
            yield f"{bar}  {self.paint('strong', line) if mark.strip() else line}"
        if len(ordered) > len(shown):
            yield f"{bar}     and {len(ordered) - len(shown)} more places"
        yield bar

    def _entry(self, gutter: int, label: str, texts: Sequence[str]) -> Iterator[str]:
        """Yield ``= label: text``, with further texts below the first."""
        lead = f"{' ' * (gutter + 1)}= {label}: "
        hanging = " " * len(lead)
        first = True
        for text in filter(None, texts):
            for line in self._wrap(text, indent=hanging, first=lead if first else hanging):
                body = line.removeprefix(lead)
                yield self._paint_lead(gutter, label) + body if first else line
                first = False

    def _timelines(self, words: ReportWords, timelines: Sequence[Timeline]) -> Iterator[str]:
        yield from render_tables(timelines, self._width, self.paint, words.named_ranks)

    def _gaps(self, gaps: Sequence[str]) -> Iterator[str]:
        for gap in gaps[:_MAX_GAPS]:
            yield from self._titled("note", f"note[{GAP_CODE}]", gap)
        if len(gaps) > _MAX_GAPS:
            yield f"note[{GAP_CODE}]: and {len(gaps) - _MAX_GAPS} more gaps"
        if gaps:
            yield ""

    def _closing(self, words: ReportWords) -> str:
        return f"Found {words.count} · verdict: {words.verdict}"

    def _titled(self, role: str, label: str, text: str) -> Iterator[str]:
        lines = self._wrap(text, indent="    ", first=f"{label}: ")
        yield self.paint(role, label) + self.paint("strong", lines[0].removeprefix(label))
        yield from (self.paint("strong", line) for line in lines[1:])

    def _wrap(self, text: str, *, indent: str, first: str | None = None) -> list[str]:
        return textwrap.wrap(
            text,
            self._width,
            initial_indent=indent if first is None else first,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )

    def _paint_lead(self, gutter: int, label: str) -> str:
        return self.paint("frame", " " * (gutter + 1) + "=") + f" {self.paint('strong', label)}: "

    def paint(self, role: str, text: str) -> str:
        """Colour a text for a role."""
        return f"\x1b[{_STYLES[role]}m{text}\x1b[0m" if self._color and text else text


def _split(findings: Sequence[FindingWords]) -> tuple[list[FindingWords], list[FindingWords]]:
    """Part what was found from what whystuck itself failed at."""
    found = [finding for finding in findings if finding.code != FAILED_CODE]
    return found, [finding for finding in findings if finding.code == FAILED_CODE]


def _gutter(finding: FindingWords) -> int:
    numbers = [len(str(place.line)) for place in finding.places[:_MAX_PLACES] if place.code]
    return max([2, *numbers])


def _why_lines(finding: FindingWords) -> list[str]:
    """Write the facts; long lines of a log that differ in numbers only are quoted once."""
    texts: list[str] = []
    numbers: dict[str, list[int]] = {}
    for text, number in finding.why[:_MAX_WHY]:
        kind = _NUMBER.sub("#", text) if len(text) > _LONG_WHY else text
        if kind not in numbers or not number:
            texts.append(text)
        numbers.setdefault(kind, []).append(number)
    lines = []
    for text in texts:
        cited = numbers[_NUMBER.sub("#", text) if len(text) > _LONG_WHY else text]
        lines.append(" ".join([text, *(f"[{number}]" for number in cited if number)]))
    if len(finding.why) > _MAX_WHY:
        lines.append(f"and {len(finding.why) - _MAX_WHY} more facts")
    return lines


def _evidence_lines(finding: FindingWords) -> list[str]:
    cited = dict.fromkeys(number for _, number in finding.why[:_MAX_WHY] if number)
    return [" · ".join(f"[{number}] {finding.evidence[number - 1]}" for number in cited)]


def _chain(row: StackRow, room: int) -> str:
    """Write the frames outermost first, and leave outer ones out until they fit."""
    frames = [f"{function} {place}" for function, place in row.frames]
    if row.inside:
        frames.append(row.inside)
    while len(frames) > 1 and len(" > ".join(frames)) > room:
        frames = frames[1:]
    return show_line(" > ".join(frames), max(room, 8))
