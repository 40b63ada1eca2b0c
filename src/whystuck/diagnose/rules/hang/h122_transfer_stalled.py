"""H122 transfer-stalled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from msgspec.structs import replace

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.ops.progress import is_on_device, slice_rank
from whystuck.diagnose.algorithms.ops.waits import NO_ROW, Wait
from whystuck.diagnose.algorithms.processes.links import Link, find_dead_links
from whystuck.diagnose.algorithms.stacks.frames import make_places
from whystuck.diagnose.algorithms.transfers.pairs import find_peer
from whystuck.diagnose.context.device_facts import (
    DeviceModes,
    Mode,
    cite_devices,
    cite_kernels,
    describe_kernels,
    judge_devices,
    list_own_kernels,
)
from whystuck.diagnose.context.losses import LossEffect
from whystuck.diagnose.context.ras_facts import has_network_error
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.diagnose.thread_order import tell_threads
from whystuck.diagnose.traces.stalls import Before, cite_before, find_work_before, list_before
from whystuck.evidence.finding import Citation, Confidence, Finding
from whystuck.evidence.nodes.devices import DeviceState, RunningKernel
from whystuck.evidence.ranks import format_ranks, name_ranks

_PAIR = 2
_MAX_NAMED = 4
_ALL, _NONE, _UNKNOWN = "all", "none", "unknown"
_BEFORE = (
    "no device began the op: start again with `CUDA_LAUNCH_BLOCKING=1`, with which the stacks show "
    "the line whose kernel, before the op, does not end"
)
_DECIDE = (
    "start again with `whystuck run --fr-enable-timing` (TORCH_NCCL_ENABLE_TIMING=1): it tells "
    "which devices begin the op. One that does not is kept by a kernel before it, or hangs (H123); "
    "if all do, test the network"
)
# The one run that decides, by what is known of the starts of an op.
_EXPERIMENTS = {_UNKNOWN: _DECIDE, _NONE: _BEFORE}
_ODD = {
    Mode.COMPUTING: "look for a kernel of your own on that rank, before the op, that does not end:"
    " start again with `--gpu-coredump`, which names it, or with `CUDA_LAUNCH_BLOCKING=1`, with "
    "which the stacks show its line",
    Mode.IDLE: "look at what the stream of the op waits for on that rank, as nothing runs there:"
    " an event of another stream, a host function, or a launch that does not return",
}


class TransferStalled(Rule):
    """All members of a group entered an op, and it does not finish.

    ## What it means

    Nobody is missing: the program is right up to here. What does not move is the transfer: a link
    that drops packets, a network card, a switch, a firewall, or the library below.

    On a GPU, to enter an op is only to put it into a queue. The device of a rank may as well be
    kept by a kernel before it, or hang. Then the finding is `possible`, and its first remedy is
    the one run that tells the two apart.

    ## How it is found

    The oldest op that is not over is the same on all members, all have issued it, and no rank
    waits for somebody elsewhere. No member is stopped, dead or keeps its GIL. Connections whose
    bytes the kernel sends again and again are the dead `links`, with the `pairs` of ranks at their
    ends. `details` has a `pair` when there is one such pair, or when only two ranks take part or
    are left, and the `unfinished` ranks. It is only `possible` when the ring buffer is so full of
    pending ops that it has lost the oldest.

    Where several threads of a rank have ops of the group on hosts that are not over
    (`details.threads`), as with an asynchronous save of a checkpoint, the ranks may have called
    them in different order. The finding is `possible` then, and that is its first remedy.

    Where ranks wait and `ping` tells of a path that does not take packets of the size that the
    other end sends, it is `possible`.

    `details.started` tells what is known of devices. Without `TORCH_NCCL_ENABLE_TIMING` they say
    nothing (`unknown`), and the finding is `possible`, unless a connection is dead or NCCL reports
    an error of the system (by RAS). `all`: every
    device began the op, so that it is not a kernel of somebody's own, and the finding is `likely`.
    `none`: no device began it, and the finding is `possible`: something before it keeps them.
    A device that alone has not begun is H123. With `--gpu-coredump`, `details.kernels` names the
    kernel that keeps the device of a rank, by rank.

    A Kineto trace that was running when the op was issued tells what the device ran last;
    `details.before` has the op of the host whose work, launched before, did not end in it, by rank.

    Where NVIDIA's driver was asked at the stall, `details.devices` has the ranks whose devices are
    `spinning` (load 100 % at low power, as NCCL's kernels when they wait), `computing` (at high
    power, or with most of their units), `idle` or `lost`. While it is open whether a device or the
    network is to blame, and fewer than half of the devices compute, or have nothing to do, while
    all others spin, their ranks are named. That stays `possible`, unless power and active units
    (GPM) both say that they compute.

    In a log, NCCL tells that a card gave a transfer up (`status=12`, `IBV_WC_RETRY_EXC_ERR`): the
    finding is `possible`, as the other end may have been gone. The host that says so and its peer
    are named, or the end that all such lines share; `details.ends` has the pairs.

    Or `ss -ti` or `netstat -o` shows a connection whose bytes were sent five times in a row or more
    without an answer: both ends are named. Packets that `ping` sends and that get lost for their
    size alone, while smaller ones get through, say why; alone they are `possible`. So are large
    ones that get lost beside an established connection to that host whose bytes wait (`ss -tn`).

    ## False alarms

    Dumps of a healthy job that were taken just while all its ranks were in one op.

    ## What to do

    Test the links between the nodes of these ranks. When `details.started` is `unknown`, start
    again with `whystuck run --fr-enable-timing` first: it tells whether a device or the network is
    to blame. It slows small ops down, so leave it off afterwards.
    """

    code = codes.TRANSFER_STALLED
    name = "transfer-stalled"
    loss_effect = LossEffect.PARTED
    shows_ops = True
    needs = ("collectives", "peer_waits", "logs")
    remedies: ClassVar[tuple[str, ...]] = (
        "test the links between these ranks: `ping`, `ib_write_bw`, error counters of the cards",
        "with NCCL, start again with `NCCL_DEBUG=INFO`: which interface did it choose?",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield a finding for each group whose op all members entered."""
        yield from (tell_case(self, case) for case in scene.story.of(self.code))
        if not scene.movement.is_hung or scene.divergences.first or scene.suspects.explained:
            return
        if (
            scene.wait_cycle.edges
            or scene.suspects.unmatched
            or scene.divergences.odd_transfers
            or scene.divergences.strays
        ):
            return
        if scene.suspects.short_limit or scene.divergences.split_mismatch:
            return
        by_group: dict[str, list[Wait]] = {}
        for wait in scene.waits.in_flight.values():
            by_group.setdefault(wait.group.label, []).append(wait)
        for label, waits in by_group.items():
            # A rank that is at another op of the group is judged by that one.
            first = min(waits, key=lambda wait: wait.seq)
            found = self._make(scene, policy, label, [one for one in waits if one.seq == first.seq])
            is_shown = bool(find_dead_links(scene.evidence.processes))
            yield found if is_shown else tell_threads(scene, found, label)

    def _make(self, scene: Scene, policy: Policy, label: str, waits: Sequence[Wait]) -> Finding:
        first = waits[0]
        ranks = sorted(wait.rank for wait in waits)
        op = scene.ops.name_wait(first)
        past = sorted(first.finished)
        links = find_dead_links(scene.evidence.processes)
        tail = (f"; {name_ranks(past)} finished it" if past else "") + _describe_links(links)
        pair = _find_pair(scene, first, ranks, links)
        started = _find_started(scene, waits)
        devices, kernels = _list_devices(scene) if started else ((), ())
        modes = judge_devices(devices, ranks, policy)
        before = _find_before(scene, waits) if started else []
        details = {
            "group": label,
            "sequence": first.seq,
            "op": op,
            "unfinished": format_ranks(set(ranks)),
            **_list_known(started=started, pair=pair, devices=modes.details, links=links),
            **_list_known(kernels=list_own_kernels(kernels, ranks), before=list_before(before)),
        }
        who = f"between ranks {pair[0]} and {pair[1]}" if pair else f"of group {label}"
        is_told = bool(links) or has_network_error(scene.evidence)
        is_open = started in _EXPERIMENTS and not is_told
        entered = "issued it, and none is missing" if started else "entered it, none is missing"
        odd = modes.odd if is_open else ()
        if is_open:
            tail = f"; {_name_blamed(started, modes)}{describe_kernels(kernels, ranks)}{tail}"
        finding = self.make_finding(
            f"the {op} {who} does not finish: all members {entered}{tail}",
            self._judge(scene, waits, started, modes if is_open else None),
            Blame(
                ranks=odd,
                groups=[label],
                victims=sorted(scene.waits.waiting),
                where=make_places(
                    [*odd, *ranks][0], scene.ops.get_wait_site(first), policy.places_per_rank
                ),
            ),
            because=[
                scene.ops.cite_wait(wait, _describe_wait(wait, op, started))
                for wait in waits[: 1 if links else _MAX_NAMED]
            ]
            + [_cite_link(link) for link in links[:_MAX_NAMED]]
            + cite_kernels(kernels, ranks, _MAX_NAMED)
            + cite_before(before, _MAX_NAMED)
            + cite_devices(devices, ranks, odd, _MAX_NAMED),
            details=details,
        )
        first_remedy = _ODD[modes.mode] if odd else _EXPERIMENTS.get(started, "")
        return _advise(finding, first_remedy) if is_open else finding

    def _judge(
        self, scene: Scene, waits: Sequence[Wait], started: str, modes: DeviceModes | None
    ) -> Confidence:
        """Judge by what agrees: recorder and stacks are two sources, the recorder alone is one.

        A ring that is full of pending ops may have lost the one that does not end. Where devices
        have begun the op, the library below may hang as well as the network. ``modes`` is given
        while it is open whether a device or the network is to blame.
        """
        ranks = {wait.rank for wait in waits}
        if not scene.ops.lost_ranks.isdisjoint(ranks):
            return Confidence.POSSIBLE
        if modes is not None:
            is_sure = modes.is_sure and modes.mode is Mode.COMPUTING
            return Confidence.LIKELY if is_sure else Confidence.POSSIBLE
        is_certain = not started and scene.waits.waiting_by_stack.issuperset(ranks)
        return Confidence.CERTAIN if is_certain else Confidence.LIKELY


