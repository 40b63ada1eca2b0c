"""P503 by tables of what devices of ranks do: kernels that do not compute, alone, for most of it.

HTA prints them (`get_temporal_breakdown`), and so do programs with columns of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.cases.slow.own_times import find_slow_ranks
from whystuck.diagnose.logs.cases.slow.time_tables import Times, read_last_table
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence

_MAX_LINES = 6
_LEAST_RANKS = 2
# Of the time of the device, on the rank that has least of it.
_LEAST_SHARE, _LIKELY_SHARE = 0.3, 0.4
# Ranks that wait for another one have more of it than that one, by more than this.
_ALIKE = 0.1
# Kernels of communication, or copies, while nothing computes.
_EXPOSED = re.compile(
    r"non[_ -]?compute(?:[_ ]time)?|exposed[_ -]?comm\w*(?:[_ ]time)?|comm\w*[_ -]exposed"
    r"|(?:non|un|not)[_ -]?overlapp(?:ed|ing)[_ -]?comm\w*|comm\w*[_ -](?:not|non)[_ -]overlapped",
    re.IGNORECASE,
)
_PARTS = re.compile(r"(?:idle|comput(?:e|ation|ing)|busy)(?:[_ ]time)?", re.IGNORECASE)
_WHOLE = re.compile(r"(?:kernel|total|step|iter(?:ation)?|wall)(?:[_ ]time)?", re.IGNORECASE)


def make_breakdowns(view: LogView) -> Iterator[Case]:
    """Make the case of devices that communicate for much of their time while nothing computes.

    All ranks must have as much of it: where one has less, the others wait for it.
    """
    times = read_last_table(view)
    exposed = next((phase for phase in times if _EXPOSED.fullmatch(phase)), "")
    if not exposed or find_slow_ranks(view):
        return
    shares = {rank: _find_share(times, exposed, rank) for rank in times[exposed]}
    least, most = min(shares.values()), max(shares.values())
    if len(shares) < _LEAST_RANKS or least < _LEAST_SHARE or most - least > _ALIKE:
        return
    events = [told.event for told in times[exposed].values()]
    yield Case(
        code=codes.EXPOSED_COMMUNICATION,
        summary=f"devices communicate or copy while nothing computes for {least:.0%} and "
        f"more of their time ({exposed}), alike on all {len(shares)} ranks of the table",
        tier=NOTE,
        lines=tuple(events[:_MAX_LINES]),
        time=find_time(events),
        confidence=Confidence.LIKELY if least >= _LIKELY_SHARE else Confidence.POSSIBLE,
    )


def _find_share(times: Times, exposed: str, rank: int) -> float:
    """Return which part of the time of a rank is exposed; 0 where the whole is not told."""
    own = times[exposed][rank].ms
    wholes, parts = _list_told(times, _WHOLE, rank), _list_told(times, _PARTS, rank)
    whole = max([*wholes, own + sum(parts)]) if wholes or parts else 0.0
    return own / whole if whole else 0.0


def _list_told(times: Times, names: re.Pattern[str], rank: int) -> list[float]:
    """Return what a rank took for the phases of some names."""
    phases = [by_rank for phase, by_rank in times.items() if names.fullmatch(phase)]
    return [by_rank[rank].ms for by_rank in phases if rank in by_rank]
