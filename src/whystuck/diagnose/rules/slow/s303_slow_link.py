"""S303 slow-link."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.transfers.flows import Flow
from whystuck.diagnose.algorithms.transfers.slow_links import IN, OUT, SlowFlow, SlowLink
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.evidence.finding import Citation, Confidence, Finding, Severity
from whystuck.evidence.ranks import name_ranks

_NS_PER_MS = 1e6
_MAX_CITED = 6


class SlowLinkRule(Rule):
    """Transfers over one link take longer than over others, or than before; no rank is slow.

    ## What it means

    A cable, a port, a switch, or a limit on the traffic of one host: all ranks wait for what comes
    over it. The ranks at its ends compute as fast as their peers.

    ## How it is found

    From the op logs of ranks that run on different hosts, or in different network namespaces. What
    an op takes is counted from the moment at which all have come to it, for a receive from that of
    the send, so that a late rank does not count. Transfers are slow when they take half as long
    again, or more, from one step on and until the end, 16 steps or more, or twice as long as like
    transfers of other ranks, and a step loses 5 ms and 5 % of its time by that.

    Then the one link is sought over which all slow transfers go, and none that is as fast as
    before: what leaves a host, what comes to it, or what goes between two hosts. Sends and
    receives, and groups of two, tell it exactly. In an all-reduce of more ranks over gloo, which
    is a ring, the rank behind the slow link is over last, by one turn of the ring: that tells the
    link, and `details.ends` lists both ends, as it cannot be known which of them is slow. Where
    more than one link may be it, nothing is said here, and S304 tells that communication grew.

    `details.pair` are two ranks at the ends, `details.ends` the ranks of the hosts whose end may
    be slow, `details.direction` is `out` or `in` where only one direction of a host is slow, and
    `details.interface` is what the environment of the job names, such as `GLOO_SOCKET_IFNAME`. A
    rank that leaves an op late, and so comes late to the next one, is not named by S301 then. Of
    the `measures`, `before_ms` is the usual transfer before, or that of others, `after_ms` the one
    since, `lost_share` the share of the time that is lost.

    Of texts, it is the host whose interface has agreed on half the speed of that of others or less,
    as `ethtool` prints it below the prompt of each host; `details.kind` is `speed` then. Or it is
    the one pair of hosts that is slow in a list or a matrix of bandwidths, while each of both is
    fast with the others.

    ## False alarms

    A host whose processor is busy passes data on slowly: ranks that do not get the processor
    (S306) are looked at first.

    ## What to do

    Look at the ports at both ends: rate, errors, limits. Measure the pair alone.
    """

    code = codes.SLOW_LINK
    name = "slow-link"
    severity = Severity.WARNING
    needs = ("ops", "logs")
    explains = (codes.WHOLE_JOB_SLOWER, codes.IMBALANCE, codes.COMMUNICATION_BOUND)
    explains_from = Severity.WARNING
    remedies: ClassVar[tuple[str, ...]] = (
        "ethtool INTERFACE; ip -s link show INTERFACE; tc -s qdisc   # rate, errors, limits",
        "whystuck check --only pairs --coordinator HOST:PORT   # on each host: each pair alone",
        "whystuck check --only nic,fabric   # on the hosts of both ends",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield the finding when one link explains which transfers are slow."""
        del policy
        link = scene.pace.slow_link
        if link is None:
            yield from (tell_case(self, case) for case in scene.story.of(self.code))
            return
        ends = _list_ends(scene, link)
        worst, pair = link.worst, link.pair
        interface = _find_interface(scene, ends or pair)
        before_ms, after_ms = worst.before_ns / _NS_PER_MS, worst.after_ns / _NS_PER_MS
        step = int(scene.evidence.ops.step[worst.flow.rows[worst.place]]) if worst.place else -1
        yield self.make_finding(
            f"{_name_link(link, ends, interface)} is slow{_tell_since(worst, step)}: "
            f"{_name_flow(worst.flow)} takes {after_ms:.0f} ms{_tell_usual(worst, before_ms)}; "
            f"{worst.lost_share:.0%} of the time is lost, and no rank is slow itself",
            _judge(link),
            Blame(nodes=_list_nodes(scene, ends), groups=[worst.flow.group]),
            because=_cite(scene, link),
            details={
                "kind": "link",
                "pair": sorted(pair),
                "from": pair[0],
                "to": pair[1],
                "ends": sorted(ends),
                "direction": link.direction,
                "interface": interface,
                "step": step,
            },
            measures={
                "before_ms": round(before_ms, 3),
                "after_ms": round(after_ms, 3),
                "lost_ms": round(after_ms - before_ms, 3),
                "lost_share": round(worst.lost_share, 4),
            },
        )


