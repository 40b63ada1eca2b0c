"""Looks at the NVIDIA devices of this node twice, and prints what the driver tells, as JSON.

``python -m whystuck.agent.metrics.device_look '{"PID": RANK}'`` is a process of its own: a device
that hangs may hold up whoever asks for it for ever.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from whystuck.agent.metrics import gpu
from whystuck.agent.metrics.nvidia import NvidiaSource
from whystuck.evidence.devices import DeviceEntry, DeviceLook, DevicesAnswer
from whystuck.evidence.metrics import Sample

# GPM gives means between two looks; drivers refresh the load up to six times a second.
_APART_S: Final = 0.25
_MAX_TEXT: Final = 4096
_MAX_BUS: Final = 32
_FIGURES: Final = {
    gpu.UTILIZATION: "utilization",
    gpu.MEMORY_BUSY: "memory_utilization",
    gpu.POWER: "power",
    gpu.POWER_LIMIT: "power_limit",
    gpu.SM_CLOCK: "sm_clock",
    gpu.SM_CLOCK_MAX: "sm_clock_max",
    gpu.MEMORY_CLOCK: "memory_clock",
    gpu.TEMPERATURE: "temperature",
    gpu.MEMORY_USED: "memory_used",
    gpu.MEMORY_TOTAL: "memory_total",
    gpu.SM_ACTIVE: "sm_active",
    gpu.SM_OCCUPANCY: "sm_occupancy",
    gpu.TENSOR_ACTIVE: "tensor_active",
    gpu.DRAM_ACTIVE: "dram_active",
    gpu.XID_ERRORS: "xid_errors",
}
_NAMES: Final = {family.name: name for family, name in _FIGURES.items()}
_OWN: Final = len(gpu.DEVICE_LABELS)


def look_at_devices(rank_by_pid: Mapping[int, int]) -> DevicesAnswer:
    """Look twice at all devices that the driver shows to us.

    Args:
        rank_by_pid: The ranks whose devices are asked for.

    Returns:
        The devices, and why something is missing.
    """
    labels = {pid: ("", str(rank)) for pid, rank in rank_by_pid.items()}
    source = NvidiaSource(lambda pid: labels.get(pid, ("", "")))
    rounds = [list(source.collect())]
    buses = source.find_buses()
    if rounds[0]:
        time.sleep(_APART_S)
        rounds.append(list(source.collect()))
    looks: dict[tuple[str, str], list[DeviceLook]] = {}
    ranks: dict[tuple[str, str], set[int]] = {}
    for samples in rounds:
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for sample in samples:
            index, uuid, _, _, rank = sample.labels[:_OWN]
            _add(found.setdefault((index, uuid), {}), sample)
            ranks.setdefault((index, uuid), set()).update({int(rank)} if rank else ())
        for key, figures in found.items():
            looks.setdefault(key, []).append(DeviceLook(**figures))
    devices = [
        DeviceEntry(
            index=key[0],
            uuid=key[1],
            bus=buses.get(key[1], "")[:_MAX_BUS],
            ranks=sorted(ranks[key]),
            looks=one,
        )
        for key, one in looks.items()
    ]
    return DevicesAnswer(devices=devices, problem=source.problem[:_MAX_TEXT])


def _add(figures: dict[str, Any], sample: Sample) -> None:
    """Add one figure to those of a look at a device."""
    family, value = sample.family, sample.value
    own = sample.labels[_OWN:]
    if family.name in _NAMES:
        figures[_NAMES[family.name]] = value
    elif family is gpu.UP:
        figures["is_lost"] = not value
    elif family is gpu.LAST_XID:
        figures["last_xid"] = int(value)
    elif family is gpu.REMAP_FAILED:
        figures["row_remap_failed"] = bool(value)
    elif family is gpu.ECC_ERRORS:
        figures[f"ecc_{own[0]}"] = value
    elif family is gpu.THROTTLED and value:
        figures.setdefault("throttled", []).append(own[0])


def main() -> None:
    """Print the answer."""
    rank_by_pid = msgspec.json.decode(sys.argv[1], type=dict[int, int])
    sys.stdout.buffer.write(msgspec.json.encode(look_at_devices(rank_by_pid)))


if __name__ == "__main__":
    main()
