"""Lines and rows that tell of each step which rank was the slowest, beside what is usual."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import MAX_RANK

_SIGNATURE, _TABLE = "straggler.slowest", "table.slowest"
_UNITS = (
    r"(?:(?!(?:max|min|total|global|avg|mean|cum)_)[a-z]{1,16}_){0,2}(?:tokens?|toks?|samples?|seqs?"
    r"|sequences?|frames?|nodes?|edges?|atoms?|points?|boxes|images?|imgs?|pixels?|patches|seq_?len"
    r"|(?:num|n)_[a-z]{3,20})"
)
# `tokens 6144`, `n_tokens=6144`, `6144 tokens`; what is counted in a second is no work.
WORK = re.compile(
    rf"\b{_UNITS}[ =:]{{1,8}}(\d{{1,12}})(?![\w./])|\b(\d{{1,12}}) {_UNITS}(?![\w/])(?! ?per )",
    re.IGNORECASE,
)
_TOOK = re.compile(r"(?<![\w.])(\d{1,9}(?:\.\d{1,6})?) ?(ms|us|s)(?![\w/])")
MS = {"s": 1000.0, "us": 0.001, "ms": 1.0}
_SLOWEST = re.compile(r"\b(?:slowest|straggler|longest)", re.IGNORECASE)
_USUAL = re.compile(
    r"\b(?:medians?|means?|averages?|avg|typical|usual|p50|others?|the rest)(?![a-z])",
    re.IGNORECASE,
)
_LEAST_LINES = 3
_LEAST_MS = 0.001
# Who has so many times the work of the others is slow for that.
_MORE_WORK = 1.15
# Of so much more than its work explains, a rank takes long by itself.
_SLACK = 1.15
# No rank is the slowest in more lines than this share.
_MOST = 0.5


@dataclass(frozen=True)
class Slowest:
    """The slowest rank of a step, how long it takes, and how long ranks do usually.

    Attributes:
        work: How much it had to do, and what is usual; 0 where nobody says so.
    """

    rank: int
    ms: float
    usual_ms: float
    work: float
    usual_work: float
    event: LogEvent

    @property
    def is_explained(self) -> bool:
        """Whether a rank had more to do, and took no longer than that explains."""
        if min(self.work, self.usual_work) <= 0:
            return False
        more = self.work / self.usual_work
        return more >= _MORE_WORK and self.ms / self.usual_ms <= _SLACK * more


def list_slowest(view: LogView) -> list[Slowest]:
    """Return what lines tell of the slowest rank of steps."""
    told = [one for event in view.list_signatures(_SIGNATURE) if (one := _read(event)) is not None]
    return told or [_read_row(event) for event in view.list_signatures(_TABLE)]


def list_phases(view: LogView) -> Iterator[LogEvent]:
    """Yield the lines in which ranks tell their times, less those that tell of the slowest."""
    others = {(one.artifact, one.row) for one in view.list_signatures(_SIGNATURE)}
    for event in view.list_signatures("progress.phases"):
        if (event.artifact, event.row) not in others:
            yield event


def is_by_work(told: Sequence[Slowest]) -> bool:
    """Tell whether it is the work of each step that makes a rank the slowest of it."""
    explained = sum(one.is_explained for one in told)
    return len(told) >= _LEAST_LINES and explained > (1 - _MOST / 2) * len(told)


def changes(ranks: Iterable[int]) -> bool:
    """Tell whether it is another rank time after time."""
    counts = Counter(ranks)
    return len(counts) >= _LEAST_LINES and max(counts.values()) <= _MOST * counts.total()


def _read(event: LogEvent) -> Slowest | None:
    rank, text = int(event.groups["slow"]), event.text
    slowest = _SLOWEST.search(text)
    usual = slowest and (_USUAL.search(text, slowest.end()) or _USUAL.search(text))
    if slowest is None or usual is None or rank > MAX_RANK:
        return None
    is_first = slowest.start() < usual.start()
    own = text[slowest.start() : usual.start() if is_first else len(text)]
    others = text[usual.start() : len(text) if is_first else slowest.start()]
    took, usually = _read_ms(own), _read_ms(others)
    if took <= 0 or usually <= 0:
        return None
    return Slowest(rank, took, usually, _read_work(own), _read_work(others), event)


def _read_row(event: LogEvent) -> Slowest:
    took, usual, work, usual_work = (
        float(event.groups.get(name) or 0) for name in ("took", "usual", "work", "usual_work")
    )
    return Slowest(int(event.groups["slow"]), took, max(usual, _LEAST_MS), work, usual_work, event)


def _read_ms(text: str) -> float:
    match = _TOOK.search(text)
    return float(match[1]) * MS[match[2]] if match else 0.0


def _read_work(text: str) -> float:
    match = WORK.search(text)
    return float(match[1] or match[2]) if match else 0.0
