"""Looks at the NVIDIA devices of this node twice, and prints what the driver tells, as JSON.

``python -m whystuck.agent.metrics.gpu.driver_query '{"PID": RANK}'`` is a process of its own: a
device that hangs may hold up whoever asks for it for ever.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from whystuck.agent.metrics.gpu import families
from whystuck.agent.metrics.gpu.nvidia import NvidiaSource
from whystuck.evidence.decoding import decode_json
from whystuck.evidence.nodes.devices import DeviceEntry, DeviceLook, DevicesAnswer
from whystuck.evidence.nodes.metrics import Sample

# GPM gives means between two looks; drivers refresh the load up to six times a second.
_APART_S: Final = 0.25
_MAX_TEXT: Final = 4096
_MAX_BUS: Final = 32
_FIGURES: Final = {
    families.UTILIZATION: "utilization",
    families.MEMORY_BUSY: "memory_utilization",
    families.POWER: "power",
    families.POWER_LIMIT: "power_limit",
    families.SM_CLOCK: "sm_clock",
    families.SM_CLOCK_MAX: "sm_clock_max",
    families.MEMORY_CLOCK: "memory_clock",
    families.TEMPERATURE: "temperature",
    families.MEMORY_USED: "memory_used",
    families.MEMORY_TOTAL: "memory_total",
    families.SM_ACTIVE: "sm_active",
    families.SM_OCCUPANCY: "sm_occupancy",
    families.TENSOR_ACTIVE: "tensor_active",
    families.DRAM_ACTIVE: "dram_active",
    families.XID_ERRORS: "xid_errors",
}
_NAMES: Final = {family.name: name for family, name in _FIGURES.items()}
_OWN: Final = len(families.DEVICE_LABELS)


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
    elif family is families.UP:
        figures["is_lost"] = not value
    elif family is families.LAST_XID:
        figures["last_xid"] = int(value)
    elif family is families.REMAP_FAILED:
        figures["row_remap_failed"] = bool(value)
    elif family is families.ECC_ERRORS:
        figures[f"ecc_{own[0]}"] = value
    elif family is families.THROTTLED and value:
        figures.setdefault("throttled", []).append(own[0])


def main() -> None:
    """Print the answer."""
    rank_by_pid = decode_json(sys.argv[1], dict[int, int])
    sys.stdout.buffer.write(msgspec.json.encode(look_at_devices(rank_by_pid)))


if __name__ == "__main__":
    main()
