"""H122 as a transport tells it: it sent again and again, and the other end did not answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

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
    r"|[Uu]n(?:reachable|responsive) remote\b"
)
# EFA tells a peer that never answered from one that did so before; only packets that are neither
# TCP nor UDP are lost where a security group does not name all protocols.
_NEVER = re.compile(r"never received a response|[Uu]nreachable remote\b")
_LET_THROUGH = (
    (
        "the security group of both hosts must let all protocols (-1) in from itself and out to "
        "itself: packets of EFA are neither TCP nor UDP, and ping and iperf tell nothing of them"
    ),
    "fi_pingpong -p efa -e rdm   # between both hosts, without NCCL",
)
# Nearer to a cause than that ranks waited or lost each other, which may both follow from it.
_TIER = WAIT - 1
# What EFA's plugin tells of the other end.
_PEER_HOST = re.compile(r"Peer host id: ([\w.-]{1,80})")
# The ports at both ends, as verbs names them; a host is known by that of its own lines.
_GIDS = re.compile(
    r"localGid (?P<own>[\da-f:]{4,50})(?![\w:]).{0,12}? ?"
    r"remoteGids ?(?P<peer>[\da-f:]{4,50})(?![\w:])"
)
_MAX_LINES = 6
_PAIR = 2
# So many others that one host did not reach, or who did not reach it: it is that host.
_MANY = 3


def make_transfers(view: LogView) -> Iterator[Case]:
    """Make the case of two ends between which a transfer was given up."""
    events = [
        event
        for event in view.list_signatures("nccl.ib_completion", "nccl.ofi_completion")
        if is_said(event) and _GAVE_UP.search(event.text)
    ]
    if not events:
        return
    names = _name_addresses(view) | _name_by_ports(events)
    names |= _name_by_absence(events, names)
    pairs = sorted({pair for event in events if len(pair := _find_ends(event, names)) == _PAIR})
    shared = set(pairs[0]).intersection(*pairs) if pairs else set()
    known = {event.node for event in events} - {""}
    nodes = tuple(sorted(shared or (known if len(known) == 1 else ())))
    ranks = list_ranks(events)
    # Where nothing tells which address is whose, a host may be there by both.
    hosts = {event.node for event in events} - shared - {""}
    peers = {names.get(peer, peer) for event in events if (peer := _read_peer(event))} - shared
    count = max(len(hosts), len(peers))
    is_star = len(shared) == 1 and count >= _MANY
    between = " and ".join(nodes) if len(nodes) > 1 else f"{nodes[0]} and others" if nodes else ""
    is_never = all(map(_NEVER.search, (event.text for event in events)))
    why = _explain(nodes[0] if is_star else "", count, is_never=is_never)
    yield Case(
        code=codes.TRANSFER_STALLED,
        summary=f"a transfer {f'between {between} ' if between else ''}was sent again until the "
        f"card gave up: {why}",
        tier=_TIER,
        nodes=nodes,
        victims=ranks,
        lines=tuple(events[:_MAX_LINES]),
        exceptions=find_exceptions(view, events),
        time=find_time(events),
        confidence=Confidence.LIKELY if is_star or is_never else Confidence.POSSIBLE,
        details={"ends": [list(pair) for pair in pairs[:_MAX_LINES]]},
        remedies=_LET_THROUGH
        if is_never
        else tuple(
            f"on {node}: `ibstat`, `rdma link`, `ethtool -S` of its cards: errors, link changes"
            for node in nodes[:_PAIR]
        ),
    )


def _explain(star: str, count: int, *, is_never: bool) -> str:
    """Write what may be behind it; ``star`` is the host with which so many others failed."""
    if star:
        return (
            f"{count} hosts failed with {star} and with no other: it, its cards or its way into "
            "the fabric"
        )
    if is_never:
        return "nothing ever came back: its packets are not let through, or the other end was gone"
    return "the way between both ends failed, or the other end was gone"


def _name_addresses(view: LogView) -> dict[str, str]:
    """Return the hosts of addresses, as NCCL tells them when it starts."""
    return {
        event.groups["addr"]: event.node
        for event in view.list_signatures("nccl.interface")
        if event.node and event.groups.get("addr")
    }


def _name_by_ports(events: Iterable[LogEvent]) -> dict[str, str]:
    """Return the hosts of addresses whose ports are those that lines of the host name as its own.

    Where two hosts would be one, what was pasted is of several networks, and none is.
    """
    told = [(event, match) for event in events if (match := _GIDS.search(event.text))]
    owners: dict[str, set[str]] = {}
    for event, match in told:
        owners.setdefault(match["own"], set()).add(event.node)
    found: dict[str, set[str]] = {}
    for event, match in told:
        # No host is its own peer: what names it so has another's port, or a mask in its place.
        hosts = owners.get(match["peer"], set()) - {event.node}
        found.setdefault(_read_peer(event), set()).update(hosts)
    return {
        peer: min(hosts) for peer, hosts in found.items() if len(hosts) == 1 and peer and min(hosts)
    }


def _name_by_absence(events: Sequence[LogEvent], names: Mapping[str, str]) -> dict[str, str]:
    """Return the host of the one address that all others name: the only one that does not."""
    named: dict[str, set[str]] = {}
    for event in events:
        if event.node:
            named.setdefault(event.node, set()).add(_read_peer(event))
    peers = {peer for told in named.values() for peer in told if peer and peer not in names}
    found: dict[str, str] = {}
    for peer in peers:
        silent = [host for host, told in named.items() if peer not in told]
        is_all = all(told == {peer} for host, told in named.items() if host not in silent)
        if len(silent) == 1 and is_all and len(named) > _PAIR:
            found[peer] = silent[0]
    return found


def _read_peer(event: LogEvent) -> str:
    return (event.groups.get("peer") or "").partition("<")[0]


def _find_ends(event: LogEvent, names: dict[str, str]) -> tuple[str, ...]:
    peer = _read_peer(event)
    if not peer and (told := _PEER_HOST.search(event.text)):
        peer = told[1]
    return tuple(sorted({event.node, names.get(peer, peer)} - {""}))
