"""The few figures of traces that a report shows: coverage, and where the time went."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from whystuck.diagnose.traces.columns import CAUSES
from whystuck.diagnose.traces.costs import TraceFacts
from whystuck.diagnose.traces.step_time import RankTime
from whystuck.evidence.ranks import format_ranks
from whystuck.evidence.traces.report import TraceBar, TraceOverview, TraceShare

_NS_PER_MS = 1e6
_MAX_BARS = 64
_QUANTILES = ((0.0, "fastest"), (0.25, "25 %"), (0.5, "median"), (0.75, "75 %"), (1.0, "slowest"))
_DIGITS = 4


def describe_traces(facts: TraceFacts) -> TraceOverview:
    """Sum traces up.

    Args:
        facts: What they tell.

    Returns:
        The figures; empty when there is no trace.
    """
    headers = facts.summary.ranks
    if not headers:
        return TraceOverview()
    time = facts.time
    known = {header.rank for header in headers if header.rank >= 0}
    vendors = [header.vendor for header in headers if header.device_events]
    numbers = _list_steps(facts)
    return TraceOverview(
        ranks=format_ranks(known),
        files=len(headers),
        world_size=max(header.world_size for header in headers),
        hosts=len({header.host for header in headers if header.host}),
        vendor=max(vendors, key=vendors.count) if vendors else headers[0].vendor,
        has_device=facts.has_device,
        steps=int(np.median(time.steps)) if len(time) else 0,
        first_step=numbers[0] if numbers else -1,
        last_step=numbers[-1] if numbers else -1,
        step_ms=round(float(np.median(_step_ms(time))), _DIGITS) if len(time) else 0.0,
        device_ms=_device_ms(facts),
        split=_split(time),
        bars=_make_bars(time),
    )


def _list_steps(facts: TraceFacts) -> list[int]:
    """List the numbers that the profiler gave; those of optimizers only count within a trace."""
    table, marks = facts.get("step_time"), facts.get("steps")["mark"]
    if (marks == "optimizer").any():
        return []
    return np.unique(table["step"][table["step"] >= 0]).tolist()  # type: ignore[no-any-return]


def _step_ms(time: RankTime) -> NDArray[np.float64]:
    made: NDArray[np.float64] = time.wall_ns / np.maximum(time.steps, 1) / _NS_PER_MS
    return made


def _device_ms(facts: TraceFacts) -> float:
    if facts.has_steps or not len(facts.time):
        return 0.0
    return round(float(np.median(facts.device_span_ns)) / _NS_PER_MS, _DIGITS)


def _split(time: RankTime) -> list[TraceShare]:
    if not len(time):
        return []
    made = []
    for name in CAUSES:
        shares = time.share(time.parts[name])
        most = int(np.argmax(shares))
        made.append(
            TraceShare(
                name=name,
                share=round(float(np.median(shares)), _DIGITS),
                most=round(float(shares[most]), _DIGITS),
                rank=int(time.ranks[most]),
            )
        )
    return made


def _make_bars(time: RankTime) -> list[TraceBar]:
    if len(time) <= _MAX_BARS:
        return [_make_bar(time, row, str(rank)) for row, rank in enumerate(time.ranks.tolist())]
    return [_make_bar(time, row, label) for row, label in _choose_rows(time)]


def _choose_rows(time: RankTime) -> Iterator[tuple[int, str]]:
    """Yield the ranks at the quantiles of the time of a step, and those with most of a part."""
    order = np.argsort(_step_ms(time), kind="stable")
    for quantile, label in _QUANTILES:
        row = int(order[round(quantile * (len(order) - 1))])
        yield row, f"{label} ({_name(time, row)})"
    for name in CAUSES:
        shares = time.share(time.parts[name])
        row = int(np.argmax(shares))
        if shares[row] > 0:
            yield row, f"most {name.replace('_', ' ')} ({_name(time, row)})"


def _name(time: RankTime, row: int) -> str:
    rank = int(time.ranks[row])
    return f"rank {rank}" if rank >= 0 else "rank unknown"


def _make_bar(time: RankTime, row: int, label: str) -> TraceBar:
    shares = [round(float(time.share(time.parts[name])[row]), _DIGITS) for name in CAUSES]
    return TraceBar(
        label=label if label != "-1" else "unknown",
        step_ms=round(float(_step_ms(time)[row]), _DIGITS),
        shares=shares,
    )
