"""N410 by what tools print of ports of InfiniBand and RoCE: one that is down beside others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from whystuck.diagnose import codes
from whystuck.diagnose.logs.story import PARTED, WAIT, Case
from whystuck.diagnose.logs.view import LogView, is_same_host
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent

_ACTIVE, _OFF = "active", "disabled"
# The network of Ascend devices, each of which has a port of its own.
NPU_LAYER = "npu"
_SETTING_UP = {"init", "initializing", "armed"}
# Nearer to a cause than that ranks waited, or that a transfer was given up.
_TIER = WAIT - 2
_MAX_LINES = 6
# So many ports tell which rate is the usual one.
_LEAST_PORTS = 3


@dataclass(frozen=True)
class _Port:
    """A port as the last look at it shows it."""

    place: str
    event: LogEvent

    @property
    def name(self) -> str:
        card, port = self.event.groups["card"], self.event.groups["port"]
        return f"{card}:{port}" if port else card

    @property
    def state(self) -> str:
        return self.event.groups["state"]

    @property
    def physical(self) -> str:
        return self.event.groups["physical"]

    @property
    def is_active(self) -> bool:
        return self.state == _ACTIVE

    @property
    def is_narrow(self) -> bool:
        """Whether its link uses one lane of several: cards of InfiniBand have two or four."""
        told = self.event.groups
        is_one = told.get("lanes") == "1" and told["layer"] == "infiniband"
        return is_one and self.is_active

    def is_like(self, other: _Port) -> bool:
        """Tell whether another port carries the same kind of network."""
        return self.event.groups["layer"] == other.event.groups["layer"]


def make_ports(view: LogView) -> Iterator[Case]:
    """Make the case of ports that are down where others like them are up."""
    last: dict[tuple[str, str], _Port] = {}
    for event in view.list_signatures("table.port"):
        port = _Port(event.node or event.artifact, event)
        last[port.place, port.name] = port
    ports = list(last.values())
    odd = [port for port in ports if _is_odd(port, ports)]
    if not odd:
        yield from _make_narrow([port for port in ports if port.is_narrow or _lags(port, ports)])
        return
    nodes = tuple(sorted({port.event.node for port in odd} - {""}))
    on = f" of {' and '.join(nodes)}" if nodes else ""
    names = " and ".join(sorted({port.name for port in odd})[:4])
    first = odd[0]
    link = f", its link {first.physical}" if first.physical else ""
    many = len({port.name for port in odd}) > 1
    yield Case(
        code=codes.FABRIC_ERRORS,
        summary=f"port{'s' * many} {names}{on} {'are' if many else 'is'} {first.state}{link}: "
        "nothing goes over it, while others like it are up",
        tier=PARTED - 1 if _are_waited_for(view, odd) else _TIER,
        nodes=nodes,
        lines=tuple(port.event for port in odd[:_MAX_LINES]),
        confidence=Confidence.LIKELY,
        details={"port": first.name, "state": first.state, "link": first.physical},
        remedies=_advise(first),
        is_foreign=True,
    )


def _are_waited_for(view: LogView, odd: Sequence[_Port]) -> bool:
    """Tell whether ranks wait for signs of ranks whose host has a device without its link.

    HCCL names the peer from which no sign came. That it did not come to the op would explain that
    as well; a link that is down beside others explains it by itself.
    """
    told = [event.groups.get("peer") for event in view.list_signatures("hccl.timeout")]
    votes = {int(peer) for peer in told if peer}
    are_npus = all(port.event.groups["layer"] == NPU_LAYER for port in odd)
    return are_npus and bool(votes) and any(votes <= _list_ranks_of(view, port) for port in odd)


def _list_ranks_of(view: LogView, port: _Port) -> set[int]:
    """Return the rank of a device, or those of its host where the ranks of devices are not told."""
    host, device = port.event.node, port.name.removeprefix("npu")
    by_device = {
        number: rank
        for file in view.files
        for (node, number), rank in file.rank_by_device.items()
        if node and is_same_host(node, host)
    }
    if by_device:
        return {rank for number, rank in by_device.items() if str(number) == device}
    said = {rank for file in view.files for rank in file.seats.get(host, ())}
    return said | view.list_ranks_on(host)


def _make_narrow(ports: Sequence[_Port]) -> Iterator[Case]:
    """Make the case of links that came up with one lane: all rings through them are slow."""
    if not ports:
        return
    nodes = tuple(sorted({port.event.node for port in ports} - {""}))
    on = f" of {' and '.join(nodes)}" if nodes else ""
    names = " and ".join(sorted({port.name for port in ports})[:4])
    first = ports[0]
    rate = first.event.groups["rate"]
    at = f", at {rate} Gb/s" if rate else ""
    yield Case(
        code=codes.FABRIC_ERRORS,
        summary=f"port {names}{on} runs on {_name_lanes(first)}{at}: what goes over it is slow, "
        "and so is every ring through it",
        tier=_TIER,
        nodes=nodes,
        lines=tuple(port.event for port in ports[:_MAX_LINES]),
        confidence=Confidence.LIKELY,
        details={
            "port": first.name,
            "state": first.state,
            "link": f"{first.event.groups.get('lanes') or 1}X{at}",
        },
        remedies=_advise(first),
        is_foreign=True,
    )


def _name_lanes(port: _Port) -> str:
    lanes = port.event.groups.get("lanes") or "1"
    return "one lane" if lanes == "1" else f"{lanes} lanes"


def _lags(port: _Port, ports: Sequence[_Port]) -> bool:
    """Tell whether a port has fewer lanes, and a lower rate, than most ports of its host."""
    same = [one for one in ports if one.place == port.place and one.event.groups.get("rate")]
    if port not in same or len(same) < _LEAST_PORTS:
        return False
    rates = sorted(float(one.event.groups["rate"]) for one in same)
    lanes = sorted(int(one.event.groups.get("lanes") or 0) for one in same)
    is_slow = 2 * float(port.event.groups["rate"]) <= rates[len(rates) // 2]
    return is_slow and 0 < int(port.event.groups.get("lanes") or 0) < lanes[len(lanes) // 2]


def _advise(port: _Port) -> tuple[str, ...]:
    if port.event.groups["layer"] == NPU_LAYER:
        device = port.name.removeprefix("npu")
        device = device if device.isdecimal() else "N"
        return (
            f"hccn_tool -i {device} -link_stat -g   # on that host; then its module and switch",
        )
    if port.state in _SETTING_UP:
        return ("`sminfo` on that host: a port that stays so has no subnet manager",)
    return (
        "cable and port of the switch: `mlxlink -d DEVICE`, `ibdiagnet`",
        f"until then leave it out on all hosts: export NCCL_IB_HCA=^{port.name}",
    )


def _is_odd(port: _Port, ports: Sequence[_Port]) -> bool:
    """Tell whether a port should be up: its kin on the host are, or the same one elsewhere."""
    if port.is_active:
        return False
    same = [one for one in ports if one.place != port.place and one.name == port.name]
    if same:
        return any(one.is_active for one in same)
    peers = [one for one in ports if one.place == port.place and one.is_like(port)]
    return port.physical != _OFF and any(one.is_active for one in peers)
