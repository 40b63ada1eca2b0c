"""S303 by what ethtool prints on several hosts: one interface is slower than the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.cases.prompts import find_prompt_host
from whystuck.diagnose.logs.story import WAIT, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 6
# Below waits: it explains why a job is slow, and that ranks ran into a time limit is another thing.
_TIER = WAIT + 1
# Ethernet of the next lower standard has less than half of the speed.
_MIN_RATIO = 2.0
# Of a link that hosts tell of, which no op of a rank showed.
SPEED_DETAILS: Mapping[str, Any] = {
    "kind": "speed",
    "pair": [],
    "from": -1,
    "to": -1,
    "ends": [],
    "direction": "",
    "interface": "",
    "step": -1,
}


def make_link_speeds(view: LogView) -> Iterator[Case]:
    """Make the case of hosts whose interface has agreed on less than the fastest of the others."""
    told: dict[str, tuple[int, LogEvent]] = {}
    for event in view.list_signatures("nic.speed"):
        host = find_prompt_host(view, event, "nic.asked")
        if host:
            told[host] = int(event.groups["mbit"]), event
    most = max((mbit for mbit, _ in told.values()), default=0)
    slow = sorted(host for host, (mbit, _) in told.items() if mbit * _MIN_RATIO <= most)
    # Lines that are alike are kept once: that of a second slow host would be the first one's.
    count = sum(event.count for _, event in told.values())
    is_told_once = all(told[host][1].count == 1 for host in slow)
    if not slow or not is_told_once or 2 * len(slow) > count:
        return
    events = [told[host][1] for host in slow]
    rest = [event for host, (_, event) in told.items() if host not in slow]
    mbit = min(told[host][0] for host in slow)
    yield Case(
        code=codes.SLOW_LINK,
        summary=f"the network of {' and '.join(slow)} runs at {mbit} Mb/s, that of others at "
        f"{most}: a cable, a port or its settings",
        tier=_TIER,
        nodes=tuple(slow),
        lines=(*events, *rest)[:_MAX_LINES],
        time=find_time(events),
        confidence=Confidence.LIKELY,
        details={**SPEED_DETAILS, "interface": _find_interface(view, slow)},
        remedies=(
            "ethtool NAME   # what both ends advertise; then change the cable or the port",
            "iperf3 -c HOST   # between each pair of hosts: which ones are slow",
        ),
    )


def _find_interface(view: LogView, hosts: list[str]) -> str:
    asked = [one.groups for one in view.list_signatures("nic.asked")]
    names = {
        one.get("nic") or one.get("nic2") or ""
        for one in asked
        if (one.get("host") or one.get("host2")) in hosts
    }
    return names.pop() if len(names) == 1 else ""
