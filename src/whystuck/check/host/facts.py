"""What kind of node this is: told always, and never judged."""

from __future__ import annotations

import os
import platform
import re

from whystuck.check.check import Check, Context
from whystuck.evidence.nodes.checks import CheckResult

_NVIDIA, _AMD, _HUAWEI = "0x10de", "0x1002", "0x19e5"
_VENDORS = {_NVIDIA: "NVIDIA", _AMD: "AMD", _HUAWEI: "Huawei"}
# Of the classes of PCI: VGA and 3D controllers, and processing accelerators.
_CLASSES = ("0x0300", "0x0302", "0x1200", "0x0380")
_VERSION = re.compile(r"\b(\d+\.\d+(?:\.\d+)?)\b")


class Facts(Check):
    """The kernel, the CPUs, the drivers and the devices on the bus."""

    name = "facts"

    def run(self, context: Context) -> CheckResult:
        """Read them; nothing here touches a device."""
        count = os.cpu_count() or 0
        usable = len(os.sched_getaffinity(0))
        found = list_accelerators(context)
        kinds = [f"{found.count(vendor)} of {vendor}" for vendor in dict.fromkeys(found)]
        facts = {
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "CPUs": f"{count}, {usable} usable" if usable != count else str(count),
            "devices on PCI": ", ".join(kinds) if kinds else "none",
            "NVIDIA driver": read_nvidia_driver(context),
            "AMD driver": read_amd_driver(context),
            "Ascend driver": read_ascend_driver(context),
        }
        figures = {"devices": float(len(found))}
        return self.make_result(facts={k: v for k, v in facts.items() if v}, figures=figures)


def list_accelerators(context: Context) -> list[str]:
    """Return the vendor of each accelerator on the bus."""
    found = []
    root = "/sys/bus/pci/devices"
    for name in context.list_names(root):
        vendor = _VENDORS.get(context.read_text(f"{root}/{name}/vendor"))
        if vendor and context.read_text(f"{root}/{name}/class").startswith(_CLASSES):
            found.append(vendor)
    return found


def read_nvidia_driver(context: Context) -> str:
    """Return the version of NVIDIA's kernel module; empty where it is not loaded."""
    found = _VERSION.search(context.read_text("/proc/driver/nvidia/version"))
    return found[1] if found else ""


def read_amd_driver(context: Context) -> str:
    """Return the version of AMD's kernel module; empty where it is not told."""
    return context.read_text("/sys/module/amdgpu/version")


def read_ascend_driver(context: Context) -> str:
    """Return the version of Huawei's driver for Ascend; empty where it is not installed."""
    text = context.read_text("/usr/local/Ascend/driver/version.info")
    found = re.search(r"^Version=(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else ""
