"""N408 where a library finds no address of its interface, and a tool shows that it is down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time, is_said
from whystuck.diagnose.logs.story import LINKED, OUTSIDE, Case
from whystuck.diagnose.logs.view import LogView, is_same_host
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 6


def make_unaddressed(view: LogView) -> Iterator[Case]:
    """Make the case of each host whose interface has no address, as it is shown to be down there.

    That processes ask for it and find no address tells that it is meant to be used.
    """
    asked: dict[str, list[LogEvent]] = {}
    for event in view.list_signatures("gloo.no_address"):
        if is_said(event):
            asked.setdefault(event.groups["nic"] or "", []).append(event)
    last = {(one.node, one.groups["card"]): one for one in view.list_signatures("table.interface")}
    for (node, card), shown in sorted(last.items(), key=lambda item: item[1].row):
        felt = [one for one in asked.get(card, ()) if _is_on(one, node)]
        if node and felt and shown.groups["state"] == "down" and not shown.groups["address"]:
            others = [one for (at, name), one in last.items() if name == card and at != node]
            yield _make_case(view, shown, felt, others)


def _is_on(event: LogEvent, node: str) -> bool:
    return not event.node or is_same_host(event.node, node)


def _make_case(
    view: LogView, shown: LogEvent, felt: Sequence[LogEvent], others: Sequence[LogEvent]
) -> Case:
    card, node = shown.groups["card"], shown.node
    up = [one for one in others if one.groups["state"] == "up"]
    beside = f"; on {' and '.join(sorted({one.node for one in up})[:3])} it is up" if up else ""
    raised = tuple(item for item in view.exceptions if f"address for: {card}" in item.message)
    return Case(
        code=codes.NIC_DOWN,
        summary=f"{card} of {node} is down and has no address, so that processes there cannot use "
        f"it as they are told{beside}",
        tier=OUTSIDE,
        nodes=(node,),
        lines=(shown, *felt[:2], *up)[:_MAX_LINES],
        exceptions=tuple(one for one in raised if not one.node or is_same_host(one.node, node)),
        time=find_time(felt),
        details={"interface": card, "state": "down"},
        remedies=(
            f"ssh {node} 'ip link set {card} up; dmesg -T | grep -i {card}'   # cable, switch",
            f"until then leave {node} out, or name an interface that is up on all hosts",
        ),
        scope=view.list_possible_ranks_on(node),
        support=LINKED,
        is_foreign=True,
        entails=tuple(felt),
    )
