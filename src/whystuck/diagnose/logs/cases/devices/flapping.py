"""N408 by a port of InfiniBand or RoCE that loses its link and gets it back: it flaps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.devices.downed import MILD, find_card, is_on
from whystuck.diagnose.logs.cases.parts import find_time, is_said
from whystuck.diagnose.logs.story import LINKED, OUTSIDE, Case
from whystuck.diagnose.logs.view import LogView, is_same_host
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 6
_DOWN = ("link.down", "nccl.ib_async_fatal")
_UP = ("link.up", "nccl.ib_active")
_OF_FABRIC = re.compile(r"mlx5_core|bnxt_en|NET/IB")


def make_flapping(view: LogView) -> Iterator[Case]:
    """Make the case of hosts whose port went down and came up again while ranks used it.

    What came back is no broken host; where more than the link broke, that is the cause.
    """
    downs = [
        one
        for one in view.list_signatures(*_DOWN)
        if is_said(one) and _OF_FABRIC.search(one.text) and re.search("port error|own", one.text)
    ]
    ups = [one for one in view.list_signatures(*_UP) if is_said(one)]
    for node in sorted({one.node for one in downs} - {""}):
        own = [one for one in downs if is_same_host(one.node, node)]
        again = [one for one in ups if any(_is_back(one, down) for down in own)]
        told = [one for one in view.list_events(codes.HARDWARE_ERROR) if is_on(one, node)]
        is_felt = any(view.is_felt(one.time) is not False for one in own)
        if again and is_felt and all(one.signature in MILD for one in told):
            yield _make_case(view, node, own, again, told)


def _is_back(up: LogEvent, down: LogEvent) -> bool:
    """Tell whether a line says that the port is up again which another one says is down."""
    is_below = up.artifact == down.artifact and up.row > down.row
    is_kin = (up.signature == _UP[0]) == (down.signature == _DOWN[0])
    return is_below and is_kin and up.node == down.node and find_card(up) == find_card(down)


def _make_case(
    view: LogView,
    node: str,
    downs: Sequence[LogEvent],
    ups: Sequence[LogEvent],
    told: Sequence[LogEvent],
) -> Case:
    names = sorted({name for one in downs if (name := find_card(one))})
    times = max(sum(one.count for one in downs if one.signature == name) for name in _DOWN)
    often = f"{times} times" if times > 1 else "once"
    port = f"port {' and '.join(names[:4])}" if names else "a port"
    return Case(
        code=codes.NIC_DOWN,
        summary=f"{port} of {node} lost its link {often} and got it back: it flaps, and what goes "
        "over it waits or fails",
        tier=OUTSIDE,
        nodes=(node,),
        lines=tuple(sorted((*downs, *ups), key=lambda one: (one.artifact, one.row)))[:_MAX_LINES],
        time=find_time(downs),
        details={"interface": names[0] if names else "", "state": "flapping", "downs": times},
        remedies=(
            f"ssh {node} 'mlxlink -d DEVICE; dmesg -T | grep -i link'   # cable, module, switch",
            f"until then leave {node} out, or that card on all hosts with NCCL_IB_HCA=^CARD",
        ),
        scope=view.list_possible_ranks_on(node),
        support=LINKED,
        is_foreign=True,
        entails=tuple(told),
    )
