"""The report as Markdown, for issues, pull requests and chat."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from whystuck.evidence.finding import Report, Timeline
from whystuck.report.communication import Table, lay_out_communication
from whystuck.report.executed import lay_out_executed
from whystuck.report.logs import LogRow, lay_out_logs
from whystuck.report.stacks import StackRow, label_ranks
from whystuck.report.timeline import MARKS, lay_out_timeline
from whystuck.report.traces import lay_out_traces
from whystuck.report.values import lay_out_values
from whystuck.report.words import GAP_CODE, FindingWords, ReportWords, describe_report

# What Markdown or HTML inside of it would act on. An underscore within a word does nothing.
_SPECIAL = re.compile(r"[\\*\[\]#|~!]|(?<!\w)_|_(?!\w)")


def render_markdown(report: Report) -> str:
    """Return the report as GitHub-flavoured Markdown."""
    return "\n".join(_report(describe_report(report), report)).rstrip() + "\n"


def _report(words: ReportWords, report: Report) -> Iterator[str]:
    yield f"**{words.verdict}**: {words.sentence} ({_escape(' · '.join(words.headline))})"
    yield ""
    if words.job:
        yield _escape(" · ".join(words.job))
        yield ""
    if words.next_step:
        yield f"- **fix:** {_escape(words.next_step)}"
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
    yield from (f"- `note[{GAP_CODE}]` {_escape(gap)}" for gap in words.gaps)
    if words.gaps:
        yield ""
    if words.other_runs:
        yield _escape(words.other_runs)
        yield ""
    if words.findings:
        code = words.findings[0].code
        yield f"Found {words.count} · `whystuck explain {code}` explains the first"


def _executed(report: Report) -> Iterator[str]:
    for title, lines in lay_out_executed(report):
        yield _escape(title)
        yield ""
        yield from (f"- {_code(line)}" for line in lines)
        yield ""


def _finding(finding: FindingWords) -> Iterator[str]:
    yield f"### `{finding.severity}[{finding.code}]` {_escape(finding.summary)}"
    yield ""
    for place in finding.places:
        yield f"{_code(f'{place.file}:{place.line}')} in {_code(place.function)} · {place.ranks}"
        if place.code:
            yield f"> {_code(place.code)}"
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
    yield from (f"- **{label}:** {_escape(text)}" for text in texts if text)


def _stacks(rows: Sequence[StackRow]) -> Iterator[str]:
    if not rows:
        return
    yield "| ranks | where they are now (main thread) |"
    yield "|---|---|"
    for row in rows:
        frames = [f"{function} {place}" for function, place in row.frames]
        chain = " > ".join([*frames, row.inside] if row.inside else frames)
        yield f"| {_escape(label_ranks(row.ranks))} | {_code(chain, in_table=True)} |"
    yield ""


def render_timelines(
    items: Sequence[Timeline], named: frozenset[int] = frozenset()
) -> Iterator[str]:
    """Yield the lines of one table for each timeline."""
    for item in items:
        table = lay_out_timeline(item, named=named)
        yield f"**{_escape(table.title)}**"
        yield ""
        yield f"| | {' | '.join(_escape(cell) for cell in table.header)} |"
        yield "|---" * (len(table.header) + 1) + "|"
        for row in table.rows:
            cells = [_escape(cell) for cell in row.cells]
            if row.stack:
                cells[-1] = "<br>".join(_escape(frame) for frame in row.stack)
            yield f"| {_escape(MARKS.get(row.mark, ''))} | {' | '.join(cells)} |"
        yield ""
        for note in (*table.notes, table.legend):
            if note:
                yield f"{_escape(note)}"
                yield ""


def _logs(report: Report) -> Iterator[str]:
    table = lay_out_logs(report.logs)
    if table is None:
        return
    yield f"**{_escape(table.title)}**"
    yield ""
    yield from _log_rows("time", table.rows, table.more)
    if table.unknown:
        yield "**lines that nobody knows**"
        yield ""
        yield from _log_rows("count", table.unknown, table.more_unknown)
    for note in table.notes:
        yield _escape(note)
        yield ""


def _log_rows(first: str, rows: Sequence[LogRow], more: str) -> Iterator[str]:
    if not rows:
        return
    yield f"| | {first} | who | where | line |"
    yield "|---" * 5 + "|"
    for row in rows:
        mark = "**cause**" if row.mark else ""
        line = _code(row.text, in_table=True)
        yield f"| {mark} | {row.time} | {_escape(row.who)} | {_escape(row.place)} | {line} |"
    yield ""
    if more:
        yield _escape(more)
        yield ""


def _tables(report: Report) -> Iterator[str]:
    for table in (lay_out_values(report.values), lay_out_communication(report.communication)):
        if table is not None:
            yield from _table(table)


def _table(table: Table) -> Iterator[str]:
    yield f"**{_escape(table.title)}**"
    yield ""
    yield f"| {' | '.join(table.header)} |"
    yield "|---" * len(table.header) + "|"
    for row in table.rows:
        yield f"| {' | '.join(_escape(cell) for cell in row)} |"
    yield ""
    for note in table.notes:
        yield _escape(note)
        yield ""


def _traces(report: Report) -> Iterator[str]:
    words = lay_out_traces(report.traces)
    if words is None or not words.rows:
        return
    yield f"**{_escape(words.coverage)}**"
    yield ""
    yield "| where the time went | median | most |"
    yield "|---" * 3 + "|"
    for row in words.rows:
        yield f"| {' | '.join(_escape(cell) for cell in row)} |"
    yield ""


def _code(text: str, *, in_table: bool = False) -> str:
    """Quote as code; the fence is longer than any run of backticks inside."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    padding = " " if longest or not text.strip() else ""
    quoted = f"{fence}{padding}{text}{padding}{fence}"
    return quoted.replace("|", "\\|") if in_table else quoted


def _escape(text: str) -> str:
    """Escape what Markdown would act on; our own `code` stays code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return _plain(text).replace("`", "\\`")
    return "`".join(part if index % 2 else _plain(part) for index, part in enumerate(parts))


def _plain(text: str) -> str:
    escaped = _SPECIAL.sub(lambda match: "\\" + match[0], text)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
