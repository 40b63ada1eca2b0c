"""C208 by what the driver of a device told at a stall: it is lost, or failed meanwhile."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.context.device_facts import cite_device
from whystuck.diagnose.logs.story import OUTSIDE, Case
from whystuck.diagnose.logs.view import LogView, is_same_host
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.nodes.devices import DeviceEntry, DeviceState
from whystuck.evidence.ranks import name_ranks

# A program can cause these by itself: NVIDIA's catalogue calls them errors of applications.
# `waiting for RPC response from GPU6 GSP!`
_NUMBER = re.compile(r"\bGPU ?(\d{1,3}) GSP\b")
_OF_PROGRAMS = frozenset({13, 31, 43, 45})


def make_told_by_driver(view: LogView, known: Collection[str]) -> Iterator[Case]:
    """Make a case for each host with a device that failed; ``known`` are told by logs already."""
    done = set(known)
    for state in view.evidence.devices:
        trouble = _find_trouble(state.entry)
        if trouble is not None and state.node not in done:
            done.add(state.node)
            yield _make_case(view, state, *trouble)


def find_told_ranks(view: LogView, node: str) -> frozenset[int]:
    """Return the ranks of the only device of a host that failed as the driver tells."""
    told = [
        state.entry.ranks
        for state in view.evidence.devices
        if _find_trouble(state.entry) is not None and (not node or is_same_host(state.node, node))
    ]
    return frozenset(told[0]) if len(told) == 1 else frozenset()


def find_silent_ranks(view: LogView, events: Sequence[LogEvent]) -> frozenset[int]:
    """Return the one rank that somebody calls silent, where its number is that of the device."""
    told = {int(match[1]) for event in events for match in _NUMBER.finditer(event.text)}
    silent = {int(event.groups["of"]) for event in view.list_signatures("note.silent")}
    return frozenset(told) if told == silent and len(told) == 1 else frozenset()


def _find_trouble(entry: DeviceEntry) -> tuple[str, str, int | None] | None:
    """Return the kind of trouble, what it means, and its Xid; None for a device that is well."""
    if any(look.is_lost for look in entry.looks):
        return "gpu_lost", "its driver no longer reaches it", None
    xids = [look.last_xid for look in entry.looks if look.xid_errors and look.last_xid]
    if xids and xids[-1] not in _OF_PROGRAMS:
        return "gpu_xid", f"Xid {xids[-1]} while it was looked at", xids[-1]
    counts = [one.ecc_uncorrected for one in entry.looks if one.ecc_uncorrected is not None]
    if counts and counts[-1] > counts[0]:
        return "gpu_memory", "uncorrected memory errors while it was looked at", None
    return None


def _make_case(view: LogView, state: DeviceState, kind: str, meaning: str, xid: int | None) -> Case:
    entry = state.entry
    ranks = tuple(entry.ranks) if len(entry.ranks) == 1 else ()
    whose = f" of {name_ranks(ranks)}" if ranks else f" {entry.index}"
    on = f" on {state.node}" if state.node else ""
    name = f"Xid {xid}" if xid else kind.replace("_", " ")
    host = state.node or "the host"
    drain = f"take {host} out of service: `kubectl cordon`, or drain it in Slurm"
    return Case(
        code=codes.HARDWARE_ERROR,
        summary=f"the device{whose}{on} failed ({name}): {meaning}",
        tier=OUTSIDE,
        ranks=ranks,
        nodes=(state.node,) if state.node else (),
        confidence=Confidence.LIKELY,
        details={"kind": kind, "device": entry.uuid or entry.index} | ({"xid": xid} if xid else {}),
        remedies=(drain, "nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT"),
        scope=view.list_possible_ranks_on(state.node) if state.node else frozenset(),
        is_foreign=True,
        cites=(cite_device(state),),
    )
