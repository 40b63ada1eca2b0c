"""C208 hardware-error: what the kernel, the fabric and the devices say broke, and whom it hit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.devices.driver import (
    find_silent_ranks,
    find_told_ranks,
    make_told_by_driver,
)
from whystuck.diagnose.logs.cases.devices.following import (
    LACKS_DEVICES,
    LOST,
    find_raised,
    list_said,
)
from whystuck.diagnose.logs.cases.parts import (
    drop_before_job,
    find_exceptions,
    find_time,
    is_said,
    list_first,
    list_ranks,
    name_job,
    place_exceptions,
)
from whystuck.diagnose.logs.story import ALOOF, LINKED, NEAR, OUTSIDE, OWN, Case
from whystuck.diagnose.logs.view import LogView, simplify_bus
from whystuck.evidence.finding import Confidence
from whystuck.evidence.live import ExitRecord
from whystuck.evidence.logs.lines import UNKNOWN_RANK, LogEvent
from whystuck.evidence.ranks import name_ranks

_XID = re.compile(r"Xid \((?:PCI:)?([0-9a-fA-F:.]+)\):\s*(\d+)\b,?\s*(.*)")
_BUS = re.compile(r"\b((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?)\b")
_PID = re.compile(
    r"\bpid='?(\d+)|Sending SIGBUS to [^:]+:(\d+)|GPU HANG: .{1,80} in \S{1,40} \[(\d+)\]"
)
# The fabric of a host fails for all its devices: what these say comes before what devices say.
_FABRIC = ("sxid.", "fm.")
_FABRIC_KINDS = {"nvswitch", "fabric"}
# A rank whose device is lost says so at its next call.
_STRUCK_NS, _MOST_LOST = 30_000_000_000, 16
_NODE_KINDS = {"nic", "storage", "host_crash", "host_hang", "cpu_mem_ecc", "node_failure"}
_SHARED_KINDS = {"network", "fabric"}
# What ranks print when their own device fails.
_DEVICE_SIGNS = ("cuda.", "cublas.", "nccl.cuda_failure", "rocm.", "xpu.lost")
_DEVICE_WORDS = re.compile(r"CUDA error|Cuda failure|unhandled cuda error|cuDNN|CUBLAS|HIP error")


@dataclass
class _Trouble:
    """Lines about one device of a host, or about the host itself."""

    node: str
    bus: str
    events: list[LogEvent] = field(default_factory=list)

    @property
    def is_fabric(self) -> bool:
        return any(event.kind in _FABRIC_KINDS for event in self.events)


# Signatures of what libraries print in a rank.
_PRINTED_BY_RANKS = ("cuda.", "nccl.", "npu.", "rocm.", "xpu.")


# Who tells that a host is lost, by the family of the signature, and what to do then.
_TELLERS = {"slurm": "Slurm", "mpi": "mpirun"}
_LOST_ADVICE = {
    "Slurm": 'scontrol update nodename={node} state=drain reason="node failure"',
    "Kubernetes": "kubectl describe node {node}",
}


def make_hardware(view: LogView) -> Iterator[Case]:
    """Make a case for each device or host that broke, as machines tell it; else as ranks do."""
    told = [
        event
        for event in view.list_events(codes.HARDWARE_ERROR, "cause")
        if is_said(event) and (view.is_of_machine(event) or _is_machine_line(event))
    ]
    told = drop_before_job(view, told)
    by_node: dict[str, list[LogEvent]] = {}
    for event in told:
        if event.kind != "node_failure":
            by_node.setdefault(event.node or event.artifact, []).append(event)
    lost = [event for event in told if event.kind == "node_failure"]
    known = {id(event) for event in told}
    for events in list_first(list(by_node.values()), find_time):
        case = _add_loss(_make_node(view, events), lost)
        yield case
        if case.support >= LINKED:
            # What ranks print of a card is the same event as what their kernel tells of it.
            known |= {id(one) for one in view.events if _is_card_event(one, *case.nodes)}
    yield from make_told_by_driver(view, by_node)
    yield from _make_lost_node([event for event in lost if _find_lost(event) not in by_node])
    yield from _make_felt(view, known)


def _find_lost(event: LogEvent) -> str:
    return event.groups.get("node") or ""


def _add_loss(case: Case, lost: list[LogEvent]) -> Case:
    """Add that a launcher or a scheduler lost the host that broke, and gave the job up for it."""
    lines = [event for event in lost if _find_lost(event) and _find_lost(event) in case.nodes]
    if not lines:
        return case
    first, *rest = case.lines
    return replace(case, lines=(first, *lines, *rest), ends_job=True, support=LINKED)


def _make_lost_node(events: list[LogEvent]) -> Iterator[Case]:
    """Make the case of hosts that the scheduler lost, whatever happened to them."""
    if not events:
        return
    nodes = sorted({name for event in events if (name := event.groups.get("node"))})
    telling = sorted(events, key=lambda event: not event.groups.get("node"))
    who = " and ".join(nodes) or "a host"
    teller = _TELLERS.get(events[0].signature.partition(".")[0], "Kubernetes")
    # A scheduler asks its hosts again; mpirun lost a connection.
    is_open = teller == "mpirun"
    yield Case(
        code=codes.HARDWARE_ERROR,
        summary=f"{teller} lost {who}; "
        + (
            "whether its network, that host or the daemon there failed is not in the logs"
            if is_open
            else "what happened to it is not in the logs"
        ),
        tier=OUTSIDE,
        nodes=tuple(nodes),
        lines=tuple(telling),
        time=find_time(events),
        confidence=Confidence.POSSIBLE if is_open else Confidence.LIKELY,
        details={"kind": "node_failure"},
        ends_job=True,
        remedies=tuple(
            _LOST_ADVICE.get(teller, "ssh {node} 'uptime; dmesg -T | tail'").format(node=node)
            for node in nodes
        ),
        is_foreign=True,
    )


def _is_machine_line(event: LogEvent) -> bool:
    """Tell whether a line is one of a kernel or a scheduler, wherever it was found."""
    return not event.signature.startswith(_PRINTED_BY_RANKS)


def _make_node(view: LogView, events: list[LogEvent]) -> Case:
    """Make the case of one host: the trouble that came first, which others there follow from."""
    troubles: dict[str, _Trouble] = {}
    for event in events:
        bus = _find_bus(event)
        trouble = troubles.setdefault(bus, _Trouble(event.node, bus))
        trouble.events.append(event)
    first = min(troubles.values(), key=lambda one: _order(view, one))
    reach = view.list_possible_ranks_on(first.node) if first.node else view.ranks
    ranks = frozenset() if first.is_fabric else _find_ranks(view, first, reach)
    return _make_case(view, first, ranks, reach)


def _order(view: LogView, trouble: _Trouble) -> tuple[bool, bool, int, int]:
    """Order what broke on one host: the fabric first, then what was felt, then by its clock."""
    time = find_time(trouble.events)
    felt = any(view.is_felt(event.time) is not False for event in trouble.events)
    return not felt, not trouble.is_fabric, time.ns if time else 0, trouble.events[0].row


def _find_bus(event: LogEvent) -> str:
    if event.kind in _NODE_KINDS or event.kind in _FABRIC_KINDS:
        return ""
    match = _XID.search(event.text) or _BUS.search(event.text)
    return simplify_bus(match[1]) if match else ""


def _find_ranks(view: LogView, trouble: _Trouble, reach: frozenset[int]) -> frozenset[int]:
    """Return the ranks that use a device, by its bus id or by the process that a line names."""
    ranks = view.find_ranks_of_bus(trouble.bus, trouble.node) if trouble.bus else frozenset()
    if not ranks:
        pids = [match for event in trouble.events if (match := _PID.search(event.text))]
        numbers = [int(one[1] or one[2] or one[3]) for one in pids]
        found = [view.find_rank_of_pid(number, trouble.node) for number in numbers]
        ranks = frozenset(rank for rank in found if rank is not None)
    if not ranks and trouble.bus:
        ranks = find_told_ranks(view, trouble.node) or find_silent_ranks(view, trouble.events)
    if not ranks and trouble.bus:
        # A device without a name: a single rank of its host that met a device error is its own.
        met = view.list_signatures("cuda.", "rocm.", "xpu.")
        told = {event.rank for event in met if event.role == "cause" and not _is_lacking(event)}
        signs = (told & reach) or {event.rank for event in _list_struck(view, trouble)} & reach
        # Of a rank whose device is known, it is another one.
        signs -= {rank for file in view.files for rank in file.bus_by_rank}
        ranks = frozenset(signs) if len(signs) == 1 else frozenset()
    return ranks if len(ranks) == 1 else frozenset()


def _list_struck(view: LogView, trouble: _Trouble) -> list[LogEvent]:
    """Return what ranks print of a device error seconds after a device was lost, in any attempt.

    The attempts that follow lack the device: who finds none of its number then has another one.
    """
    lost = [event.time for event in trouble.events if event.kind == LOST and event.time]
    lost = lost[-_MOST_LOST:]
    told = (event for event in (*view.earlier, *view.events) if event.rank != UNKNOWN_RANK)
    return [
        event
        for event in told
        if event.role == "cause" and _is_device_sign(event) and not _is_lacking(event)
        if event.time and any(0 <= event.time.ns - one.ns <= _STRUCK_NS for one in lost)
    ]


def _is_lacking(event: LogEvent) -> bool:
    return LACKS_DEVICES.search(event.text) is not None


def _make_case(
    view: LogView, trouble: _Trouble, ranks: frozenset[int], reach: frozenset[int]
) -> Case:
    events = sorted(trouble.events, key=lambda event: event.row)
    near = [event for event in events if view.is_felt(event.time) is not False]
    first = (near or events)[0]
    time = find_time(near or events)
    where = f" of {name_ranks(ranks)}" if ranks else ""
    on = f" on {trouble.node}" if trouble.node else ""
    # That ranks have the numbers of their devices is what a person says.
    is_guessed = any(view.list_signatures("table.rank_is_device", "note.silent"))
    # So is it where only the clocks of the two fit.
    struck = [event for event in _list_struck(view, trouble) if event.rank in ranks]
    is_guessed |= any(event.attempt < view.last_attempt for event in struck)
    xid = _XID.search(first.text)
    name = f"Xid {xid[2]}" if xid else first.kind.replace("_", " ")
    thing = "the device" if trouble.bus else "the host" if trouble.node else "a machine"
    others = [
        event
        for event in view.list_events(codes.HARDWARE_ERROR, "context")
        if event.node == trouble.node
    ]
    return Case(
        code=codes.HARDWARE_ERROR,
        summary=f"{thing}{where}{on} failed ({name}): {first.meaning or first.text[:120]}",
        tier=OUTSIDE,
        ranks=tuple(ranks),
        nodes=(trouble.node,) if trouble.node else (),
        lines=(first, *struck[-1:], *(one for one in events if one is not first), *others[:2]),
        exceptions=find_raised(view, trouble.node, trouble.events),
        entails=list_said(view, trouble.node, trouble.events),
        exits=_list_ended(view, trouble),
        time=time,
        confidence=Confidence.CERTAIN if ranks and not is_guessed else Confidence.LIKELY,
        details=_describe(first, trouble),
        remedies=_advise(view, first, trouble, name),
        scope=reach,
        support=_weigh(view, trouble, ranks, reach),
        is_foreign=True,
    )


def _weigh(view: LogView, trouble: _Trouble, ranks: frozenset[int], reach: frozenset[int]) -> int:
    """Tell what ties broken hardware to the job: its clock, and what its ranks print."""
    felts = [view.is_felt(event.time) for event in trouble.events]
    if all(felt is False for felt in felts) or is_before_boot(view, trouble.events):
        return ALOOF
    hit, told = ranks or reach, view.told_ranks
    cards = () if trouble.bus else (trouble.node,)
    if any(
        (_is_of(event, hit, trouble) and _is_device_sign(event)) or _is_card_event(event, *cards)
        for event in view.events
    ):
        return LINKED
    failed = (item for item in view.exceptions if item.rank in hit)
    is_missed = bool(find_raised(view, trouble.node, trouble.events))
    is_missed |= bool(list_said(view, trouble.node, trouble.events))
    if is_missed or any(_DEVICE_WORDS.search(item.message) for item in failed):
        return LINKED
    struck = _list_struck(view, trouble)
    is_ended = _list_ended(view, trouble) or any(one.rank in ranks for one in struck)
    if is_ended or any(item.rank in ranks and item.signal for item in view.exits):
        return LINKED
    # A rank that says nothing while its peers wait for it is one that its device keeps.
    if ranks and not ranks & told and told:
        return LINKED
    # That peers are gone is what all ranks say, wherever the trouble is.
    return NEAR if any(felts) or not ranks & told else ALOOF


def _is_of(event: LogEvent, ranks: frozenset[int], trouble: _Trouble) -> bool:
    """Tell whether a line is of one of some ranks, or of nobody on the host of the trouble."""
    is_nobody = event.rank == UNKNOWN_RANK and not _is_machine_line(event)
    return event.rank in ranks or (is_nobody and event.node != "" and event.node == trouble.node)


def _list_ended(view: LogView, trouble: _Trouble) -> tuple[ExitRecord, ...]:
    """Return the ends of the processes that the lines name."""
    found = [match for event in trouble.events if (match := _PID.search(event.text))]
    pids = {int(match[1] or match[2] or match[3]) for match in found}
    return tuple(item for item in view.exits if item.pid in pids and (item.signal or item.code))


def is_before_boot(view: LogView, events: list[LogEvent]) -> bool:
    """Tell whether a host was started again after all of some lines of its kernel."""
    boots = {event.artifact: event.row for event in view.list_signatures("kernel.boot")}
    return all(event.row < boots.get(event.artifact, 0) for event in events)


def _is_device_sign(event: LogEvent) -> bool:
    if event.role == "context":
        return False
    is_sign = event.code == codes.DEVICE_FAULT or event.signature.startswith(_DEVICE_SIGNS)
    return is_sign or bool(_DEVICE_WORDS.search(event.text))


def _is_card_event(event: LogEvent, *nodes: str) -> bool:
    """Tell whether a rank on one of some hosts prints that a network card there failed."""
    is_network = event.code == codes.HARDWARE_ERROR and event.kind == "network"
    return is_network and event.node != "" and event.node in nodes


def _describe(event: LogEvent, trouble: _Trouble) -> dict[str, Any]:
    details: dict[str, Any] = {"kind": event.kind}
    if match := _XID.search(event.text):
        details |= {"xid": int(match[2]), "device": match[1]}
    elif trouble.bus and (bus := _BUS.search(event.text)):
        details["device"] = bus[1]
    if event.action:
        details["action"] = event.action
    return details


def _advise(view: LogView, event: LogEvent, trouble: _Trouble, name: str) -> tuple[str, ...]:
    node, steps = trouble.node, []
    slurm = any(view.list_signatures("slurm.")) or name_job(view) != "JOB"
    if node and slurm:
        steps.append(f'scontrol update nodename={node} state=drain reason="{name}"')
    elif node:
        steps.append(f"take {node} out of service: `kubectl cordon {node}`, or drain it in Slurm")
    if event.kind.startswith("gpu") or event.kind == "nvlink":
        steps.append(
            f"{f'ssh {node} ' if node else ''}nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT"
        )
    if event.action:
        steps.append(event.action)
    return tuple(steps)


def _make_felt(view: LogView, known: set[int]) -> Iterator[Case]:
    """Make the case of ranks that name broken hardware themselves."""
    events = [
        event
        for event in view.list_events(codes.HARDWARE_ERROR, "cause")
        if id(event) not in known and is_said(event)
    ]
    if not events:
        return
    ranks = list_ranks(events)
    everywhere = view.is_everywhere(ranks)
    exceptions = find_exceptions(view, events)
    first = events[0]
    is_sure = any(event.is_hardware == "yes" for event in events)
    # A network card and the fabric manager serve all ranks of their host.
    is_shared = all(event.kind in _SHARED_KINDS for event in events)
    hosts = tuple(sorted({event.node for event in events} - {""})) if is_shared else ()
    who = name_ranks(ranks) if ranks else "a rank"
    yield Case(
        code=codes.HARDWARE_ERROR,
        summary=f"{who} met broken hardware: {first.meaning or first.text[:120]}",
        tier=OWN,
        ranks=() if everywhere or len(ranks) > 1 or is_shared else ranks,
        nodes=hosts if len(hosts) == 1 else (),
        lines=tuple(events),
        exceptions=exceptions,
        where=place_exceptions(exceptions[:1]),
        time=find_time(events),
        confidence=Confidence.LIKELY if is_sure or len(ranks) == 1 else Confidence.POSSIBLE,
        details={"kind": first.kind},
    )
