"""The report as Markdown, for issues, pull requests and chat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whystuck.evidence.finding import Report
from whystuck.evidence.sections import Timeline
from whystuck.report.checks import lay_out_checks
from whystuck.report.communication import Table, lay_out_communication
from whystuck.report.executed import lay_out_executed
from whystuck.report.logs import LogRow, lay_out_logs
from whystuck.report.stacks import StackRow, label_ranks
from whystuck.report.timeline import MARKS, lay_out_timeline
from whystuck.report.traces import lay_out_traces
from whystuck.report.values import lay_out_values
from whystuck.report.words import GAP_CODE, FindingWords, ReportWords, describe_report
from whystuck.safe_text.markdown import code, escape, strong


def render_markdown(report: Report) -> str:
    """Return the report as GitHub-flavoured Markdown."""
    return "\n".join(_report(describe_report(report), report)).rstrip() + "\n"


def _report(words: ReportWords, report: Report) -> Iterator[str]:
    headline = escape(" · ".join(words.headline))
    yield f"{strong(words.verdict)}: {escape(words.sentence)} ({headline})"
    yield ""
    if words.job:
        yield escape(" · ".join(words.job))
        yield ""
    if words.next_step:
        yield f"- **fix:** {escape(words.next_step)}"
        yield ""
    for index, finding in enumerate(words.findings):
        yield from _finding(finding)
        if index == 0:
            yield from _stacks(words.stacks)
    if not words.findings and words.verdict != "healthy":
        yield from _stacks(words.stacks)
    yield from render_timelines(report.timeline, words.named_ranks)
    yield from _executed(report)
    yield from _logs(report)
    yield from _tables(report)
    yield from _traces(report)
    yield from (f"- `note[{GAP_CODE}]` {escape(gap)}" for gap in words.gaps)
    if words.gaps:
        yield ""
    if words.other_runs:
        yield escape(words.other_runs)
        yield ""
    if words.findings:
        page = code(f"whystuck explain {words.findings[0].code}")
        yield f"Found {words.count} · {page} explains the first"


def _executed(report: Report) -> Iterator[str]:
    for title, lines in lay_out_executed(report):
        yield escape(title)
        yield ""
        yield from (f"- {code(line)}" for line in lines)
        yield ""


def _finding(finding: FindingWords) -> Iterator[str]:
    yield f"### {code(f'{finding.severity}[{finding.code}]')} {escape(finding.summary)}"
    yield ""
    for place in finding.places:
        where = code(f"{place.file}:{place.line}")
        yield f"{where} in {code(place.function)} · {escape(place.ranks)}"
        if place.code:
            yield f"> {code(place.code)}"
        yield ""
    yield from _entry("why", [f"{text} [{n}]" if n else text for text, n in finding.why])
    numbered = [f"[{number}] {artifact}" for number, artifact in enumerate(finding.evidence, 1)]
    yield from _entry("evidence", [" · ".join(numbered)])
    yield from _entry("figures", [" · ".join(finding.figures)])
    yield from _entry("culprit", [finding.culprits])
    yield from _entry("victims", [finding.victims])
    yield from _entry("ruled out", [" · ".join(finding.ruled_out)])
    yield from _entry("fix", finding.remedies)
    yield from _entry("confidence", [finding.confidence])
    yield ""


def _entry(label: str, texts: Sequence[str]) -> Iterator[str]:
    yield from (f"- **{label}:** {escape(text)}" for text in texts if text)


def _stacks(rows: Sequence[StackRow]) -> Iterator[str]:
    if not rows:
        return
    yield "| ranks | where they are now (main thread) |"
    yield "|---|---|"
    for row in rows:
        frames = [f"{function} {place}" for function, place in row.frames]
        chain = " > ".join([*frames, row.inside] if row.inside else frames)
        yield f"| {escape(label_ranks(row.ranks))} | {code(chain)} |"
    yield ""


def render_timelines(
    items: Sequence[Timeline], named: frozenset[int] = frozenset()
) -> Iterator[str]:
    """Yield the lines of one table for each timeline."""
    for item in items:
        table = lay_out_timeline(item, named=named)
        yield strong(table.title)
        yield ""
        yield f"| | {' | '.join(escape(cell) for cell in table.header)} |"
        yield "|---" * (len(table.header) + 1) + "|"
        for row in table.rows:
            cells = [escape(cell) for cell in row.cells]
            if row.stack:
                cells[-1] = "<br>".join(escape(frame) for frame in row.stack)
            yield f"| {escape(MARKS.get(row.mark, ''))} | {' | '.join(cells)} |"
        yield ""
        for note in (*table.notes, table.legend):
            if note:
                yield f"{escape(note)}"
                yield ""


def _logs(report: Report) -> Iterator[str]:
    table = lay_out_logs(report.logs)
    if table is None:
        return
    yield strong(table.title)
    yield ""
    yield from _log_rows("time", table.rows, table.more)
    if table.unknown:
        yield "**lines that nobody knows**"
        yield ""
        yield from _log_rows("count", table.unknown, table.more_unknown)
    for note in table.notes:
        yield escape(note)
        yield ""


def _log_rows(first: str, rows: Sequence[LogRow], more: str) -> Iterator[str]:
    if not rows:
        return
    yield f"| | {first} | who | where | line |"
    yield "|---" * 5 + "|"
    for row in rows:
        mark = "**cause**" if row.mark else ""
        line = code(row.text)
        yield f"| {mark} | {escape(row.time)} | {escape(row.who)} | {escape(row.place)} | {line} |"
    yield ""
    if more:
        yield escape(more)
        yield ""


def _tables(report: Report) -> Iterator[str]:
    for table in (
        lay_out_checks(report.checks),
        lay_out_values(report.values),
        lay_out_communication(report.communication),
    ):
        if table is not None:
            yield from _table(table)


def _table(table: Table) -> Iterator[str]:
    yield strong(table.title)
    yield ""
    yield f"| {' | '.join(table.header)} |"
    yield "|---" * len(table.header) + "|"
    for row in table.rows:
        yield f"| {' | '.join(escape(cell) for cell in row)} |"
    yield ""
    for note in table.notes:
        yield escape(note)
        yield ""


def _traces(report: Report) -> Iterator[str]:
    words = lay_out_traces(report.traces)
    if words is None or not words.rows:
        return
    yield strong(words.coverage)
    yield ""
    yield "| where the time went | median | most |"
    yield "|---" * 3 + "|"
    for row in words.rows:
        yield f"| {' | '.join(escape(cell) for cell in row)} |"
    yield ""
