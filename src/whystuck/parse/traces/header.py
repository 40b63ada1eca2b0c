"""What a trace says about its rank, its groups and its devices."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from whystuck.evidence.traces.events import UNKNOWN, TraceDevice, TraceGroup
from whystuck.parse.traces.tables import to_whole

_HOST_KEYS = ("hostname", "host_name", "host", "node")
_VENDORS = (
    ("cuda", re.compile(r"nvidia|tesla|geforce|quadro|\b[avhbgl]\d{2,3}\b", re.IGNORECASE)),
    ("rocm", re.compile(r"\bamd\b|radeon|instinct|\bgfx\d|\bmi\d{2,3}", re.IGNORECASE)),
    ("xpu", re.compile(r"intel", re.IGNORECASE)),
    ("npu", re.compile(r"ascend|\bnpu", re.IGNORECASE)),
    ("mtia", re.compile(r"mtia", re.IGNORECASE)),
)
# Names of categories that only one vendor has. ROCm's traces name calls as CUDA's do.
_VENDOR_CATEGORIES = {
    "hip_": "rocm",
    "mtia_": "mtia",
    "xpu_": "xpu",
    "privateuse1_": "npu",
    "cuda_": "cuda",
}
_HIP_CALL = re.compile(r"hip[A-Z]")
_NS_A_SECOND = 1_000_000_000
# Times since 1970 in ns are larger than this from 2001 on.
_EPOCH_NS = 1_000_000_000 * _NS_A_SECOND


def find_rank(keys: Mapping[str, Any]) -> int:
    """Return the rank, -1 when it is not told."""
    return _whole(_info(keys).get("rank"), UNKNOWN)


def find_world_size(keys: Mapping[str, Any]) -> int:
    """Return the number of ranks, 0 when it is not told."""
    return max(_whole(_info(keys).get("world_size"), 0), 0)


def find_host(keys: Mapping[str, Any]) -> str:
    """Return the name of the host, empty when it is not told."""
    for source in (_info(keys), keys):
        for key in _HOST_KEYS:
            if isinstance(value := source.get(key), str) and value:
                return value
    return ""


def find_base(keys: Mapping[str, Any], first_ns: int) -> tuple[int, int]:
    """Tell the clock of the host at the time 0 of the events.

    Args:
        keys: The keys of the file beside its events.
        first_ns: The earliest start in the file.

    Returns:
        The base in ns, and what to take from every start, so that both give the time of the host.
    """
    base = _whole(keys.get("baseTimeNanoseconds"), 0)
    if not 0 < base < 1 << 62 or first_ns > _EPOCH_NS:
        # Times are of the clock of the host already.
        return first_ns, first_ns
    return base, 0


def find_groups(keys: Mapping[str, Any]) -> tuple[TraceGroup, ...]:
    """List the process groups."""
    listed = _info(keys).get("pg_config")
    if isinstance(listed, Mapping):
        listed = list(listed.values())
    if not isinstance(listed, list):
        return ()
    return tuple(
        TraceGroup(
            str(one.get("pg_name", "")),
            str(one.get("pg_desc", "")),
            str(one.get("backend_config", "")),
            tuple(_read_ranks(one.get("ranks"))),
        )
        for one in listed
        if isinstance(one, Mapping)
    )


def _read_ranks(value: Any) -> Iterator[int]:  # noqa: ANN401 - JSON
    if isinstance(value, str):
        value = re.findall(r"\d{1,9}", value) if "..." not in value else []
    for one in value if isinstance(value, list) else ():
        if (number := to_whole(one)) is not None and number >= 0:
            yield number


def find_devices(keys: Mapping[str, Any]) -> tuple[TraceDevice, ...]:
    """List the devices of the host."""
    listed = keys.get("deviceProperties")
    return tuple(
        TraceDevice(
            device=_whole(one.get("id"), place),
            name=str(one.get("name", "")),
            sms=_whole(one.get("numSms"), 0),
            warp_size=_whole(one.get("warpSize"), 0),
            max_threads_per_sm=_whole(
                one.get("maxThreadsPerMultiprocessor", one.get("maxThreadsPerMultiProcessor")), 0
            ),
            memory_bytes=_whole(one.get("totalGlobalMem"), 0),
        )
        for place, one in enumerate(listed if isinstance(listed, list) else ())
        if isinstance(one, Mapping)
    )


def find_vendor(
    devices: Iterable[TraceDevice],
    categories: Collection[str],
    names: Iterable[str],
    *,
    has_device_work: bool,
) -> str:
    """Tell whose devices they are.

    Args:
        devices: The devices of the host.
        categories: The names of categories, as in the file.
        names: The names of events.
        has_device_work: Whether any work of a device was recorded.

    Returns:
        ``cuda``, ``rocm``, ``mtia``, ``xpu``, ``npu``, or ``cpu`` when no device is told of.
    """
    for device in devices:
        for vendor, pattern in _VENDORS:
            if pattern.search(device.name):
                return vendor
    found = {
        vendor
        for prefix, vendor in _VENDOR_CATEGORIES.items()
        if any(category.startswith(prefix) for category in categories)
    }
    if found == {"cuda"} and any(map(_HIP_CALL.match, names)):
        return "rocm"
    for vendor in ("rocm", "mtia", "xpu", "npu"):
        if vendor in found:
            return vendor
    # The first versions wrote `Kernel` and `Runtime`, and knew CUDA only.
    return "cuda" if found or has_device_work else "cpu"


def _info(keys: Mapping[str, Any]) -> Mapping[str, Any]:
    info = keys.get("distributedInfo")
    return info if isinstance(info, Mapping) else {}


def _whole(value: Any, default: int) -> int:  # noqa: ANN401 - JSON
    number = to_whole(value)
    return default if number is None or abs(number) >= 1 << 63 else number
