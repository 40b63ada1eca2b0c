"""P507 by tables of profilers: the device is fed from memory that the system may move."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 6
# Copies of one size that come again and again are those of steps; a model is loaded once.
_LEAST_COPIES = 3
# Of the time from one copy to the next, and of the device's time.
_LEAST_SHARE = 0.05
_LEAST_PERCENT = 10.0
_PAGEABLE, _WAY = "pageable", "Pageable"
_NS_PER_MS = 1e6


def make_pageable(view: LogView) -> Iterator[Case]:
    """Make the case of copies from or to pageable memory that take a part of each step."""
    yield from _make_listed(view)
    yield from _make_shared(view)


def _make_listed(view: LogView) -> Iterator[Case]:
    """Make the case of copies that are listed with their times."""
    copies: dict[tuple[str, ...], list[LogEvent]] = {}
    for row in view.list_signatures("table.copy"):
        told = row.groups
        if _PAGEABLE in {told["source"], told["target"]}:
            key = (row.artifact, told["source"], told["target"], told["size"], told["pid"])
            copies.setdefault(key, []).append(row)
    for rows in copies.values():
        spent = median(_read(row, "ns") for row in rows)
        starts = sorted(_read(row, "start") for row in rows)
        apart = median([later - one for one, later in pairwise(starts)] or [0.0])
        share = spent / apart if apart else 0.0
        if len(rows) >= _LEAST_COPIES and share >= _LEAST_SHARE:
            yield _make_case(
                rows,
                f"copies of {rows[0].groups['size']} MB {_name_way(rows[0])} pageable memory come "
                f"every {apart / _NS_PER_MS:.4g} ms and take {spent / _NS_PER_MS:.4g} ms each: "
                f"{min(share, 1.0):.0%} of the time, in which the host waits for them",
                share,
            )
            return


def _make_shared(view: LogView) -> Iterator[Case]:
    """Make the case of copies whose share a profiler tells among those of kernels."""
    if any(view.list_signatures("table.copy")):
        return
    rows = [row for row in view.list_signatures("table.kernel") if _WAY in row.groups["kernel"]]
    percent = max((float(row.groups["share"]) for row in rows), default=0.0)
    if percent >= _LEAST_PERCENT:
        yield _make_case(
            rows,
            f"copies from or to pageable memory take {percent:.0f} % of the time of the device, "
            "and the host waits for them",
            percent / 100,
        )


def _make_case(rows: Sequence[LogEvent], summary: str, share: float) -> Case:
    return Case(
        code=codes.PAGEABLE_COPIES,
        summary=summary,
        tier=NOTE,
        lines=tuple(rows[:_MAX_LINES]),
        time=find_time(rows),
        confidence=Confidence.LIKELY,
        details={"kind": _name_way(rows[0]), "share": round(min(share, 1.0), 3)},
    )


def _name_way(row: LogEvent) -> str:
    is_from = row.groups.get("source") == _PAGEABLE or f"({_WAY} ->" in row.text
    return "from" if is_from else "to"


def _read(row: LogEvent, name: str) -> float:
    return float(row.groups[name])
