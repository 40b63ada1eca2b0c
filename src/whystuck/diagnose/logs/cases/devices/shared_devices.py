"""H126 device-not-bound: several ranks on one device by mistake."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.rendezvous import is_number
from whystuck.diagnose.logs.cases.parts import find_time, is_said
from whystuck.diagnose.logs.story import OWN, WAIT, Case
from whystuck.diagnose.logs.view import LogView, simplify_bus
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import format_ranks, name_ranks

_MAX_LINES = 6
# Two processes on one device may be meant, as those of an evaluation beside a job.
_CROWD = 3
# Numbers of the first collective of a group: versions of torch count from 0 or from 1.
_FIRST = {"0", "1"}
_REMEDIES = (
    "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))   # before init_process_group",
    "srun --gpus-per-task=1 hides the others: then use device 0 in each, and --gpu-bind=single:1",
)
# host -> device -> ranks
_Shared = dict[str, dict[str, set[int]]]


def make_unbound(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that share a device, as NCCL and torch tell it."""
    told = [event for event in view.list_signatures("nccl.dup_gpu") if is_said(event)]
    if told:
        yield _make_told(view, told)
    elif crowded := _find_crowded(view):
        yield _make_crowded(view, crowded)
    else:
        yield from _make_guessed(view)


def _find_crowded(view: LogView) -> list[LogEvent]:
    """Return the rows of nvidia-smi that put all processes on one of several devices.

    Of a host whose other devices nobody uses, and of one program, as the ranks of a job are.
    """
    rows = list(view.list_signatures("smi.process"))
    unused = list(view.list_signatures("smi.unused"))
    programs = {event.groups["name"] for event in rows}
    devices = {event.groups["device"] for event in rows}
    pids = {event.groups["pid"] for event in rows}
    is_job = len(programs) == len(devices) == 1 and "python" in min(programs)
    return rows if is_job and len(pids) >= _CROWD and unused else []


def _make_crowded(view: LogView, rows: list[LogEvent]) -> Case:
    """Make the case of processes that all use the first device they see."""
    device = rows[0].groups["device"]
    pids = sorted({int(event.groups["pid"]) for event in rows})
    return Case(
        code=codes.DEVICE_NOT_BOUND,
        summary=f"all {len(pids)} processes are on device {device}, and nobody uses the others: no "
        "device was chosen by the local rank",
        tier=OWN,
        lines=tuple(rows[:_MAX_LINES]),
        time=find_time(rows),
        confidence=Confidence.LIKELY,
        details={"kind": "crowded", "shared": {f"device {device}": pids}},
        remedies=_REMEDIES,
        scope=view.ranks,
    )


def _make_told(view: LogView, events: list[LogEvent]) -> Case:
    shared: _Shared = {}
    for event in events:
        pair = {int(text) for name in "ab" if is_number(text := event.groups.get(name) or "")}
        bus = simplify_bus(event.groups.get("bus") or "")
        if pair:
            host = event.node or view.node_by_rank.get(min(pair), "")
            shared.setdefault(host, {}).setdefault(bus, set()).update(pair)
    ranks = sorted(
        {rank for by_bus in shared.values() for found in by_bus.values() for rank in found}
    )
    who = name_ranks(ranks) if ranks else "several ranks"
    count = sum(len(by_bus) for by_bus in shared.values())
    device = "one device" if count <= 1 else f"{count} devices"
    if count == 1 and (bus := next(iter(next(iter(shared.values()))))):
        device = f"one device ({bus})"
    return Case(
        code=codes.DEVICE_NOT_BOUND,
        summary=f"{who} share {device}: no device was chosen by the local rank",
        tier=OWN,
        ranks=tuple(ranks),
        nodes=tuple(sorted(set(shared) - {""})),
        lines=tuple(events[:_MAX_LINES]),
        time=find_time(events),
        confidence=Confidence.CERTAIN,
        details={"kind": "duplicate", "shared": _write(shared)},
        remedies=_REMEDIES,
        scope=frozenset(ranks) | view.ranks,
    )


def _list_ranks(shared: _Shared) -> list[int]:
    return sorted(
        {rank for by_bus in shared.values() for found in by_bus.values() for rank in found}
    )


def _write(shared: _Shared) -> dict[str, str]:
    """Write which ranks are on which device: ``{"n0 9b000": "0,1"}``."""
    return {
        f"{host} {bus}".strip(): format_ranks(found)
        for host, by_bus in sorted(shared.items())
        for bus, found in sorted(by_bus.items())
    }


def _make_guessed(view: LogView) -> Iterator[Case]:
    """Make a case of ranks of one host that torch put on one device, or that NCCL found there.

    Both are possible in a job that is well, so this is only told where something waits.
    """
    if not any(view.list_events(codes.COLLECTIVE_TIMEOUT)) and not any(
        view.list_events(codes.PEER_LOST)
    ):
        return
    shared, events = _list_buses(view), []
    for event in view.list_signatures("torch.device_unbound"):
        device, host = event.groups.get("device") or "", view.node_by_rank.get(event.rank, "")
        if device and event.rank >= 0 and host:
            events.append(event)
            shared.setdefault(host, {}).setdefault(f"device {device}", set()).add(event.rank)
    shared = {
        host: kept
        for host, by_bus in shared.items()
        if (kept := {bus: found for bus, found in by_bus.items() if len(found) > 1})
    }
    if not shared:
        yield from _make_first(view)
        return
    ranks = sorted(
        {rank for by_bus in shared.values() for found in by_bus.values() for rank in found}
    )
    yield Case(
        code=codes.DEVICE_NOT_BOUND,
        summary=f"{name_ranks(ranks)} may share a device: torch guessed it, as none was chosen",
        tier=WAIT,
        ranks=tuple(ranks),
        lines=tuple(events[:_MAX_LINES]),
        time=find_time(events),
        confidence=Confidence.POSSIBLE,
        details={"kind": "guessed", "shared": _write(shared)},
        remedies=_REMEDIES,
    )


def _make_first(view: LogView) -> Iterator[Case]:
    """Make the case of a first collective that never ended, after torch had to guess the device.

    What is set up later has shown that each rank has a device of its own.
    """
    told = list(view.list_signatures("torch.device_unbound"))
    waits = [
        event for event in view.list_events(codes.COLLECTIVE_TIMEOUT) if event.groups.get("seq")
    ]
    if not told or not waits or any(event.groups["seq"] not in _FIRST for event in waits):
        return
    yield Case(
        code=codes.DEVICE_NOT_BOUND,
        summary="the first collective never ended, and torch had to guess the device of each rank: "
        "several may be on one",
        tier=WAIT - 5,
        lines=(*told[:_MAX_LINES], *waits[:1]),
        time=find_time(told),
        details={"kind": "guessed", "shared": {}},
        remedies=_REMEDIES,
    )


def _list_buses(view: LogView) -> _Shared:
    shared: _Shared = {}
    for file in view.files:
        for rank, bus in file.bus_by_rank.items():
            host = file.node_by_rank.get(rank) or view.node_by_rank.get(rank, "")
            if host and bus:
                shared.setdefault(host, {}).setdefault(simplify_bus(bus), set()).add(rank)
    return shared
