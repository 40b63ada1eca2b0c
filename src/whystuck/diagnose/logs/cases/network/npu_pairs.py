"""H121 where HCCL names the two devices between which it could not make a link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from whystuck.diagnose.logs.cases.devices.ports import NPU_LAYER
from whystuck.diagnose.logs.cases.network.rendezvous_lines import Answer, Told
from whystuck.diagnose.logs.story import WAIT
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_SIGNATURE = "hccl.dest_link"
_CONNECT = "hccl.connect"
_MAX_LINES = 4
# So many lines an error of HCCL has at most above the one that names the link.
_MOST_ABOVE = 8
_ACTIVE = "active"


def find_npu_pair(told: Told) -> Answer | None:
    """Find the device to which others waited for a link, and whether its own link is down.

    A rank that waits for the end of another one is no culprit, whatever it raises. The end that
    everybody names is the one to look at, as long as it does not wait itself.
    """
    keys = [key for key, event in told.events.items() if event.signature == _SIGNATURE]
    links = [told.events[key] for key in keys]
    if not links:
        return _find_down(told)
    down = [port for port in told.view.list_signatures("table.port") if _is_down(port)]
    own, peers = _list_ips(links, "own"), _list_ips(links, "ip")
    ends = own | peers
    broken = [port for port in down if port.groups["ip"] in ends]
    at = {port.groups["ip"] for port in broken} or peers - own or peers
    ip = min(at)
    failed = told.list_lines(told.meeting.failures)
    above = {(one.artifact, one.row): one.rank for one in failed}
    writers = [_find_writer(above, event) for event in links]
    ranks = _find_ranks(links, writers, ip) if len(at) == 1 else ()
    if not broken and told.meeting.ranks.intersection(ranks):
        ranks = ()  # it waits as well
    nodes = tuple(sorted({port.node for port in broken if port.groups["ip"] == ip} - {""}))
    waiting = sorted({*writers} - {-1, *ranks})
    who = name_ranks(waiting) if waiting else "ranks"
    whom = f"{name_ranks(ranks)} at {ip}" if ranks else " and ".join(sorted(at)[:_MAX_LINES])
    tail = ": its link is down" if broken else ", which did not come in time"
    if broken and nodes:
        tail = f": the link of {broken[0].groups['card']} on {nodes[0]} is down"
    return Answer(
        "device-link",
        f"{who} waited for a link to {whom}{tail}",
        ranks=ranks,
        nodes=nodes if len(at) == 1 else (),
        keys=frozenset(keys),
        # That a port is down is no finding of its own where this says what came of it.
        tier=WAIT - 3 if broken else WAIT,
        details={"peers": sorted(at)[:_MAX_LINES]},
        remedies=(
            "hccn_tool -i DEVICE -link -g; hccn_tool -i DEVICE -net_health -g   # on both hosts",
            f"hccn_tool -i DEVICE -ping -g address {ip}   # from the device that waited",
        ),
        entails=tuple(broken),
    )


def _find_down(told: Told) -> Answer | None:
    """Find a device whose link is down beside others, where HCCL does not say who waits for it."""
    lines = told.list_lines(told.meeting.failures)
    ports = {
        (port.node, port.groups["card"]): port
        for port in told.view.list_signatures("table.port")
        if port.groups["layer"] == NPU_LAYER
    }
    up = {node for (node, _), port in ports.items() if port.groups["state"] == _ACTIVE}
    down = [
        port for (node, _), port in ports.items() if node in up and port.groups["state"] != _ACTIVE
    ]
    if not down or not any(event.signature == _CONNECT for event in lines):
        return None
    nodes = tuple(sorted({port.node for port in down} - {""}))
    cards = " and ".join(sorted({port.groups["card"] for port in down})[:_MAX_LINES])
    on = f" on {' and '.join(nodes)}" if nodes else ""
    return Answer(
        "device-link",
        f"ranks waited for links in vain: the link of {cards}{on} is down",
        nodes=nodes,
        tier=WAIT - 3,
        details={"peers": []},
        remedies=("hccn_tool -i DEVICE -link_stat -g   # on that host; then module and switch",),
        entails=tuple(down),
    )


def _is_down(port: LogEvent) -> bool:
    return bool(port.groups.get("ip")) and port.groups["state"] != _ACTIVE


def _list_ips(links: Sequence[LogEvent], end: str) -> set[str]:
    return {event.groups[end] for event in links}


def _find_writer(above: Mapping[tuple[str, int], int], event: LogEvent) -> int:
    """Return the rank whose error a line belongs to: only the first line of one has its label."""
    if event.rank >= 0:
        return event.rank
    rows = range(event.row - 1, event.row - 1 - _MOST_ABOVE, -1)
    return next((rank for row in rows if (rank := above.get((event.artifact, row), -1)) >= 0), -1)


def _find_ranks(links: Sequence[LogEvent], writers: Sequence[int], ip: str) -> tuple[int, ...]:
    """Return the rank at an address, where the numbers of the group are those of the job.

    HCCL counts within a group and within a level of it: where the numbers of the rank that waits
    are that rank's own, those of its peer are taken for its own, too.
    """
    found = set[str]()
    for event, writer in zip(links, writers, strict=True):
        told = event.groups
        if not told["rank"] == told["user"] == str(writer) or told["dst"] != told["peer"]:
            return ()
        found |= {told["peer"]} if told["ip"] == ip else set()
        found |= {told["user"]} if told["own"] == ip else set()
    return (int(found.pop()),) if len(found) == 1 else ()
