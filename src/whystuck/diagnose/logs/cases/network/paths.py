"""H122 by what is shown of the way between two hosts: nothing that is sent over it is answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import WAITS, find_time, is_said, list_ranks
from whystuck.diagnose.logs.story import WAIT, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES, _MOST_PAIRS = 6, 4
# Nearer to a cause than that ranks waited.
_TIER = WAIT - 1
# The kernel waits twice as long before each try: for 6 s and more in all, without an answer.
_LEAST_TRIES = 5
# Below are the ports of services such as ssh; a file server that does not answer is another thing.
_SERVICES, _OTHER_SERVICES = 1024, {2049, 3260, 6443, 988}
_ALL = 100.0
# A ping of so many bytes fills a packet of most networks; so much waits where none gets through.
_LARGE, _LEAST_QUEUED = 1200, 16_384


class _Hole(NamedTuple):
    """A way on which large packets get lost and small ones do not."""

    peer: str
    lost: LogEvent
    passed: LogEvent


def make_paths(view: LogView) -> Iterator[Case]:
    """Make the case of two hosts between which a connection stands, or large packets get lost.

    A connection whose bytes were sent so often without an answer does not get on, whoever waits for
    it. Packets that get lost because of their size alone say why: an MTU on the way is smaller than
    both hosts believe, and nothing tells them.
    """
    sockets = [row for row in view.list_signatures("table.socket") if _is_dead(row)]
    holes = list(_list_holes(view))
    waits = [event for event in view.list_signatures(*WAITS) if is_said(event)]
    queued = [] if sockets or holes else list(_list_queued(view))
    if not sockets and not holes and not queued:
        return
    pairs = sorted({tuple(sorted((row.groups["own"], row.groups["peer"]))) for row in sockets})
    shared = set(pairs[0]).intersection(*pairs) if pairs else set()
    told = [
        *(_tell_socket(row) for row in sockets[:_MOST_PAIRS]),
        *map(_tell_hole, holes[:1]),
        *map(_tell_queued, queued[:1]),
    ]
    lines = [*sockets[:2], *(row for one in (*holes, *queued)[:1] for row in one[1:]), *waits]
    yield Case(
        code=codes.TRANSFER_STALLED,
        summary="; ".join(told),
        tier=_TIER,
        nodes=tuple(sorted(shared)),
        victims=list_ranks(waits),
        lines=tuple(lines[:_MAX_LINES]),
        time=find_time(waits),
        confidence=Confidence.LIKELY if sockets else Confidence.POSSIBLE,
        details={"ends": [list(pair) for pair in pairs[:_MAX_LINES]]},
        remedies=_ONE_MTU if holes or queued else (),
        is_foreign=True,
    )


_ONE_MTU = (
    "ip link show   # on both hosts, and the switches between: one MTU on all of the way",
    "ip link set dev INTERFACE mtu 1500   # until then, on both hosts",
)


def _is_dead(row: LogEvent) -> bool:
    """Tell whether bytes of a connection are sent in vain, and it is of no service."""
    get = row.groups
    has_sent = int(get["queue"]) > 0 or int(get["unacked"]) > 0
    return _is_of_job(row) and has_sent and int(get["tries"]) >= _LEAST_TRIES


def _is_of_job(row: LogEvent) -> bool:
    """Tell whether a connection is of no service, and to another host."""
    port, get = int(row.groups["port"]), row.groups
    is_local = get["own"] == get["peer"] or get["own"].startswith("127.")
    return port >= _SERVICES and port not in _OTHER_SERVICES and not is_local


def _list_holes(view: LogView) -> Iterator[_Hole]:
    """Yield the hosts of which all large packets got lost, and no smaller one.

    What the own host refuses to send is no hole: it knows the MTU.
    """
    rows: dict[tuple[str, str], list[LogEvent]] = {}
    for row in view.list_signatures("table.ping"):
        if not row.groups["errors"]:
            rows.setdefault((row.node, row.groups["peer"]), []).append(row)
    for (_, peer), told in rows.items():
        lost = [row for row in told if float(row.groups["lost"]) == _ALL]
        passed = [row for row in told if float(row.groups["lost"]) == 0]
        if len(lost) + len(passed) < len(told) or not lost or not passed:
            continue
        least, most = min(lost, key=_read_size), max(passed, key=_read_size)
        if _read_size(least) > _read_size(most):
            yield _Hole(peer, least, most)


def _list_queued(view: LogView) -> Iterator[_Hole]:
    """Yield the hosts of which all large packets got lost, and for which bytes of a job wait.

    That the connection was established shows that small ones get through. Where small ones were
    lost as well, the host may answer no ping at all.
    """
    pings: dict[str, list[LogEvent]] = {}
    for row in view.list_signatures("table.ping"):
        if not row.groups["errors"]:
            pings.setdefault(row.groups["peer"], []).append(row)
    for row in view.list_signatures("table.send_queue"):
        told = pings.get(row.groups["peer"], [])
        are_lost = all(float(one.groups["lost"]) == _ALL for one in told)
        are_large = all(_read_size(one) >= _LARGE for one in told)
        is_waiting = int(row.groups["queue"]) >= _LEAST_QUEUED and _is_of_job(row)
        if told and are_lost and are_large and is_waiting:
            yield _Hole(row.groups["peer"], min(told, key=_read_size), row)


def _tell_queued(hole: _Hole) -> str:
    get = hole.passed.groups
    return (
        f"packets of {_read_size(hole.lost)} bytes do not get through to {hole.peer}, to which "
        f"a connection of {get['own']} is established, and {get['queue']} bytes of it wait: an MTU "
        "on the way is smaller, and large transfers stand"
    )


def _read_size(row: LogEvent) -> int:
    return int(row.groups["size"])


def _tell_socket(row: LogEvent) -> str:
    get = row.groups
    return (
        f"what {get['own']} sends to {get['peer']} was sent {get['tries']} times in a row without "
        f"an answer ({get['queue']} bytes wait)"
    )


def _tell_hole(hole: _Hole) -> str:
    return (
        f"packets of {_read_size(hole.lost)} bytes do not get through to {hole.peer}, those of "
        f"{_read_size(hole.passed)} do: an MTU on the way is smaller, and large transfers stand"
    )
