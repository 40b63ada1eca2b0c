"""N427 transport-fallback."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose.context.nccl_facts import SOCKET, NcclFacts, cite_lines
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.nccl_rule import NcclRule
from whystuck.diagnose.rule import Blame
from whystuck.evidence.finding import Confidence, Finding
from whystuck.evidence.logs.lines import LogEvent


class TransportFallback(NcclRule):
    """NCCL sends between hosts over something slower than what seems to be there.

    ## What it means

    Sockets are ten times slower than InfiniBand or the network of a cloud, and without GPUDirect
    each byte goes through host memory. Nothing fails: steps are slow, or time limits are met.

    ## How it is found

    `Using network Socket` of NCCL on some hosts while others use another network, or on all hosts
    although a library or a setting for InfiniBand was looked for (`Failed to open libibverbs`,
    `NCCL_IB_HCA`), or the same hosts used InfiniBand in another run; and `GPU Direct RDMA
    Disabled`. `details.kind` is socket or no-gpudirect. That a job has several hosts is known by
    its logs, by `nNodes 2`, by `via NET/Socket`, or by who pasted a log and compares its pace
    with that of one host alone.

    ## False alarms

    A cluster that has no other network; on one host the network is not used at all, and nothing is
    reported.

    ## What to do

    Look for the device and its library inside the container: `ibv_devinfo`, `ls /dev/infiniband`.
    """

    code = "N427"
    name = "transport-fallback"
    remedies: ClassVar[tuple[str, ...]] = (
        "ibv_devinfo; ls /dev/infiniband   # inside the container: are devices and library there",
        "docker run --device /dev/infiniband --ulimit memlock=-1 ..., or the pod's rdma resource",
        "NCCL_DEBUG=INFO tells which network is used: `whystuck run --nccl-debug INIT,NET`",
    )

    def look(self, facts: NcclFacts, scene: Scene) -> Iterator[Finding]:
        """Yield what NCCL falls back from."""
        del scene
        if not facts.is_multi_node:
            return
        yield from self._look_at_sockets(facts)
        if facts.indirect and SOCKET not in facts.networks:
            yield self.make_finding(
                "network cards do not reach device memory: GPUDirect RDMA is off",
                Confidence.LIKELY,
                Blame(),
                because=cite_lines(facts.indirect),
                details={"kind": "no-gpudirect", "networks": sorted(facts.networks)},
            )

    def is_slowing(self, finding: Finding) -> bool:
        """Tell whether it sends over sockets: steps are slow then, and nothing fails."""
        return finding.details.get("kind") == "socket"

    def _look_at_sockets(self, facts: NcclFacts) -> Iterator[Finding]:
        events = [*facts.socket_channels, *facts.networks.get(SOCKET, [])]
        if not events:
            return
        known = sorted(set(facts.networks) - {SOCKET, ""})
        faster, slow = _find_faster(facts, events)
        nodes = sorted(slow)
        off = facts.get_setting("NCCL_IB_DISABLE")
        reason = ""
        if off not in {"", "0"}:
            reason = f": NCCL_IB_DISABLE={off} is set"
        elif facts.absent:
            reason = ": it found no InfiniBand device"
        if faster:
            summary = (
                f"{' and '.join(nodes) or 'some hosts'} send over sockets, the others over "
                f"{' and '.join(faster)}{reason}"
            )
        elif known:
            summary = (
                "NCCL sends between hosts over sockets, also on those that used "
                f"{' and '.join(known)} in another run{reason}"
            )
        elif reason or facts.get_setting("NCCL_IB_HCA"):
            summary = f"NCCL sends between hosts over sockets{reason}"
        else:
            return  # nothing tells that there is anything faster
        yield self.make_finding(
            summary,
            Confidence.LIKELY if known else Confidence.POSSIBLE,
            Blame(nodes=nodes if faster else ()),
            because=cite_lines([*events[:2], *facts.absent[:2]]),
            details={"kind": "socket", "networks": sorted(facts.networks)},
        )


def _find_faster(facts: NcclFacts, events: list[LogEvent]) -> tuple[list[str], set[str]]:
    """Find the networks of hosts that send over no sockets, and the hosts that do.

    A host that has no device sends over sockets, where it does not choose anything else; one that
    did both wrote of two runs.
    """
    by_place = {
        place: name
        for name, chosen in facts.networks.items()
        if name not in {SOCKET, ""}
        for place in facts.find_places(chosen)
    }
    slow = facts.find_places(events)
    lacking = facts.find_places(facts.absent) - by_place.keys()
    faster = sorted({name for place, name in by_place.items() if place not in slow})
    nodes = {teller.node for teller in facts.find_tellers([*events, *facts.absent])} - {""}
    return faster, nodes & (slow | lacking)
