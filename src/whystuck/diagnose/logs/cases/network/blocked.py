"""N422 as machines and CUDA tell it: something stands between devices that send to each other."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.devices.hardware import is_before_boot
from whystuck.diagnose.logs.cases.parts import (
    find_exceptions,
    find_time,
    is_said,
    list_ranks,
    place_exceptions,
)
from whystuck.diagnose.logs.story import ALOOF, LINKED, NEAR, OWN, WAIT, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent

# It explains that ranks wait, and nothing that a rank does by itself.
_TIER = WAIT - 1
_MAX_LINES = 6
# Transfers that went well so often are not blocked by the way they take.
_PROVEN = 100
_BUS = re.compile(
    r"(?:Request device \[?|IO_PAGE_FAULT device=|client: )([0-9a-fA-F:.]{4,16})"
    r"|^\S{1,30} ([0-9a-fA-F:.]{4,16}): AMD-Vi"
)
# The driver of the device, where the kernel names it.
_DRIVER = re.compile(r"^([a-z][\w-]{1,30}) [0-9a-fA-F]{4}:[0-9a-fA-F:.]{4,12}: AMD-Vi")
_OURS = {"nvidia", "amdgpu", "mlx5_core", "vfio-pci", "bnxt_en", "habanalabs", "i915", "xe"}


def make_blocked(view: LogView) -> Iterator[Case]:
    """Make the case of devices whose transfers to each other are refused or sent astray."""
    refused = [event for event in view.list_signatures("cuda.peer_access") if is_said(event)]
    if refused:
        yield _make_refused(view, refused)
        return
    faults = [
        event
        for event in view.list_signatures("kernel.iommu_fault")
        if is_said(event) and _is_ours(event)
    ]
    if faults and not is_before_boot(view, faults):
        yield _make_fault(view, faults)
        return
    trials = list(view.list_signatures("table.p2p_trial"))
    if trials and trials[-1].groups["went"]:
        yield _make_trial(trials[-1])
        return
    wrong = list(view.list_signatures("table.p2p_wrong"))
    if wrong:
        yield _make_wrong(wrong)
        return
    acs = [event for event in view.list_signatures("pcie.acs_on") if is_said(event)]
    if acs and _hangs_early(view) and not any(view.list_signatures("nccl.p2p_off")):
        yield _make_acs(acs)


def _is_ours(event: LogEvent) -> bool:
    driver = _DRIVER.search(event.text)
    return driver is None or driver[1] in _OURS


def _make_refused(view: LogView, refused: list[LogEvent]) -> Case:
    """Make the case of processes that CUDA refused direct access: it is of the machine."""
    exceptions = find_exceptions(view, refused, codes.P2P_BLOCKED)
    nodes = tuple(sorted({event.node for event in refused} - {""}))
    return Case(
        code=codes.P2P_BLOCKED,
        summary=f"CUDA refused a device direct access to another one{_on(nodes)}: they cannot "
        "send to each other",
        tier=OWN,
        nodes=nodes,
        victims=list_ranks(refused),
        lines=tuple(refused[:_MAX_LINES]),
        exceptions=exceptions,
        where=place_exceptions(exceptions[:1]),
        time=find_time(refused, exceptions),
        confidence=Confidence.LIKELY,
        details={"pairs": [], "setting": "", "devices": []},
        remedies=(
            "export NCCL_P2P_DISABLE=1   # sends through the host; vLLM: disable_custom_all_reduce",
        ),
        scope=view.ranks,
    )


def _make_fault(view: LogView, faults: list[LogEvent]) -> Case:
    found = [match for event in faults if (match := _BUS.search(event.text))]
    devices = sorted({(match[1] or match[2]).rstrip(":") for match in found})
    nodes = tuple(sorted({event.node for event in faults} - {""}))
    felt = [view.is_felt(event.time) for event in faults]
    waits = _list_waits(view)
    return Case(
        code=codes.P2P_BLOCKED,
        summary=f"the IOMMU{_on(nodes)} refused accesses of {_name(devices)} to memory: devices "
        "cannot send to each other directly",
        tier=_TIER,
        nodes=nodes,
        lines=tuple(faults[:_MAX_LINES]),
        time=find_time(faults),
        confidence=Confidence.LIKELY if waits else Confidence.POSSIBLE,
        details={"pairs": [], "setting": "", "devices": devices},
        support=ALOOF if felt and all(one is False for one in felt) else LINKED if waits else NEAR,
        is_foreign=True,
    )


def _make_acs(acs: list[LogEvent]) -> Case:
    nodes = tuple(sorted({event.node for event in acs} - {""}))
    return Case(
        code=codes.P2P_BLOCKED,
        summary=f"ACS is on{_on(nodes)}, which sends what devices say to each other astray; the "
        "first collectives do not end",
        tier=_TIER,
        nodes=nodes,
        lines=tuple(acs[:_MAX_LINES]),
        confidence=Confidence.LIKELY,
        details={"pairs": [], "setting": "", "devices": []},
    )


def _make_trial(trial: LogEvent) -> Case:
    """Make the case of a job that stood still, and runs where devices take another way."""
    return Case(
        code=codes.P2P_BLOCKED,
        summary="NCCL sends directly between devices and the job stands still; without that "
        "(NCCL_P2P_DISABLE=1) it runs: what devices send to each other does not arrive",
        tier=_TIER,
        lines=(trial,),
        confidence=Confidence.LIKELY,
        details={"pairs": [], "setting": "", "devices": []},
    )


def _make_wrong(wrong: list[LogEvent]) -> Case:
    """Make the case of devices that read something else from each other than was written."""
    nodes = tuple(sorted({event.node for event in wrong} - {""}))
    return Case(
        code=codes.P2P_BLOCKED,
        summary=f"a test of direct access between devices{_on(nodes)} reads wrong data: what they "
        "send to each other does not arrive as it was sent",
        tier=_TIER,
        nodes=nodes,
        lines=tuple(wrong[:_MAX_LINES]),
        confidence=Confidence.LIKELY,
        details={"pairs": [], "setting": "", "devices": []},
        remedies=("export NCCL_P2P_DISABLE=1   # sends through the host, until this is mended",),
        is_foreign=True,
    )


def _list_waits(view: LogView) -> list[LogEvent]:
    return [
        event for event in view.list_events(codes.COLLECTIVE_TIMEOUT, "cause") if is_said(event)
    ]


def _hangs_early(view: LogView) -> bool:
    """Tell whether ranks wait in a collective, and none shows that many went well before."""
    waits = _list_waits(view)
    numbers = [int(seq[:18]) for event in waits if (seq := event.groups.get("seq") or "")]
    return bool(waits) and max(numbers, default=0) < _PROVEN


def _on(nodes: tuple[str, ...]) -> str:
    return f" of {' and '.join(nodes)}" if nodes else ""


def _name(devices: list[str]) -> str:
    return " and ".join(devices[:4]) or "a device"
