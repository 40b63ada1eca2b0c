"""N415 by what tools and kernels print of links of PCI Express."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import is_said
from whystuck.diagnose.logs.cases.slow.own_times import SlowRank, find_rank_by_number
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent

_BRIDGE = "PCI bridge"
# What does not lower its speed when it has nothing to do; other devices do.
_AWAKE = {"Infiniband controller", "Ethernet controller", "Network controller"}
_AWAKE_DRIVER = re.compile(r"^(?:mlx5_core|bnxt_en|ice|i40e|ionic|irdma|qedf?|cxgb4) ")
_MAX_LINES = 6
_LEAST = 3
# A device with so many percent of its time in kernels is at work.
_BUSY = 50.0


@dataclass(frozen=True)
class _Link:
    """A link that is less than it could be."""

    event: LogEvent
    bus: str
    what: str
    is_sure: bool = True


def make_pcie(view: LogView) -> Iterator[Case]:
    """Make the case of devices whose link is narrower than it could be, or of cards slower."""
    found: dict[tuple[str, str, str], _Link] = {}
    for link in (*_list_printed(view), *_list_tabled(view), *_list_limited(view)):
        found.setdefault((link.event.artifact, _find_host(link.event), link.bus), link)
    if not found:
        return
    links = sorted(found.values(), key=lambda link: not link.is_sure)
    nodes = tuple(sorted({_find_host(link.event) for link in links} - {""}))
    on = f" on {' and '.join(nodes)}" if nodes else ""
    many = len(links) > 1
    told = "; ".join(f"{link.bus or 'a device'}: {link.what}" for link in links[:4])
    same = _find_same(view, links)
    yield Case(
        code=codes.PCIE_DEGRADED,
        summary=f"link{'s' * many} of PCI Express{on} {'are' if many else 'is'} less than "
        f"{'they' if many else 'it'} could be ({told}){f'; {same.why}' if same else ''}",
        tier=NOTE,
        ranks=(same.rank,) if same else (),
        nodes=nodes,
        lines=(*(link.event for link in links[:_MAX_LINES]), *([same.event] if same else [])),
        confidence=Confidence.LIKELY if links[0].is_sure else Confidence.POSSIBLE,
        details={"devices": [link.bus for link in links if link.bus]},
    )


def _find_same(view: LogView, links: Sequence[_Link]) -> SlowRank | None:
    """Return the one slow rank where it has the number of the one device whose link is less."""
    event = links[0].event
    if len(links) != 1:
        return None
    told = event.groups.get("index") or ""
    if told.isdecimal():
        return find_rank_by_number(view, int(told), _find_host(event))
    # Whoever has lspci show the devices of all ranks does so in their order.
    shown = [
        one
        for one in view.list_signatures("table.pcie")
        if one.artifact == event.artifact and one.groups.get("class") != _BRIDGE
    ]
    narrow = [one for one in shown if one.groups.get("narrow")]
    if len(shown) < _LEAST or narrow != [event]:
        return None
    place = sorted(shown, key=lambda one: one.row).index(event)
    return find_rank_by_number(view, place, _find_host(event), listed=len(shown))


def _find_host(event: LogEvent) -> str:
    return event.groups.get("host") or event.node


def _list_printed(view: LogView) -> Iterator[_Link]:
    """Yield what lspci and nvidia-smi print of single devices."""
    for event in view.list_signatures("table.pcie"):
        get = event.groups.get
        kind, width, most = get("class") or "", get("width") or "0", get("most") or ""
        if kind == _BRIDGE or width == "0":
            continue
        if get("narrow"):
            full = f" of x{most}" if most else ", downgraded"
            yield _Link(event, get("bus") or "", f"x{width}{full}", is_sure=bool(kind))
        elif get("slow") and kind in _AWAKE:
            full = f" of {get('most_speed')}" if get("most_speed") else ", downgraded"
            yield _Link(event, get("bus") or "", f"{get('speed')}{full} GT/s")


def _list_tabled(view: LogView) -> Iterator[_Link]:
    """Yield what a table of nvidia-smi has."""
    rows = list(view.list_signatures("table.device"))
    # Links slow down where a device has nothing to do. Others at work show what this one could.
    is_fast = any(one and one >= most for one, most in map(_read_speeds, rows))
    for event in rows:
        width, most = event.groups.get("width") or "", event.groups.get("most") or ""
        bus, (speed, full) = f"device {event.groups['index']}", _read_speeds(event)
        if width.isdecimal() and most.isdecimal() and 0 < int(width) < int(most):
            yield _Link(event, bus, f"x{width} of x{most}")
        elif is_fast and 0 < speed < full:
            yield _Link(event, bus, f"generation {speed} of {full}")


def _read_speeds(row: LogEvent) -> tuple[int, int]:
    """Return the generation of a link and the most it could be; 0 of a device not at work."""
    speed, most = row.groups.get("speed") or "", row.groups.get("most_speed") or ""
    is_told = speed.isdecimal() and most.isdecimal()
    is_busy = float(row.groups.get("busy") or 0) >= _BUSY
    return (int(speed), int(most)) if is_told and is_busy else (0, 0)


def _list_limited(view: LogView) -> Iterator[_Link]:
    """Yield what kernels say when they find a device."""
    for event in view.list_signatures("pcie.limited"):
        get = event.groups.get
        width, full = int(get("width") or 0), int(get("full") or 0)
        bus = get("bus") or ""
        if not is_said(event):
            continue
        if width < full:
            yield _Link(event, bus, f"x{width} of x{full}")
        elif _AWAKE_DRIVER.match(event.text):
            yield _Link(event, bus, f"{get('speed')} of {get('most')} GT/s")
