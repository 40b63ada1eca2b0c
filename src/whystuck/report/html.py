"""The report as one HTML file: no network, no script, safe to open from anywhere."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from whystuck import __version__
from whystuck.evidence.finding import Report
from whystuck.evidence.ranks import format_ranks, parse_ranks
from whystuck.evidence.sections import StackNode
from whystuck.report.checks import lay_out_checks
from whystuck.report.communication import lay_out_communication
from whystuck.report.executed import lay_out_executed
from whystuck.report.json import render_json
from whystuck.report.logs import lay_out_logs
from whystuck.report.stacks import label_ranks, limit_depth, short_place
from whystuck.report.timeline import MARKS, lay_out_timeline
from whystuck.report.traces import lay_out_traces
from whystuck.report.values import lay_out_values
from whystuck.report.words import GAP_CODE, ReportWords, describe_report
from whystuck.safe_text.escaping import show_line
from whystuck.safe_text.markdown import split_code

# Beyond this a grid of cells is neither readable nor small.
_MAX_CELLS = 20_000
# Cells show their number as long as there are few.
_MAX_NUMBERED = 256
# A longer run of library frames is folded away.
_LIBRARY_RUN = 3
_MEANINGS = {"culprit": "named as the cause", "victim": "suffers from it", "other": "read"}
_CONFIDENCE_LEVELS = {"possible": 1, "likely": 2, "certain": 3}


@dataclass(frozen=True)
class Cell:
    """One rank in the grid."""

    rank: int
    state: str
    title: str


@dataclass(frozen=True)
class FrameRun:
    """Frames that follow each other and are all user code, or all library code."""

    is_user_code: bool
    frames: tuple[tuple[str, str, str], ...]

    @property
    def is_folded(self) -> bool:
        """Whether the run is hidden until it is asked for."""
        return not self.is_user_code and len(self.frames) > _LIBRARY_RUN


@dataclass(frozen=True)
class StackBlock:
    """Frames that one set of ranks shares, and the blocks in which they part."""

    ranks: str
    all_ranks: str
    state: str
    runs: tuple[FrameRun, ...]
    children: tuple[StackBlock, ...]


def render_html(report: Report) -> str:
    """Return the report as one HTML page."""
    words = describe_report(report)
    page = _environment().get_template("report.html.jinja")
    css = _style_sheet()
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    return page.render(
        words=words,
        cells=_cells(report, words),
        is_numbered=report.coverage.ranks_expected <= _MAX_NUMBERED,
        blocks=_blocks(limit_depth(report.stacks), _RankStates(words)),
        timelines=[lay_out_timeline(item, named=words.named_ranks) for item in report.timeline],
        marks=MARKS,
        logs=lay_out_logs(report.logs, whole=True),
        executed=list(lay_out_executed(report)),
        communication=lay_out_communication(report.communication),
        checks=lay_out_checks(report.checks),
        values=lay_out_values(report.values),
        traces=lay_out_traces(report.traces),
        levels=_CONFIDENCE_LEVELS,
        gap_code=GAP_CODE,
        css=Markup(css),  # noqa: S704 - our own file
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; "
        "form-action 'none'",
        json=_embed(render_json(report)),
        version=__version__,
    )


class _RankStates:
    """Tells what the findings say about a rank: ``culprit``, ``victim`` or ``other``."""

    def __init__(self, words: ReportWords) -> None:
        self._culprits = words.findings[0].culprit_ranks if words.findings else frozenset[int]()
        self._victims = words.findings[0].victim_ranks if words.findings else frozenset[int]()

    def of(self, ranks: Iterable[int]) -> str:
        """Return the state of a rank, or the one that all of a set of ranks share."""
        found = frozenset(ranks)
        if not found or not found <= self._culprits | self._victims:
            return "other"
        if found <= self._culprits:
            return "culprit"
        return "other" if found & self._culprits else "victim"


def _cells(report: Report, words: ReportWords) -> list[Cell]:
    number = max(report.coverage.ranks_expected, report.coverage.ranks_seen)
    if number > _MAX_CELLS:
        return []
    states = _RankStates(words)
    gaps: dict[int, list[str]] = {}
    for gap in report.gaps:
        if gap.rank is not None:
            gaps.setdefault(gap.rank, []).append(f"no {gap.what.removeprefix('no ')}")
    for rank in _not_read(report):
        gaps.setdefault(rank, ["nothing read"])
    return [_cell(rank, states.of([rank]), gaps.get(rank, [])) for rank in range(number)]


def _cell(rank: int, state: str, gaps: Sequence[str]) -> Cell:
    shown = "gap" if state == "other" and gaps else state
    said = [_MEANINGS[shown]] if shown in _MEANINGS else []
    return Cell(rank, shown, show_line(f"rank {rank}: {', '.join([*said, *gaps])}"))


def _not_read(report: Report) -> frozenset[int]:
    """Return ranks nothing is known of. Only stacks tell which; without them it stays open."""
    coverage = report.coverage
    if not report.stacks or coverage.ranks_seen >= coverage.ranks_expected:
        return frozenset()
    seen = frozenset[int]().union(*(parse_ranks(node.ranks) for node in report.stacks))
    return frozenset(range(coverage.ranks_expected)) - seen


def _blocks(nodes: Sequence[StackNode], states: _RankStates) -> tuple[StackBlock, ...]:
    return tuple(_block(node, states) for node in nodes)


def _block(node: StackNode, states: _RankStates) -> StackBlock:
    """Join a chain of nodes with the same ranks into one block."""
    chain = [node]
    while len(chain[-1].children) == 1 and chain[-1].children[0].ranks == node.ranks:
        chain.append(chain[-1].children[0])
    ranks = parse_ranks(node.ranks)
    return StackBlock(
        ranks=label_ranks(ranks),
        all_ranks=format_ranks(ranks),
        state=states.of(ranks),
        runs=tuple(_runs(chain)),
        children=_blocks(chain[-1].children, states),
    )


def _runs(chain: Sequence[StackNode]) -> list[FrameRun]:
    runs: list[tuple[bool, list[tuple[str, str, str]]]] = []
    for node in chain:
        if not runs or runs[-1][0] != node.is_user_code:
            runs.append((node.is_user_code, []))
        full = show_line(f"{node.file}:{node.line}")
        runs[-1][1].append((show_line(node.function), short_place(node.file, node.line), full))
    return [FrameRun(is_user_code, tuple(frames)) for is_user_code, frames in runs]


def _embed(data: bytes) -> Markup:
    """Make JSON safe inside a script element, whatever its strings hold."""
    compact = msgspec.json.format(data, indent=-1).decode()
    for char, code in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        compact = compact.replace(char, code)
    return Markup(compact)  # noqa: S704 - nothing is left that could end the element


def _mark_code(text: str) -> Markup:
    """Escape, and show `code` as code."""
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if is_code else escape(part)
        for is_code, part in split_code(text)
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("whystuck.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["mark_code"] = _mark_code
    return environment


@cache
def _style_sheet() -> str:
    loader = PackageLoader("whystuck.report")
    return loader.get_source(_environment(), "report.css")[0]
