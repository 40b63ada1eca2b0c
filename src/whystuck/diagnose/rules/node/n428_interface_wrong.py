"""N428 interface-wrong."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from typing import ClassVar

from msgspec.structs import replace

from whystuck.diagnose import codes
from whystuck.diagnose.context.nccl_facts import NcclFacts, cite_lines
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.nccl_rule import NcclRule
from whystuck.diagnose.rule import Blame
from whystuck.evidence.finding import Confidence, Finding, Severity
from whystuck.evidence.logs.lines import LogEvent

# Hosts of one cluster mostly share so many bits.
_SHARED_BITS = 16


class InterfaceWrong(NcclRule):
    """NCCL uses a network interface that other hosts may not reach.

    ## What it means

    NCCL takes the first interface that looks usable. A bridge of containers or virtual machines, or
    the loopback, has an address that means nothing on another host: connections are refused, or
    reach the wrong machine.

    ## How it is found

    The interface and address that NCCL names at its start, in a job of several hosts or where that
    very address was not reached: a name such
    as docker0, lo or virbr0; one address on two hosts; or different interfaces on networks that
    differ in their first half. `details.kind` is local, shared-address or networks-differ. Where
    the address of such an interface was not reached, that is why processes did not find each other.

    ## False alarms

    Networks that differ may be routed.

    ## What to do

    Name the interface that all hosts share: `export NCCL_SOCKET_IFNAME=eth0`, and
    `GLOO_SOCKET_IFNAME` for gloo.
    """

    code = "N428"
    name = "interface-wrong"
    explains = (codes.RENDEZVOUS_FAILED,)
    explains_from = Severity.ERROR
    remedies: ClassVar[tuple[str, ...]] = (
        "ip -br addr   # on each host: which interface has an address of the common network",
        "export NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0   # that interface, on all hosts",
    )

    def look(self, facts: NcclFacts, scene: Scene) -> Iterator[Finding]:
        """Yield a finding where an interface cannot be right, or may not be."""
        del scene
        if not facts.is_multi_node and not _is_unreached(facts):
            return
        local = facts.list_local_interfaces()
        shared = facts.list_shared_addresses()
        if local:
            events = [event for found in local.values() for event in found]
            names = " and ".join(sorted({name for name, _ in local}))
            text = f"NCCL uses {names}, which other hosts cannot reach"
            finding = self._tell("local", text, Confidence.LIKELY, facts, events)
            is_cause = _is_unreached(facts)
            yield replace(finding, severity=Severity.ERROR) if is_cause else finding
        elif shared:
            address, hosts = min(shared.items())
            of_address = (found for key, found in facts.interfaces.items() if key[1] == address)
            events = [event for found in of_address for event in found]
            text = f"NCCL uses the address {address} on {' and '.join(sorted(hosts))}"
            yield self._tell("shared-address", text, Confidence.LIKELY, facts, events)
        elif odd := _find_apart(facts):
            text = f"NCCL uses interfaces on different networks: {' and '.join(sorted(odd))}"
            events = [found[0] for found in facts.interfaces.values()]
            yield self._tell("networks-differ", text, Confidence.POSSIBLE, facts, events)

    def _tell(
        self, kind: str, text: str, sure: Confidence, facts: NcclFacts, events: list[LogEvent]
    ) -> Finding:
        nodes = sorted({teller.node for teller in facts.find_tellers(events)} - {""})
        is_some = 0 < len(nodes) < len(facts.nodes)
        where = f" on {' and '.join(nodes)}" if is_some and kind == "local" else ""
        return self.make_finding(
            text + where,
            sure,
            Blame(nodes=nodes if is_some else ()),
            because=cite_lines(events),
            details={
                "kind": kind,
                "interfaces": sorted({f"{name}:{address}" for name, address in facts.interfaces}),
            },
        )


def _is_unreached(facts: NcclFacts) -> bool:
    """Tell whether an address that NCCL chose could not be reached: some other host tried."""
    chosen = [f" {address}<" for _, address in facts.interfaces if address]
    return any(text in event.text for event in facts.unreached for text in chosen)


def _find_apart(facts: NcclFacts) -> set[str]:
    """Return interfaces and networks that differ over hosts; empty where they do not."""
    networks: dict[str, set[str]] = {}
    for (name, address), events in facts.interfaces.items():
        try:
            number = ip_address(address.strip("[]").partition("%")[0])
        except ValueError:
            continue
        network = str(ip_network(f"{number}/{_SHARED_BITS}", strict=False))
        for place in facts.find_places(events):
            networks.setdefault(f"{name} {network}", set()).add(place)
    names = {key.partition(" ")[0] for key in networks}
    ranges = {key.partition(" ")[2] for key in networks}
    return set(networks) if len(names) > 1 and len(ranges) > 1 else set()
