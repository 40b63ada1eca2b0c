"""Network interfaces and InfiniBand ports."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from whystuck.agent.metrics.families import counter, fill, gauge
from whystuck.agent.metrics.filters import Names
from whystuck.evidence.nodes.metrics import MetricFamily, Sample

EVERY_S = 10.0
SKIPPED_INTERFACES = (
    *("lo", "veth*", "docker*", "br-*", "virbr*", "vnet*", "tap*", "dummy*", "ifb*"),
    *("cali*", "cni*", "flannel*", "cilium*", "lxc*", "kube-*", "nodelocaldns"),
)
INFINIBAND = Path("/sys/class/infiniband")
_MAX_INTERFACES = 64
_MAX_PORTS = 64
# The kernel counts in words of four bytes.
_WORD_BYTES = 4
_BYTE_BITS = 8

_INTERFACE = {
    "bytes_recv": counter("network_receive_bytes_total", "Bytes received.", "device"),
    "bytes_sent": counter("network_transmit_bytes_total", "Bytes sent.", "device"),
    "packets_recv": counter("network_receive_packets_total", "Packets received.", "device"),
    "packets_sent": counter("network_transmit_packets_total", "Packets sent.", "device"),
    "errin": counter("network_receive_errs_total", "Errors while receiving.", "device"),
    "errout": counter("network_transmit_errs_total", "Errors while sending.", "device"),
    "dropin": counter("network_receive_drop_total", "Packets dropped on arrival.", "device"),
    "dropout": counter("network_transmit_drop_total", "Packets dropped before sending.", "device"),
    "up": gauge("network_up", "1 when the interface is up.", "device"),
    "speed": gauge(
        "network_speed_bytes", "Bytes per second that the link can carry, where known.", "device"
    ),
}
_PORT_LABELS = ("device", "port")
_PORT = {
    "port_rcv_data": counter(
        "infiniband_port_data_received_bytes_total", "Bytes received.", *_PORT_LABELS
    ),
    "port_xmit_data": counter(
        "infiniband_port_data_transmitted_bytes_total", "Bytes sent.", *_PORT_LABELS
    ),
    "port_rcv_packets": counter(
        "infiniband_port_packets_received_total", "Packets received.", *_PORT_LABELS
    ),
    "port_xmit_packets": counter(
        "infiniband_port_packets_transmitted_total", "Packets sent.", *_PORT_LABELS
    ),
    "port_xmit_wait": counter(
        "infiniband_port_transmit_wait_total",
        "Ticks in which a port had something to send and could not.",
        *_PORT_LABELS,
    ),
    "port_rcv_errors": counter(
        "infiniband_port_errors_received_total", "Packets received with an error.", *_PORT_LABELS
    ),
    "port_xmit_discards": counter(
        "infiniband_port_discards_transmitted_total", "Packets not sent.", *_PORT_LABELS
    ),
    "symbol_error": counter(
        "infiniband_symbol_error_total", "Small errors of the link.", *_PORT_LABELS
    ),
    "link_error_recovery": counter(
        "infiniband_link_error_recovery_total", "Times the link recovered.", *_PORT_LABELS
    ),
    "link_downed": counter(
        "infiniband_link_downed_total", "Times the link went down.", *_PORT_LABELS
    ),
    "active": gauge("infiniband_port_active", "1 when the port is active.", *_PORT_LABELS),
    "rate": gauge(
        "infiniband_rate_bytes", "Bytes per second that the port can carry.", *_PORT_LABELS
    ),
}
FAMILIES: tuple[MetricFamily, ...] = (*_INTERFACE.values(), *_PORT.values())


class NetworkSource:
    """What interfaces and ports carried, and what they lost.

    Args:
        every_s: Seconds between two readings.
        include: Patterns of interfaces to take; all when empty.
        exclude: Patterns of interfaces to leave out; by default those that containers make.
        infiniband: Where the kernel shows InfiniBand and RoCE devices.
    """

    name = "network"
    families = FAMILIES

    def __init__(
        self,
        *,
        every_s: float = EVERY_S,
        include: Sequence[str] = (),
        exclude: Sequence[str] = SKIPPED_INTERFACES,
        infiniband: Path = INFINIBAND,
    ) -> None:
        self.every_s = every_s
        self.problem = ""
        self._names = Names(include, exclude)
        self._infiniband = infiniband

    def collect(self) -> Iterable[Sample]:
        """Read /proc/net/dev and /sys/class/infiniband."""
        now_ns = time.time_ns()
        counters = psutil.net_io_counters(pernic=True, nowrap=False)
        states = psutil.net_if_stats()
        samples: list[Sample] = []
        for name in self._names.choose(sorted(counters))[:_MAX_INTERFACES]:
            values: dict[str, float | None] = dict(counters[name]._asdict())
            if (state := states.get(name)) is not None:
                values["up"] = float(state.isup)
                # In Mbit/s; 0 where the driver does not tell.
                values["speed"] = state.speed * 1e6 / _BYTE_BITS if state.speed > 0 else None
            samples += fill(_INTERFACE, values, (name,), now_ns)
        for port in sorted(self._infiniband.glob("*/ports/*"))[:_MAX_PORTS]:
            labels = (port.parent.parent.name, port.name)
            samples += fill(_PORT, _read_port(port), labels, now_ns)
        return samples


def _read_port(port: Path) -> dict[str, float | None]:
    values: dict[str, float | None] = {}
    for name in _PORT.keys() - {"active", "rate"}:
        number = _read_number(port / "counters" / name)
        is_words = name in {"port_rcv_data", "port_xmit_data"}
        values[name] = number * _WORD_BYTES if number is not None and is_words else number
    state = _read_text(port / "state")  # such as "4: ACTIVE"
    values["active"] = float("ACTIVE" in state) if state else None
    rate = _read_text(port / "rate").split()  # such as "200 Gb/sec (4X HDR)"
    try:
        values["rate"] = float(rate[0]) * 1e9 / _BYTE_BITS
    except (IndexError, ValueError):
        values["rate"] = None
    return values


def _read_number(path: Path) -> float | None:
    text = _read_text(path)
    return float(int(text)) if text.isascii() and text.isdecimal() else None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()[:200]
    except OSError:
        return ""