def _describe_links(links: Sequence[Link]) -> str:
    ends = ", ".join(f"{one} and {other}" for one, other in _list_pairs(links)[:_MAX_NAMED])
    return f"; bytes do not arrive between ranks {ends}" if ends else ""


def _list_known(*, links: Sequence[Link] = (), **known: object) -> dict[str, Any]:
    """Return those details that are there."""
    if links:
        known["links"] = [f"{link.local} -> {link.remote}" for link in links[:_MAX_NAMED]]
        known["pairs"] = _list_pairs(links)
    return {name: value for name, value in known.items() if value or name == "pairs"}


def _name_blamed(started: str, modes: DeviceModes) -> str:
    if modes.odd:
        return modes.tail
    whom = "what their devices do before it" if started == _NONE else "a device or the network"
    return f"{whom} is to blame" + (f" ({modes.tail})" if modes.tail else "")


def _describe_wait(wait: Wait, op: str, started: str) -> str:
    if not started:
        return f"rank {wait.rank} is in {op} of group {wait.group.label}"
    known = {_ALL: "and its device began it", _NONE: "and its device has not begun it"}
    begun = known.get(started, "which is not over on its device")
    return f"rank {wait.rank} issued {op} {wait.seq} of group {wait.group.label}, {begun}"


def _advise(finding: Finding, first: str) -> Finding:
    return replace(finding, remedies=[first, *finding.remedies])


