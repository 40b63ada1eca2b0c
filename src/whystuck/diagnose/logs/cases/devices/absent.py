"""N411 by how many devices hosts have, where a rank found none of its number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.devices.following import LACKS_DEVICES
from whystuck.diagnose.logs.cases.parts import (
    find_time,
    is_said,
    list_ranks,
    list_victims,
    place_exceptions,
)
from whystuck.diagnose.logs.story import OWN, Case
from whystuck.diagnose.logs.view import LogView, is_same_host
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_MAX_LINES = 6
# Hosts are built with 2, 4, 8 or 16 devices: one that has one less, and an odd number, lost it.
_LEAST_BUILT = 8


@dataclass(frozen=True)
class _Lack:
    """A host with fewer devices than there should be."""

    host: str
    count: int
    wanted: int
    why: str
    lines: tuple[LogEvent, ...]


def make_absent(view: LogView) -> Iterator[Case]:
    """Make the case of a host that lacks a device, and of the rank that found none there.

    Where all hosts have the same number, too many ranks were started: a mistake of who did.
    """
    felt = [
        event
        for code in (codes.CONFIG_ERROR, codes.PYTHON_EXCEPTION)
        for event in view.list_events(code, "cause")
        if LACKS_DEVICES.search(event.text) and is_said(event)
    ]
    raised = tuple(item for item in view.exceptions if LACKS_DEVICES.search(item.message))
    lack = _find_lack(view) if felt or raised else None
    if lack is None:
        return
    # Ranks of other hosts that met the same have it for another reason.
    ranks = [rank for rank in list_ranks([*felt, *raised]) if _may_be_on(view, rank, lack.host)]
    if not ranks and list_ranks([*felt, *raised]):
        return
    who = f", so that {name_ranks(ranks)} found no device of its number" if ranks else ""
    blamed = tuple(ranks) if len(ranks) <= lack.wanted - lack.count else ()
    yield Case(
        code=codes.DEVICE_MISSING,
        summary=f"{lack.host or 'the host'} has {lack.count} devices, {lack.why}{who}",
        # Before the mistake in the environment that the same lines tell without these numbers.
        tier=OWN - 1,
        ranks=blamed,
        nodes=(lack.host,) if lack.host else (),
        victims=list_victims(view, ranks),
        lines=(*lack.lines, *felt)[:_MAX_LINES],
        exceptions=raised,
        where=place_exceptions(raised[:1]),
        time=find_time(felt, raised),
        details={"count": lack.count, "expected": lack.wanted},
        remedies=(
            f"{f'ssh {lack.host} ' if lack.host else ''}dmesg -T   # Xid, fallen off the bus, AER",
            (
                f"leave {lack.host or 'it'} out until a restart or a repair shows {lack.wanted} "
                "devices again"
            ),
        ),
        scope=frozenset(ranks),
        entails=tuple(felt),
    )


def _find_lack(view: LogView) -> _Lack | None:
    """Find the one host with fewer devices than others, than its PCI, or than were asked for."""
    told = list(view.list_signatures("table.device_count"))
    named = [one for one in told if one.groups["host"]]
    if not named and not _is_one_host(view, told):
        return None
    told = named or told
    hosts = {one.groups["host"]: one for one in told if one.groups["what"] != "pci"}
    hosts = {**{one.groups["host"]: one for one in told}, **hosts}
    if not hosts:
        return None
    counts = {host: _count(one) for host, one in hosts.items()}
    least, most = min(counts.values()), max(counts.values())
    low = [host for host, count in counts.items() if count == least]
    if least < most and len(low) == 1:
        other = next(host for host, count in counts.items() if count == most)
        lines = (hosts[low[0]], hosts[other])
        return _Lack(low[0], least, most, f"{other} has {most}", lines)
    return next(_list_alone(view, told, hosts), None) if len(hosts) == 1 else None


def _is_one_host(view: LogView, told: Sequence[LogEvent]) -> bool:
    """Tell whether numbers without the name of a host can be of one only."""
    launches = list(view.list_signatures("table.launch"))
    looks = {(one.groups["what"] == "pci", one.groups["count"]) for one in told}
    is_clear = len({is_pci for is_pci, _ in looks}) == len(looks)
    return is_clear and len(view.hosts) <= 1 and all(one.groups["nodes"] == "1" for one in launches)


def _list_alone(
    view: LogView, told: Sequence[LogEvent], hosts: dict[str, LogEvent]
) -> Iterator[_Lack]:
    """Yield what the only host that is shown lacks."""
    host, event = next(iter(hosts.items()))
    count = _count(event)
    for other in told:
        if other.groups["what"] == "pci" and count < _count(other):
            why = f"of {_count(other)} on its PCI"
            yield _Lack(host, count, _count(other), why, (event, other))
    for launch in view.list_signatures("table.launch"):
        each = int(launch.groups["each"] or 0)
        is_built = each >= _LEAST_BUILT and each & (each - 1) == 0
        if is_built and count == each - 1:
            why = f"{each} ranks were started on each host"
            yield _Lack(host, count, each, why, (event, launch))


def _count(event: LogEvent) -> int:
    return int(event.groups["count"])


def _may_be_on(view: LogView, rank: int, host: str) -> bool:
    node = view.node_by_rank.get(rank, "")
    return not node or is_same_host(node, host)