def _judge(link: SlowLink) -> Confidence:
    """Be sure of a link that others are compared with, less of one that a ring alone shows."""
    is_compared = bool(link.fast) and link.worst.ring_pair is None
    return Confidence.LIKELY if is_compared or link.worst.place else Confidence.POSSIBLE


def _list_ends(scene: Scene, link: SlowLink) -> list[int]:
    hosts = scene.pace.hosts
    return sorted(rank for rank, host in hosts.items() if host in link.hosts)


def _list_nodes(scene: Scene, ends: Sequence[int]) -> list[str]:
    """Return the node of the end, where that is one, and no other ranks are on it."""
    nodes = scene.evidence.topology.node_by_rank
    mine = {nodes.get(rank) for rank in ends}
    (node, *others) = mine or {None}
    if node is None or others or any(nodes[one] == node for one in set(nodes) - set(ends)):
        return []
    return [node]


def _find_interface(scene: Scene, ranks: Sequence[int]) -> str:
    found = {log.interface for log in scene.evidence.ops.logs if log.rank in ranks}
    return found.pop() if len(found) == 1 else ""


def _name_link(link: SlowLink, ends: Sequence[int], interface: str) -> str:
    on = f", interface {interface}" if interface else ""
    if not link.is_pair:
        way = {OUT: "what leaves", IN: "what comes to"}.get(link.direction, "the link of")
        return f"{way} the host of {name_ranks(ends)}{on},"
    which = "" if len(link.hosts) == 1 else ", it cannot be told at which end,"
    if not link.hosts:
        which = ", not what either of them has to do with others,"
    return f"the link from rank {link.pair[0]} to rank {link.pair[1]}{on}{which}"


def _name_flow(flow: Flow) -> str:
    if flow.is_pair:
        return f"a transfer from rank {flow.ranks[0]} to {flow.ranks[1]}"
    return f"the {flow.op} of group {flow.group}"


def _tell_since(slow: SlowFlow, step: int) -> str:
    if not slow.place:
        return ""
    return f" since step {step}" if step >= 0 else " since one moment"


def _tell_usual(slow: SlowFlow, before_ms: float) -> str:
    if slow.place:
        return f", before it was {before_ms:.0f} ms"
    return f", others {before_ms:.0f} ms" if before_ms else ""


def _cite(scene: Scene, link: SlowLink) -> list[Citation]:
    logs = {log.rank: log.artifact for log in scene.evidence.ops.logs}
    told = []
    for one in link.slow[:_MAX_CITED]:
        flow = one.flow
        row = int(flow.rows[one.place])
        text = f"{_name_flow(flow)}: {one.before_ns / _NS_PER_MS:.0f} ms"
        text += f" before, then {one.after_ns / _NS_PER_MS:.0f} ms" if one.place else " elsewhere"
        if one.ring_pair is not None:
            text += f"; rank {one.ring_pair[1]} is over last: it gets its data over this link"
        told.append(Citation(text, logs.get(int(scene.evidence.ops.rank[row]), ""), row=None))
    quick = [_name_flow(flow) for flow in link.fast[:_MAX_CITED]]
    return [*told, *([Citation("as fast as before: " + "; ".join(quick))] if quick else [])]