def _cite_link(link: Link) -> Citation:
    text = (
        f"{link.unsent_bytes} bytes from rank {link.rank} ({link.local}) to {_name_peer(link)} "
        f"({link.remote}) are sent again and not acknowledged"
    )
    return Citation(text, link.artifact)


def _list_devices(
    scene: Scene,
) -> tuple[tuple[DeviceState, ...], tuple[RunningKernel, ...]]:
    return scene.evidence.devices, scene.evidence.kernels


def _find_before(scene: Scene, waits: Sequence[Wait]) -> list[Before]:
    created_ns = scene.ops.table.created_ns
    issued_ns = {wait.rank: int(created_ns[wait.row]) for wait in waits if wait.row != NO_ROW}
    return find_work_before(scene.evidence.traces, issued_ns)


def _find_started(scene: Scene, waits: Sequence[Wait]) -> str:
    """Tell whether the devices of ranks have begun an op; empty where it runs on hosts."""
    rows = [wait.row for wait in waits if wait.row != NO_ROW]
    if not rows or not is_on_device(scene.ops.table, rows[0]):
        return ""
    table = scene.ops.table
    begun = [bool(table.started[row]) for row in rows]
    if all(begun):
        return _ALL
    tells = all(table.started_ns[slice_rank(table, wait.rank)].any() for wait in waits)
    return _NONE if tells and not any(begun) else _UNKNOWN


def _find_pair(scene: Scene, wait: Wait, ranks: Sequence[int], links: Sequence[Link]) -> list[int]:
    pairs = _list_pairs(links)
    if len(pairs) == 1:
        return pairs[0]
    if wait.is_p2p and wait.row != NO_ROW:
        form = scene.ops.table.forms[int(scene.ops.table.form[wait.row])]
        peer = find_peer(wait.group, form.op, form.source, form.target)
        return sorted((wait.rank, peer)) if peer is not None else []
    is_pair = len(ranks) == _PAIR and (wait.finished or len(wait.group.members) == _PAIR)
    return list(ranks) if is_pair else []


def _list_pairs(links: Sequence[Link]) -> list[list[int]]:
    """Return the pairs of ranks with a dead link, each once."""
    found = {(min(link.rank, link.peer), max(link.rank, link.peer)) for link in links}
    return [list(pair) for pair in sorted(found) if pair[0] >= 0]


def _name_peer(link: Link) -> str:
    return f"rank {link.peer}" if link.peer >= 0 else "a rank that is not known"
