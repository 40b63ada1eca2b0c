"""S302 and S303 by bandwidths of pairs of hosts.

All pairs with one host are slow, and no other is; or one pair alone is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.devices.ports import make_ports
from whystuck.diagnose.logs.cases.slow.link_speeds import SPEED_DETAILS
from whystuck.diagnose.logs.story import WAIT, Case
from whystuck.diagnose.logs.view import LogView, is_same_host
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent

_TIER = WAIT - 2
_MAX_LINES = 6
# Of what most pairs reach; tests differ by less from one run to the next.
_SLOW = 0.7
# So many pairs with a host: one alone would leave open which of both it is.
_LEAST_PAIRS, _LEAST_WELL = 2, 2
_FEW_HOSTS = 3


def make_pairs(view: LogView) -> Iterator[Case]:
    """Make the case of the one host that is slow with all others, where no port tells why."""
    for rows in _list_tables(view):
        slow, usual = _split(rows)
        host = _find_host(rows, slow)
        well = [row for row in rows if row not in slow]
        if not host:
            if _is_sole(slow, well):
                yield _make_pair(slow[0], usual)
                return
            continue
        if not any(make_ports(view)):
            yield _make_case(host, slow, median(map(_read_speed, well)))
        return


def find_slow_pairs(view: LogView) -> dict[str, list[LogEvent]]:
    """Return the hosts whose pairs are all slow, as no others are, with the rows of these pairs."""
    found: dict[str, list[LogEvent]] = {}
    for rows in _list_tables(view):
        slow, _ = _split(rows)
        if host := _find_host(rows, slow):
            found[host] = slow
    return found


def _list_tables(view: LogView) -> Iterator[list[LogEvent]]:
    tables: dict[tuple[str, str], list[LogEvent]] = {}
    for row in view.list_signatures("table.pair"):
        tables.setdefault((row.artifact, row.groups["table"]), []).append(row)
    return map(_list_slower, tables.values())


def _split(rows: Sequence[LogEvent]) -> tuple[list[LogEvent], float]:
    """Return the rows of pairs that are slow, and what pairs usually reach."""
    usual = _find_usual(rows)
    return [row for row in rows if _read_speed(row) < _SLOW * usual], usual


def _find_host(rows: Sequence[LogEvent], slow: Sequence[LogEvent]) -> str:
    """Return the host that all slow pairs have, and no other; empty where there is none."""
    host = _find_shared(slow)
    well = [row for row in rows if row not in slow]
    is_mixed = any(host in _list_ends(row) for row in well)
    return "" if len(well) < _count_least(rows) or is_mixed else host


def _find_usual(rows: Sequence[LogEvent]) -> float:
    """Return the middle of the faster half: of few hosts, one is in most pairs."""
    speeds = sorted(map(_read_speed, rows))
    return median(speeds[len(speeds) // 2 :])


def _count_least(rows: Sequence[LogEvent]) -> int:
    """Return how many pairs must be fast: of three hosts, two have no more than one."""
    return 1 if len(frozenset[str]().union(*map(_list_ends, rows))) == _FEW_HOSTS else _LEAST_WELL


def _is_sole(slow: Sequence[LogEvent], well: Sequence[LogEvent]) -> bool:
    """Tell whether one pair alone is slow, and each of both is well with all others."""
    if len(slow) != 1:
        return False
    ends = _list_ends(slow[0])
    return all(sum(end in _list_ends(row) for row in well) >= _LEAST_WELL for end in ends)


def _make_pair(row: LogEvent, usual: float) -> Case:
    ends = sorted(_list_ends(row))
    return Case(
        code=codes.SLOW_LINK,
        summary=f"{' and '.join(ends)} reach {_read_speed(row):g} with each other, where other "
        f"pairs, and each of both with the others, reach {usual:g}: a link between them is slow",
        tier=_TIER,
        nodes=tuple(ends),
        lines=(row,),
        confidence=Confidence.LIKELY,
        details=SPEED_DETAILS,
        remedies=("look at the switches and cables between both: `ibdiagnet`, `ibtracert`",),
        is_foreign=True,
    )


def _list_slower(rows: Sequence[LogEvent]) -> list[LogEvent]:
    """Return the row of each pair; of its two directions, the slower one."""
    found: dict[frozenset[str], LogEvent] = {}
    for row in rows:
        ends = _list_ends(row)
        if ends not in found or _read_speed(row) < _read_speed(found[ends]):
            found[ends] = row
    return list(found.values())


def _make_case(host: str, slow: Sequence[LogEvent], usual: float) -> Case:
    most = max(map(_read_speed, slow))
    others = sorted({end for row in slow for end in _list_ends(row)} - {host})
    return Case(
        code=codes.SLOW_NODE,
        summary=f"{host} reaches {most:g} with {' and '.join(others[:4])}, where other pairs reach "
        f"{usual:g}: the host, one of its cards or links is slow, and so is every ring through it",
        tier=_TIER,
        nodes=(host,),
        lines=tuple(slow[:_MAX_LINES]),
        confidence=Confidence.LIKELY,
        details={},
        remedies=(f"on {host}: `ibstat` and `mlxlink -d DEVICE`: rate and width of each card",),
        is_foreign=True,
    )


def _find_shared(slow: Sequence[LogEvent]) -> str:
    """Return the one host that all slow pairs have, with several others; empty where none has."""
    ends = [_list_ends(row) for row in slow]
    if len(set(ends)) < _LEAST_PAIRS:
        return ""
    shared = frozenset.intersection(*ends)
    return min(shared) if len(shared) == 1 else ""


def _list_ends(row: LogEvent) -> frozenset[str]:
    one, other = row.groups["one"], row.groups["other"]
    return frozenset() if is_same_host(one, other) else frozenset({one, other})


def _read_speed(row: LogEvent) -> float:
    return float(row.groups["speed"])
