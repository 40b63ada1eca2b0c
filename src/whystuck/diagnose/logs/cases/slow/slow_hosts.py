"""S302 by tables of the times of hosts: the one that takes longer for work of its own."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.cases.slow.time_tables import is_wait
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 6
_LEAST_HOSTS = 3
# Who is slow takes this much longer than the median, while all others are near to it.
_SLOW, _ALIKE = 1.2, 1.08
_MOST_SHARE = 0.34


def make_slow_hosts(view: LogView) -> Iterator[Case]:
    """Make the case of hosts that take longer than all others, by the last table of them."""
    rows = list(view.list_signatures("table.host_time"))
    last = (rows[-1].artifact, rows[-1].groups["table"]) if rows else ("", "")
    phases: dict[str, dict[str, LogEvent]] = {}
    for row in rows:
        if (row.artifact, row.groups["table"]) == last and not is_wait(row.groups["phase"]):
            phases.setdefault(row.groups["phase"], {})[row.groups["host"]] = row
    for phase, told in phases.items():
        times = {host: float(row.groups["ms"]) for host, row in told.items()}
        slow = _find_slow(times)
        if not slow:
            continue
        usual = median(ms for host, ms in times.items() if host not in slow)
        most = max(times[host] for host in slow)
        yield Case(
            code=codes.SLOW_NODE,
            summary=f"{', '.join(slow)} take{'s' * (len(slow) == 1)} longer than all other hosts, "
            f"who wait ({phase}: {most:.0f} ms, the others take {usual:.0f} ms)",
            tier=NOTE,
            nodes=tuple(slow),
            lines=tuple(told[host] for host in slow)[:_MAX_LINES],
            time=find_time([told[host] for host in slow]),
            details={"phase": phase, "took_ms": most, "others_ms": usual},
        )
        return


def _find_slow(times: dict[str, float]) -> list[str]:
    """Return the few hosts that take longer; none where the others differ as well."""
    if len(times) < _LEAST_HOSTS:
        return []
    usual = median(times.values())
    slow = sorted(host for host, ms in times.items() if ms > _SLOW * usual)
    others = [ms for host, ms in times.items() if host not in slow]
    is_clear = len(slow) <= _MOST_SHARE * len(times) and max(others) <= _ALIKE * min(others)
    return slow if is_clear else []
