"""Figures of NVIDIA devices that dcgm-exporter has: what is active inside those before Hopper.

NVML tells such figures from Hopper on; for older devices only DCGM does, which needs a service
with rights that we do not have. Where its exporter runs, we read what it says.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from whystuck.agent.metrics.gpu import families as gpu
from whystuck.agent.metrics.gpu.families import Device, GpuTable, make_sample
from whystuck.evidence.errors import UsageError
from whystuck.evidence.nodes.metrics import MetricFamily, Sample

DEFAULT_URL: Final = "http://127.0.0.1:9400/metrics"
VENDOR: Final = "nvidia"
_TIMEOUT_S: Final = 2.0
_MAX_BYTES: Final = 8 << 20
_PART_BYTES: Final = 64 << 10
_MIB: Final = float(1 << 20)
_MHZ: Final = 1e6
_PERCENT: Final = 0.01
# Numbers from here on mean "not known" in DCGM (DCGM_FP64_BLANK and its like are 2^47).
_BLANK: Final = float(1 << 47)
# What is active inside: read unless the driver gives it itself (GPM).
_PROFILED: Final[dict[str, tuple[MetricFamily, float]]] = {
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": (gpu.GRAPHICS_ACTIVE, 1.0),
    "DCGM_FI_PROF_SM_ACTIVE": (gpu.SM_ACTIVE, 1.0),
    "DCGM_FI_PROF_SM_OCCUPANCY": (gpu.SM_OCCUPANCY, 1.0),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": (gpu.TENSOR_ACTIVE, 1.0),
    "DCGM_FI_PROF_DRAM_ACTIVE": (gpu.DRAM_ACTIVE, 1.0),
    "DCGM_FI_PROF_PIPE_FP64_ACTIVE": (gpu.FP64_ACTIVE, 1.0),
    "DCGM_FI_PROF_PIPE_FP32_ACTIVE": (gpu.FP32_ACTIVE, 1.0),
    "DCGM_FI_PROF_PIPE_FP16_ACTIVE": (gpu.FP16_ACTIVE, 1.0),
}
# The driver tells these itself: read only of devices that it does not show to us.
_PLAIN: Final[dict[str, tuple[MetricFamily, float]]] = {
    "DCGM_FI_DEV_GPU_UTIL": (gpu.UTILIZATION, _PERCENT),
    "DCGM_FI_DEV_MEM_COPY_UTIL": (gpu.MEMORY_BUSY, _PERCENT),
    "DCGM_FI_DEV_FB_USED": (gpu.MEMORY_USED, _MIB),
    "DCGM_FI_DEV_FB_TOTAL": (gpu.MEMORY_TOTAL, _MIB),
    "DCGM_FI_DEV_POWER_USAGE": (gpu.POWER, 1.0),
    "DCGM_FI_DEV_GPU_TEMP": (gpu.TEMPERATURE, 1.0),
    "DCGM_FI_DEV_SM_CLOCK": (gpu.SM_CLOCK, _MHZ),
    "DCGM_FI_DEV_MEM_CLOCK": (gpu.MEMORY_CLOCK, _MHZ),
    "DCGM_FI_PROF_PCIE_TX_BYTES": (gpu.PCIE_TX, 1.0),
    "DCGM_FI_PROF_PCIE_RX_BYTES": (gpu.PCIE_RX, 1.0),
    "DCGM_FI_PROF_NVLINK_TX_BYTES": (gpu.NVLINK_TX, 1.0),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": (gpu.NVLINK_RX, 1.0),
}
_FAMILIES: Final = {**_PROFILED, **_PLAIN}
_WANTED: Final = frozenset(_FAMILIES)
MAX_LINE_BYTES: Final = 16 << 10
MAX_SAMPLES: Final = 50_000
_NAME: Final = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_SAMPLE: Final = re.compile(
    rf"(?P<name>{_NAME})[ \t]*(?:\{{(?P<labels>.*)\}}[ \t]*|[ \t])"
    r"(?P<value>[^\s}]+)(?:[ \t]+-?[0-9]+)?[ \t]*"
)
_LABEL: Final = re.compile(
    r'[ \t]*(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"(?P<value>(?:[^"\\]|\\.)*)"[ \t]*(?:,|$)'
)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)


class DcgmSource:
    """Scrapes dcgm-exporter.

    Args:
        url: Where it answers; raises UsageError for one that is no HTTP address.
        table: What the driver knows of the devices: whose they are, and what it reads itself.
        every_s: How often it wants to be asked.
    """

    name = "dcgm"
    families = tuple(dict.fromkeys(family for family, _ in _FAMILIES.values()))

    def __init__(
        self,
        url: str = DEFAULT_URL,
        table: GpuTable | None = None,
        *,
        every_s: float = gpu.GPU_EVERY_S,
    ) -> None:
        self.every_s = every_s
        self._url = url
        self._table = table or GpuTable()
        self._host, self._port, self._path = _split(url)
        self._problem = ""

    @property
    def problem(self) -> str:
        """Why nothing is read; empty when something is."""
        return self._problem

    def collect(self) -> Iterable[Sample]:
        """Ask the exporter now; returns after some seconds at most."""
        try:
            body = self._fetch()
        except OSError as error:
            self._problem = f"dcgm-exporter at {self._url} does not answer: {error}"
            return []
        samples = list(self._convert(body))
        self._problem = "" if samples else f"what {self._url} says holds no figures of DCGM"
        return samples

    def _fetch(self) -> bytes:
        """Return what it says; raises OSError, also when it says too much or too slowly."""
        end_s = time.monotonic() + _TIMEOUT_S
        request = f"GET {self._path} HTTP/1.0\r\nHost: {self._host}\r\nAccept: text/plain\r\n\r\n"
        with socket.create_connection((self._host, self._port), _TIMEOUT_S) as connection:
            connection.sendall(request.encode())
            answer = _read_to_end(connection, end_s)
        head, _, body = answer.partition(b"\r\n\r\n")
        words = head.split(b"\r\n", 1)[0].split()
        if len(words) < 2 or not words[0].startswith(b"HTTP/"):  # noqa: PLR2004 - version, code
            raise OSError("it does not speak HTTP")
        if words[1] != b"200":
            raise OSError(f"it answers with code {words[1][:8].decode(errors='replace')}")
        return body

    def _convert(self, body: bytes) -> Iterator[Sample]:
        seen: set[tuple[str, tuple[str, ...]]] = set()
        for exposed in parse_exposition(body, _WANTED):
            for sample in self._to_sample(exposed):
                key = (sample.family.name, sample.labels)
                if key not in seen:
                    seen.add(key)
                    yield sample

    def _to_sample(self, exposed: ExposedSample) -> Iterator[Sample]:
        uuid = exposed.labels.get("UUID", "")
        known = self._table.find(uuid)
        instance = exposed.labels.get("GPU_I_ID", "")
        if exposed.name in _PLAIN and known is not None:
            return
        if self._table.is_profiled(uuid) or exposed.value >= _BLANK:
            return
        family, factor = _FAMILIES[exposed.name]
        index = exposed.labels.get("gpu", "")
        if instance:
            # DCGM names instances by the device and a number; the driver by a UUID of their own.
            device = Device(f"{index}.i{instance}", f"{uuid}/{instance}", VENDOR)
        else:
            device = known or Device(index, uuid, VENDOR)
        yield from make_sample(family, device, exposed.value * factor)


def _split(url: str) -> tuple[str, int, str]:
    hint = f"such as {DEFAULT_URL}"
    try:
        parts = urlsplit(url)
        port = parts.port or 80
    except ValueError:
        raise UsageError(f"`{url}` is no address of dcgm-exporter", hint=hint) from None
    path = parts.path or "/metrics"
    is_clean = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme != "http" or not parts.hostname or not is_clean:
        raise UsageError(f"`{url}` is no HTTP address of dcgm-exporter", hint=hint)
    return parts.hostname, port, f"{path}?{parts.query}" if parts.query else path


def _read_to_end(connection: socket.socket, end_s: float) -> bytes:
    """Read it all within the limits; a server that sends one byte a second is too slow as well."""
    parts: list[bytes] = []
    size = 0
    while True:
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"it is not done after {_TIMEOUT_S:.0f} s")
        connection.settimeout(left_s)
        part = connection.recv(_PART_BYTES)
        if not part:
            return b"".join(parts)
        size += len(part)
        parts.append(part)
        if size > _MAX_BYTES:
            raise OSError(f"it says more than {_MAX_BYTES >> 20} MiB")


@dataclass(frozen=True)
class ExposedSample:
    """One line of an exporter."""

    name: str
    labels: dict[str, str]
    value: float


def parse_exposition(data: bytes, wanted: frozenset[str]) -> Iterator[ExposedSample]:
    """Give the samples of the ``wanted`` names; a line that cannot be read costs only itself."""
    taken = 0
    for line in data.split(b"\n"):
        if len(line) > MAX_LINE_BYTES or taken >= MAX_SAMPLES:
            continue
        # Most lines are of other names, and not worth a regular expression.
        name = line.lstrip()[:256].split(b"{", 1)[0].split(None, 1)
        if not name or name[0].decode(errors="replace") not in wanted:
            continue
        sample = _parse_line(line.decode(errors="replace"))
        if sample is not None and sample.name in wanted:
            taken += 1
            yield sample


def _parse_line(line: str) -> ExposedSample | None:
    found = _SAMPLE.fullmatch(line.strip())
    labels = _parse_labels(found["labels"] or "") if found else None
    if found is None or labels is None:
        return None
    try:
        return ExposedSample(found["name"], labels, float(found["value"].replace("_", "x")))
    except ValueError:
        return None


def _parse_labels(text: str) -> dict[str, str] | None:
    labels: dict[str, str] = {}
    place = 0
    text = text.rstrip(" \t")
    while place < len(text):
        found = _LABEL.match(text, place)
        if found is None:
            return None
        labels[found["name"]] = _ESCAPE.sub(_unescape, found["value"])
        place = found.end()
    return labels


def _unescape(found: re.Match[str]) -> str:
    return {"n": "\n", "\\": "\\", '"': '"'}.get(found[1], found[0])
