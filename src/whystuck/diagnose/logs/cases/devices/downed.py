"""N408 by a port that lost its link while ranks worked, and is down still.

A tool shows that it is, or both the kernel of its host and NCCL there say that it went down.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time, is_said
from whystuck.diagnose.logs.story import LINKED, OUTSIDE, Case
from whystuck.diagnose.logs.view import LogView, is_same_host
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 6
# What says that a link went down, and what says no more of the card than that.
_EVENTS = ("link.down", "nccl.ib_async_fatal")
MILD = {*_EVENTS, "mlx5.port_module", "nccl.ib_error_cqe"}
_UP = ("link.up", "nccl.ib_active")
_ACTIVE = {"active", "up"}
# Drivers of cards that carry what ranks send each other.
_OF_FABRIC = re.compile(r"\b(?:mlx5_core|bnxt_en)\b")
# The card or the interface of which a line speaks.
_CARD = re.compile(r"NET/IB ?:(?: NIC)? (\w{2,40}?):\d")
_INTERFACE = re.compile(r"([A-Za-z][\w.-]{1,40}): (?:NIC )?[Ll]ink (?:is )?(?:[Dd]own|[Uu]p)\b")
# Kernels name the interfaces of such cards by their ports, other than those of a board.
_IS_OF_CARD = re.compile(r"^(?:ib\w{1,20}|en\w{1,20}np\d{1,2}|roce\w{0,20}|rdma\w{0,20})$")
_IS_CARD = re.compile(r"^(?:mlx|bnxt_re|irdma|hns|qedr|rocep|ibp|rdmap|efa)\w*\d")


def make_downed(view: LogView) -> Iterator[Case]:
    """Make the case of hosts whose port went down and is shown to be down.

    A port that is down may be meant to be; one that went down while a job used it was not. Where
    the host says that more than the link broke, that is the cause.
    """
    events = [
        event
        for event in view.list_signatures(*_EVENTS)
        if is_said(event) and ("error" in event.text or "own" in event.text)
    ]
    ports = _list_last(view)
    for node in sorted({event.node for event in events} - {""}):
        own = [event for event in events if is_same_host(event.node, node)]
        told = [one for one in view.list_events(codes.HARDWARE_ERROR) if is_on(one, node)]
        down = [
            port
            for port in ports
            if is_on(port, node)
            and port.groups["state"] not in _ACTIVE
            and any(_is_of(view, port, event) for event in own)
        ]
        is_felt = any(view.is_felt(event.time) is not False for event in own)
        if not is_felt or not all(one.signature in MILD for one in told):
            continue
        if down:
            yield _make_case(view, node, down, own, told)
        elif _is_told_twice(view, node, own) and not any(is_on(port, node) for port in ports):
            yield _make_told(view, node, own, told)


def _is_told_twice(view: LogView, node: str, events: Sequence[LogEvent]) -> bool:
    """Tell whether the kernel of a host and NCCL there both say that a port went down for good.

    The kernel alone may tell of a port that nobody uses, and NCCL alone of an event that passes.
    """
    is_back = any(is_on(one, node) for one in view.list_signatures(*_UP))
    kernel = any(one.signature == "link.down" and _OF_FABRIC.search(one.text) for one in events)
    nccl = any(
        one.signature == "nccl.ib_async_fatal" and "port error" in one.text for one in events
    )
    return kernel and nccl and not is_back


def _make_told(
    view: LogView, node: str, events: Sequence[LogEvent], told: Sequence[LogEvent]
) -> Case:
    """Make the case of a port of which the kernel and NCCL say that it went down."""
    names = sorted({name for one in events if (name := find_card(one))}, key=_is_card)
    who = " / ".join(names[:4]) or "a port"
    shown = [one for one in told if one.signature == "mlx5.port_module"]
    return Case(
        code=codes.NIC_DOWN,
        summary=f"{who} of {node} lost its link, by its kernel and by NCCL, and nothing tells that "
        "it came back: what goes over it waits",
        tier=OUTSIDE,
        nodes=(node,),
        lines=(*events[:3], *shown[:1], *events[3:])[:_MAX_LINES],
        time=find_time(events),
        details={"interface": names[0] if names else "", "state": "down"},
        remedies=(_advise_look(node),),
        scope=view.list_possible_ranks_on(node),
        support=LINKED,
        is_foreign=True,
        entails=tuple(told),
    )


def _advise_look(node: str) -> str:
    return f"ssh {node} 'ibstat; ibdev2netdev; dmesg -T | grep -i link'   # cable, module, switch"


def _make_case(
    view: LogView,
    node: str,
    down: Sequence[LogEvent],
    events: Sequence[LogEvent],
    told: Sequence[LogEvent],
) -> Case:
    cards = _name_cards(view, down)
    names = " and ".join(cards[:4])
    many = len(cards) > 1
    return Case(
        code=codes.NIC_DOWN,
        summary=f"{names} of {node} lost {'their links' if many else 'its link'} and "
        f"{'are' if many else 'is'} down: what goes over {'them' if many else 'it'} waits",
        tier=OUTSIDE,
        nodes=(node,),
        lines=(*events[:2], *down[:2], *events[2:])[:_MAX_LINES],
        time=find_time(events),
        details={"interface": down[0].groups["card"], "state": down[0].groups["state"]},
        remedies=(
            _advise_look(node),
            (
                f"until then leave {node} out, or that card on all hosts: "
                f"export NCCL_IB_HCA=^{cards[0].partition(' ')[0]}"
            ),
        ),
        scope=view.list_possible_ranks_on(node),
        support=LINKED,
        is_foreign=True,
        entails=tuple(told),
    )


def _name_cards(view: LogView, down: Sequence[LogEvent]) -> list[str]:
    """Name each card once, with its interface where a tool shows which one that is."""
    names: dict[str, str] = {}
    for name in sorted({port.groups["card"] for port in down}, key=lambda one: not _is_card(one)):
        other = min(_list_aliases(view, name), default="")
        if other not in names:
            names[name] = f"{name} ({other})" if other else name
    return list(names.values())


def _is_card(name: str) -> bool:
    return _IS_CARD.match(name) is not None


def _list_last(view: LogView) -> list[LogEvent]:
    """Return the last look at each port of each host."""
    last: dict[tuple[str, str], LogEvent] = {}
    for event in view.list_signatures("table.port"):
        last[event.node, event.groups["card"]] = event
    return list(last.values())


def find_card(event: LogEvent) -> str:
    """Return the card or the interface of which a line says that its link is down, or up."""
    match = _CARD.search(event.text) or _INTERFACE.search(event.text)
    return match[1] if match else ""


def is_on(event: LogEvent, node: str) -> bool:
    """Tell whether a line is of a host, or of none that is known."""
    return not event.node or is_same_host(event.node, node)


def _is_of(view: LogView, port: LogEvent, event: LogEvent) -> bool:
    """Tell whether a line is about a port: by its card, or by its interface.

    Where no tool shows which interface a card has, it may be any that cards of such a kind have.
    """
    match = _CARD.search(event.text) or _INTERFACE.search(event.text)
    if match is None:
        return True
    names = {port.groups["card"]} | _list_aliases(view, port.groups["card"])
    if match[1] in names:
        return True
    if _list_aliases(view, match[1]) or len(names) > 1:
        return False
    cards = [_is_card(name) for name in (match[1], port.groups["card"])]
    interface = port.groups["card"] if cards[0] else match[1]
    return cards[0] != cards[1] and bool(_IS_OF_CARD.match(interface))


def _list_aliases(view: LogView, name: str) -> set[str]:
    """Return the interface of a card, or the card of an interface, as a tool shows it."""
    pairs = [
        (event.groups["card"], event.groups.get("netdev") or "")
        for event in view.list_signatures("table.port")
    ]
    found = {netdev for card, netdev in pairs if card == name}
    return (found | {card for card, netdev in pairs if netdev == name}) - {""}
