"""Devices of AMD, as amdsmi tells them; asked in a process that may hang."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from whystuck.check.check import Context
from whystuck.check.devices.look import DeviceLook, Peer, Trouble, User, Vendor
from whystuck.collect.node.amd_driver import load_amdsmi, shorten
from whystuck.collect.node.nvidia_driver import DeviceLostError, DriverLostError

_VENDOR_ID = "0x1002"
_MIB = 1 << 20
_SAMPLE_S = 0.2
# Temperatures are told in degrees, and in thousandths of one by older versions.
_MOST_CELSIUS = 1000.0
# Counters that grow while the clock is held down, in what amdsmi calls the GPU metrics.
_REASONS = {
    "prochot_residency_acc": "a slowdown by the hardware (PROCHOT)",
    "socket_thm_residency_acc": "the limit of heat",
    "vr_thm_residency_acc": "the heat of its power supply",
    "hbm_thm_residency_acc": "the heat of its memory",
}
# Of amdsmi_memory_page_status_t.
_PENDING, _UNRESERVABLE = 1, 2
_PAGES = {_PENDING: "wait for a reset to be", _UNRESERVABLE: "could not be"}


class Amd(Vendor):
    """AMD."""

    name = "AMD"
    driver = "AMD's driver"
    link = "XGMI"
    missing_remedies = (
        "`amd-smi list`, `lsmod | grep amdgpu`: load or install the driver",
        "start the container with `--device /dev/kfd --device /dev/dri`",
    )
    late_remedies = ("`dmesg -T | grep -i amdgpu`; restart the node",)

    def count_files(self, context: Context) -> int:
        """Return the number of render nodes in ``/dev/dri`` that are of AMD."""
        return sum(
            context.read_text(f"/sys/class/drm/{name}/device/vendor") == _VENDOR_ID
            for name in context.list_names("/dev/dri")
            if name.startswith("renderD")
        )

    @contextmanager
    def open(self) -> Iterator[_Opened]:
        """Open the library, and all devices that it shows."""
        smi, problem = load_amdsmi()
        if smi is None:
            raise DriverLostError(problem)
        try:
            smi.amdsmi_init()
            handles = list(smi.amdsmi_get_processor_handles())
        except smi.AmdSmiException as error:
            raise DriverLostError(f"AMD's driver cannot be asked: {shorten(error)}") from None
        try:
            yield _Opened(smi, handles)
        finally:
            with suppress(smi.AmdSmiException):
                smi.amdsmi_shut_down()


class _Opened:
    """The devices of this node."""

    def __init__(self, smi: Any, handles: list[Any]) -> None:  # noqa: ANN401 - a module
        self.indexes = [str(number) for number in range(len(handles))]
        self.lost: dict[str, str] = {}
        self._smi = smi
        self._handles = dict(zip(self.indexes, handles, strict=True))
        self._problems: dict[str, None] = {}

    @property
    def problem(self) -> str:
        """What the library did not tell."""
        return "; ".join(self._problems)

    def look(self, index: str) -> DeviceLook:
        """Ask for all of a device."""
        smi = self._smi
        asic = self._ask(index, "kind", smi.amdsmi_get_gpu_asic_info) or {}
        memory = self._ask(index, "memory", smi.amdsmi_get_gpu_vram_usage) or {}
        total = read_number(memory.get("vram_total"))
        width, replays = self._look_at_bus(index)
        up, down = self._count_links(index)
        return DeviceLook(
            index=index,
            name=str(asic.get("market_name") or "a device of AMD"),
            memory_bytes=total * _MIB if total is not None else None,
            troubles=(*self._list_errors(index), *self._list_pages(index)),
            held_back=self._list_reasons(index),
            heat_c=self._read_heat(index),
            users=self._list_users(index),
            width=width,
            replays=replays,
            links=up,
            links_down=down,
            peers=tuple(self._list_peers(index)),
        )

    def _ask(self, index: str, what: str, call: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - what amdsmi returns
        """Return what a function of amdsmi tells of a device; None when it does not."""
        smi = self._smi
        try:
            return call(self._handles[index], *arguments)
        except smi.AmdSmiLibraryException as error:
            wrapper, code = smi.amdsmi_interface.amdsmi_wrapper, error.get_error_code()
            if code == wrapper.AMDSMI_STATUS_NO_PERM:
                self._problems[f"we may not read {what} of device {index}"] = None
            if code in {wrapper.AMDSMI_STATUS_NOT_FOUND, wrapper.AMDSMI_STATUS_IO}:
                raise DeviceLostError(f"GPU {index}: {shorten(error)}") from None
        except (smi.AmdSmiException, AttributeError, KeyError, ValueError, TypeError):
            return None  # a version that tells it in another way
        return None

    def _list_errors(self, index: str) -> Iterator[Trouble]:
        told = self._ask(index, "errors", self._smi.amdsmi_get_gpu_total_ecc_count) or {}
        if count := read_number(told.get("uncorrectable_count")):
            yield Trouble(
                f"device {index} had {count:.0f} errors of memory that were not corrected",
                because=("counted since the driver was loaded",),
                remedies=(f"amd-smi reset --gpureset -g {index}   # no process may use it",),
                measures=(("errors", count), ("threshold", 0)),
            )

    def _list_pages(self, index: str) -> Iterator[Trouble]:
        told = self._ask(index, "bad pages", self._smi.amdsmi_get_gpu_bad_page_info)
        pages = told if isinstance(told, list) else []
        states = [one.get("status") for one in pages]
        for state, text in _PAGES.items():
            if count := states.count(state):
                has_failed = state == _UNRESERVABLE
                yield Trouble(
                    f"{count} pages of the memory of device {index} {text} retired",
                    severity="error" if has_failed else "warning",
                    because=(f"{len(pages)} pages are bad in all",),
                    remedies=("have the device replaced",)
                    if has_failed
                    else (f"amd-smi reset --gpureset -g {index}   # no process may use it",),
                    measures=(("pages", count),),
                )

    def _list_reasons(self, index: str) -> tuple[str, ...]:
        """Look twice at what counts while the clock is held down."""
        call = self._smi.amdsmi_get_gpu_metrics_info
        before = self._ask(index, "metrics", call) or {}
        known = {name: read_number(before.get(name)) for name in _REASONS}
        if all(value is None for value in known.values()):
            return ()
        time.sleep(_SAMPLE_S)
        after = self._ask(index, "metrics", call) or {}
        return tuple(
            text
            for name, text in _REASONS.items()
            if (value := read_number(after.get(name))) is not None
            and known[name] is not None
            and value > (known[name] or 0.0)
        )

    def _read_heat(self, index: str) -> float | None:
        smi = self._smi
        sensor, kind = smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
        call = smi.amdsmi_get_temp_metric
        heat = read_number(self._ask(index, "temperature", call, sensor, kind))
        return heat / 1e3 if heat is not None and heat > _MOST_CELSIUS else heat

    def _list_users(self, index: str) -> tuple[User, ...]:
        told = self._ask(index, "processes", self._smi.amdsmi_get_gpu_process_list) or ()
        found = []
        for one in told:
            used = read_number((one.get("memory_usage") or {}).get("vram_mem"))
            found.append(User(int(one["pid"]), (used or 0.0) / _MIB))
        return tuple(found)

    def _look_at_bus(self, index: str) -> tuple[tuple[int, int] | None, int | None]:
        told = self._ask(index, "PCI Express", self._smi.amdsmi_get_pcie_info) or {}
        now, most = told.get("pcie_metric") or {}, told.get("pcie_static") or {}
        width = read_number(now.get("pcie_width"))
        widest = read_number(most.get("max_pcie_width"))
        replays = read_number(now.get("pcie_replay_count"))
        pair = (int(width), int(widest)) if width and widest else None
        return pair, int(replays) if replays is not None else None

    def _list_peers(self, index: str) -> Iterator[Peer]:
        """Tell which other devices this one reaches, where the driver tells it."""
        call = getattr(self._smi, "amdsmi_is_P2P_accessible", None)
        for other, handle in self._handles.items():
            told = None
            if call and other != index:
                # Which of the two is lost, their own figures tell.
                with suppress(DeviceLostError):
                    told = self._ask(index, f"access to device {other}", call, handle)
            if told is not None:
                yield Peer(other, "" if told else "the driver refuses it")

    def _count_links(self, index: str) -> tuple[int | None, int]:
        call = getattr(self._smi, "amdsmi_get_gpu_xgmi_link_status", None)
        told = (self._ask(index, "links", call) if call else None) or {}
        states = told.get("status")
        if not isinstance(states, list):
            return None, 0
        return states.count("U"), states.count("D")


def read_number(value: object) -> float | None:
    """Return a figure; amdsmi says "N/A" for what is not known."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value) if value >= 0 else None
