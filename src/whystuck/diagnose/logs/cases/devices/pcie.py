"""N415 by what tools and kernels print of links of PCI Express."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import is_said
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent

_BRIDGE = "PCI bridge"
# What does not lower its speed when it has nothing to do; other devices do.
_AWAKE = {"Infiniband controller", "Ethernet controller", "Network controller"}
_AWAKE_DRIVER = re.compile(r"^(?:mlx5_core|bnxt_en|ice|i40e|ionic|irdma|qedf?|cxgb4) ")
_MAX_LINES = 6


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
        found.setdefault((link.event.artifact, link.event.node, link.bus), link)
    if not found:
        return
    links = sorted(found.values(), key=lambda link: not link.is_sure)
    nodes = tuple(sorted({link.event.node for link in links} - {""}))
    on = f" on {' and '.join(nodes)}" if nodes else ""
    many = len(links) > 1
    told = "; ".join(f"{link.bus or 'a device'}: {link.what}" for link in links[:4])
    yield Case(
        code=codes.PCIE_DEGRADED,
        summary=f"link{'s' * many} of PCI Express{on} {'are' if many else 'is'} less than "
        f"{'they' if many else 'it'} could be ({told})",
        tier=NOTE,
        nodes=nodes,
        lines=tuple(link.event for link in links[:_MAX_LINES]),
        confidence=Confidence.LIKELY if links[0].is_sure else Confidence.POSSIBLE,
        details={"devices": [link.bus for link in links if link.bus]},
    )


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
    for event in view.list_signatures("table.device"):
        width, most = event.groups.get("width") or "", event.groups.get("most") or ""
        if width.isdecimal() and most.isdecimal() and 0 < int(width) < int(most):
            bus = f"device {event.groups['index']}"
            yield _Link(event, bus, f"x{width} of x{most}")


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
