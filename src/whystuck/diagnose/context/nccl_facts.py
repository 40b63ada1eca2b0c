"""What NCCL's own lines tell of versions, transports and interfaces."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Citation
from whystuck.evidence.logs.lines import LogEvent

_MAX_CITED = 4
_MAX_TEXT = 240
SOCKET = "Socket"
# Bridges, tunnels and the like, which no other host can reach.
_LOCAL_ONLY = re.compile(
    r"^(?:lo|docker\d*|virbr\d*|br-[0-9a-f]+|veth\w*|cni\d*|cbr\d*|lxcbr\d*|podman\d*|dummy\d*)$"
)


@dataclass(frozen=True)
class Teller:
    """A host, or the rank or log that tells where the host is not known."""

    node: str
    rank: int
    artifact: str

    @property
    def place(self) -> str:
        """The host, or the log in its place: two logs may be of one host, never one of two."""
        return self.node or self.artifact


@dataclass
class NcclFacts:
    """Lines of NCCL by what they tell.

    Attributes:
        versions: Lines by the version that they name.
        networks: Lines by the network that NCCL chose, e.g. ``IB`` or ``Socket``.
        absent: Lines that say that there is no InfiniBand device.
        interfaces: Lines by interface and address.
        settings: Lines by variable and value.
        blocked: Lines that say that devices do not reach each other.
        indirect: Lines that say that a card does not reach device memory.
        socket_channels: Lines of channels to other hosts over sockets.
        unreached: Lines that say that an address was not reached.
        odd_sizes: Lines that say that a set-up message was larger or smaller than it has to be.
        node_count: More than one where a communicator is on several hosts, 0 where none tells so.
        nodes: All hosts of the job that anything tells of.
    """

    versions: dict[str, list[LogEvent]] = field(default_factory=dict)
    networks: dict[str, list[LogEvent]] = field(default_factory=dict)
    absent: list[LogEvent] = field(default_factory=list)
    interfaces: dict[tuple[str, str], list[LogEvent]] = field(default_factory=dict)
    settings: dict[tuple[str, str], list[LogEvent]] = field(default_factory=dict)
    blocked: list[LogEvent] = field(default_factory=list)
    indirect: list[LogEvent] = field(default_factory=list)
    socket_channels: list[LogEvent] = field(default_factory=list)
    unreached: list[LogEvent] = field(default_factory=list)
    odd_sizes: list[LogEvent] = field(default_factory=list)
    node_count: int = 0
    nodes: frozenset[str] = frozenset()
    node_by_rank: Mapping[int, str] = field(default_factory=dict)

    def find_tellers(self, events: Iterable[LogEvent]) -> set[Teller]:
        """Return who wrote some lines."""
        return {
            Teller(event.node or self.node_by_rank.get(event.rank, ""), event.rank, event.artifact)
            for event in events
        }

    def find_places(self, events: Iterable[LogEvent]) -> set[str]:
        """Return the hosts, or logs of unknown hosts, that some lines are of."""
        return {teller.place for teller in self.find_tellers(events)}

    @property
    def is_multi_node(self) -> bool:
        """Whether the job is known to run on several hosts."""
        return len(self.nodes) > 1 or self.node_count > 1 or bool(self.socket_channels)

    def get_setting(self, name: str) -> str:
        """Return a variable of NCCL that the environment sets, empty when none is told."""
        return next((value for key, value in self.settings if key == name), "")

    def list_local_interfaces(self) -> dict[tuple[str, str], list[LogEvent]]:
        """Return the interfaces in use that other hosts cannot reach, by their names."""
        return {key: found for key, found in self.interfaces.items() if _LOCAL_ONLY.match(key[0])}

    def list_shared_addresses(self) -> dict[str, set[str]]:
        """Return addresses that several hosts have, and those hosts: of bridges with defaults."""
        found: dict[str, set[str]] = {}
        for (_, address), events in self.interfaces.items():
            hosts = {teller.node for teller in self.find_tellers(events)} - {""}
            found.setdefault(address, set()).update(hosts)
        return {address: hosts for address, hosts in found.items() if len(hosts) > 1}


def read_nccl_facts(view: LogView) -> NcclFacts:
    """Bring the lines of NCCL together by what they tell."""
    facts = NcclFacts(
        nodes=frozenset(view.node_by_rank.values()) - {""}, node_by_rank=view.node_by_rank
    )
    lists = {
        "nccl.ib_absent": facts.absent,
        "nccl.p2p_off": facts.blocked,
        "nccl.gdr_off": facts.indirect,
        "nccl.net_socket": facts.socket_channels,
        "nccl.connect_fail": facts.unreached,
        "nccl.setup_size": facts.odd_sizes,
    }
    for event in view.events:
        lists.get(event.signature, []).append(event)
        get = event.groups.get
        match event.signature:
            case "nccl.version" | "nccl.result" | "nccl.own_error":
                if version := get("version") or get("version2"):
                    key = version.replace(" ", "").replace(",", ".")
                    facts.versions.setdefault(key, []).append(event)
            case "nccl.net_chosen":
                facts.networks.setdefault(get("net") or get("net2") or "", []).append(event)
            case "nccl.interface":
                place = get("iface") or "", get("addr") or ""
                facts.interfaces.setdefault(place, []).append(event)
            case "nccl.set_by_environment":
                setting = get("name") or "", (get("value") or "").rstrip(".")
                facts.settings.setdefault(setting, []).append(event)
            case "nccl.nodes":
                facts.node_count = max(facts.node_count, int(get("nodes") or 0))
            case "paste.node_alone":
                facts.node_count = max(facts.node_count, 2)
    return facts


def cite_lines(events: Iterable[LogEvent]) -> list[Citation]:
    """Cite the first of some lines."""
    chosen = list(events)[:_MAX_CITED]
    return [Citation(event.text[:_MAX_TEXT], event.artifact, event.row) for event in chosen]
