"""The last executed lines in words, the same for every format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from whystuck.evidence.finding import Report
from whystuck.evidence.sections import ExecutedPath, ExecutedRun, Site
from whystuck.report.stacks import short_place
from whystuck.safe_text.escaping import show_line

# What takes more lines is in the JSON report.
_MAX_RANKS = 2
_MAX_RUNS = 6
_MAX_SEGMENTS = 8
_MAX_LINES = 12


def lay_out_executed(report: Report) -> Iterator[tuple[str, list[str]]]:
    """Yield a title and lines for the threads that matter: of the culprits, else of the first.

    Args:
        report: The report; what its first finding names are the culprits.
    """
    culprits = {rank for item in report.findings[:1] for rank in item.culprits.ranks}
    mains = [path for path in report.executed if path.is_main]
    named = [path for path in mains if path.rank in culprits] or mains[:1]
    for path in named[:_MAX_RANKS]:
        yield _title(path), [_describe(run) for run in path.runs[-_MAX_RUNS:]]


def render_executed(report: Report) -> Iterator[str]:
    """Yield the lines of the section as text."""
    for title, lines in lay_out_executed(report):
        yield title
        yield from (f"  {line}" for line in lines)
        yield ""


def _title(path: ExecutedPath) -> str:
    facts = [f"{path.count} in all"]
    if path.line_ns:
        cost = f"each costs {path.line_ns / 1000:.1f} µs"
        facts.append(cost + ("" if path.share is None else f", {path.share:.1%} of its time"))
    thread = show_line(path.thread, 40)
    return f"last lines that rank {path.rank} executed ({thread}; {'; '.join(facts)}):"


def _describe(run: ExecutedRun) -> str:
    """Write a run as `340 x train.py:12,13 in train > model.py:5,6 in forward`."""
    segments = [
        _describe_segment(list(sites))
        for _, sites in groupby(run.lines, key=lambda site: (site.file, site.function))
    ]
    shown = segments[-_MAX_SEGMENTS:]
    text = " > ".join(shown if len(shown) == len(segments) else ["…", *shown])
    return f"{run.times} x {text}" if run.times > 1 else text


def _describe_segment(sites: Sequence[Site]) -> str:
    lines = [str(site.line) for site in sites][-_MAX_LINES:]
    more = "…," if len(sites) > len(lines) else ""
    first = sites[0]
    place = short_place(first.file, 0).removesuffix(":0")
    return show_line(f"{place}:{more}{','.join(lines)} in {first.function}", 300)
