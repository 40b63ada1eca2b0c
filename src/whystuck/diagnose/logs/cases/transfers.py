"""H122 as a transport tells it: it sent again and again, and the other end did not answer."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_exceptions, find_time, is_said, list_ranks
from whystuck.diagnose.logs.story import WAIT, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent

# The transport gave up sending: error 12 of verbs, the same in the words of newer releases, and
# what EFA says.
_GAVE_UP = re.compile(
    r"(?:status=|with error )12\b|RETRY_EXC|vendor[_ ]err[= ]?129\b|[Uu]nresponsive receiver"
)
# Nearer to a cause than that ranks waited or lost each other, which may both follow from it.
_TIER = WAIT - 1
# What EFA's plugin tells of the other end.
_PEER_HOST = re.compile(r"Peer host id: ([\w.-]{1,80})")
_MAX_LINES = 6
_PAIR = 2


def make_transfers(view: LogView) -> Iterator[Case]:
    """Make the case of two ends between which a transfer was given up."""
    events = [
        event
        for event in view.list_signatures("nccl.ib_completion", "nccl.ofi_completion")
        if is_said(event) and _GAVE_UP.search(event.text)
    ]
    if not events:
        return
    names = _name_addresses(view)
    pairs = sorted({pair for event in events if len(pair := _find_ends(event, names)) == _PAIR})
    shared = set(pairs[0]).intersection(*pairs) if pairs else set()
    known = {event.node for event in events} - {""}
    nodes = tuple(sorted(shared or (known if len(known) == 1 else ())))
    ranks = list_ranks(events)
    between = " and ".join(nodes) if len(nodes) > 1 else f"{nodes[0]} and others" if nodes else ""
    yield Case(
        code=codes.TRANSFER_STALLED,
        summary=f"a transfer {f'between {between} ' if between else ''}was sent again until the "
        "card gave up: the way between both ends failed, or the other end was gone",
        tier=_TIER,
        nodes=nodes,
        victims=ranks,
        lines=tuple(events[:_MAX_LINES]),
        exceptions=find_exceptions(view, events),
        time=find_time(events),
        confidence=Confidence.POSSIBLE,
        details={"ends": [list(pair) for pair in pairs[:_MAX_LINES]]},
        remedies=tuple(
            f"on {node}: `ibstat`, `rdma link`, `ethtool -S` of its cards: errors, link changes"
            for node in nodes[:_PAIR]
        ),
    )


def _name_addresses(view: LogView) -> dict[str, str]:
    """Return the hosts of addresses, as NCCL tells them when it starts."""
    return {
        event.groups["addr"]: event.node
        for event in view.list_signatures("nccl.interface")
        if event.node and event.groups.get("addr")
    }


def _find_ends(event: LogEvent, names: dict[str, str]) -> tuple[str, ...]:
    peer = (event.groups.get("peer") or "").partition("<")[0]
    if not peer and (told := _PEER_HOST.search(event.text)):
        peer = told[1]
    return tuple(sorted({event.node, names.get(peer, peer)} - {""}))
