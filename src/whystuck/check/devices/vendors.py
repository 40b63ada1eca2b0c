"""All vendors, and which of them have devices on this node."""

from __future__ import annotations

from whystuck.check.check import Context
from whystuck.check.devices.amd import Amd
from whystuck.check.devices.ascend import Ascend
from whystuck.check.devices.look import Vendor
from whystuck.check.devices.nvidia import Nvidia
from whystuck.check.host.facts import list_accelerators
from whystuck.collect.node.nvidia_driver import DriverLostError

NVIDIA, AMD, ASCEND = Nvidia(), Amd(), Ascend()
VENDORS: tuple[Vendor, ...] = (NVIDIA, AMD, ASCEND)


def list_vendors(context: Context) -> list[Vendor]:
    """Return the vendors to ask: those with a file or a device on the bus.

    Where there is none, NVIDIA's library may know of devices all the same, as in some containers;
    and where the policy wants devices, somebody must say that they are missing.
    """
    on_bus = list_accelerators(context)
    found = [one for one in VENDORS if one.count_files(context) or one.name in on_bus]
    if found:
        return found
    if context.policy.device.count:
        return [NVIDIA]
    try:
        with NVIDIA.open() as opened:
            return [NVIDIA] if opened.indexes else []
    except DriverLostError:
        return []


def list_vendors_by_files(context: Context) -> list[Vendor]:
    """Return the vendors with devices, or all, without asking any driver."""
    return [one for one in VENDORS if one.count_files(context)] or list(VENDORS)


def why_no_device(context: Context) -> str:
    """Return why there is nothing to ask; empty where there is."""
    return "" if list_vendors(context) else "this node has no device of NVIDIA, AMD or Huawei"
