"""InfiniBand and RoCE ports: their links, and errors that they count (N410)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from whystuck.check.check import Check, Context
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult

_CODE = "N410"
_ROOT = "/sys/class/infiniband"
_ACTIVE = "ACTIVE"
_MOST_SHOWN = 16


@dataclass(frozen=True)
class Port:
    """A port of a card: ``rate`` in Gbit/s, 0 when unknown."""

    name: str
    layer: str
    state: str
    physical: str
    rate: float
    counters: Mapping[str, int]

    @property
    def is_active(self) -> bool:
        """Whether it carries data."""
        return self.state == _ACTIVE


class Fabric(Check):
    """Ports of InfiniBand and RoCE."""

    name = "fabric"
    codes = (_CODE,)

    def why_skipped(self, context: Context) -> str:
        """Return why there is nothing to check."""
        return "" if context.list_names(_ROOT) else "this node has no InfiniBand or RoCE card"

    def run(self, context: Context) -> CheckResult:
        """Compare the ports with each other, and their counters with the policy."""
        ports = read_ports(context)
        problems = [
            *_judge_links(ports),
            *(problem for port in ports for problem in _judge_counters(port, context)),
        ]
        facts = {port.name: _describe(port) for port in ports[:_MOST_SHOWN]}
        return self.make_result(problems, facts=facts)


def read_ports(context: Context) -> list[Port]:
    """Return the ports of all cards."""
    return [
        _read_port(f"{card}:{number}", f"{_ROOT}/{card}/ports/{number}", context)
        for card in context.list_names(_ROOT)
        for number in context.list_names(f"{_ROOT}/{card}/ports")
    ]


def _read_port(name: str, place: str, context: Context) -> Port:
    rate = context.read_text(f"{place}/rate").partition(" ")[0]
    counters = {
        one: context.read_number(f"{place}/{folder}/{one}", 0)
        for folder in ("counters", "hw_counters")
        for one in context.list_names(f"{place}/{folder}")
    }
    return Port(
        name=name,
        layer=context.read_text(f"{place}/link_layer"),
        state=context.read_text(f"{place}/state").rpartition(": ")[2],
        physical=context.read_text(f"{place}/phys_state").rpartition(": ")[2],
        rate=float(rate) if rate.replace(".", "", 1).isdecimal() else 0.0,
        counters=counters,
    )


def _judge_links(ports: list[Port]) -> Iterator[CheckProblem]:
    """Judge each port by those of its kind: one without a cable may be meant so."""
    for port in ports:
        peers = [one for one in ports if one.layer == port.layer and one is not port]
        if not port.is_active:
            is_odd = any(one.is_active for one in peers)
            yield CheckProblem(
                code=_CODE,
                severity="error" if is_odd and port.physical != "Disabled" else "warning",
                text=f"port {port.name} ({port.layer or 'unknown'}) is {port.state or 'unknown'}, "
                f"its link {port.physical or 'unknown'}",
                subject=port.name,
                because=tuple(f"{one.name} is {_describe(one)}" for one in peers[:_MOST_SHOWN]),
                remedies=(
                    "`ibstat`, `ibv_devinfo`: cable, switch port, subnet manager",
                    f"leave it out: export NCCL_IB_HCA=^{port.name}",
                ),
                details={"port": port.name, "state": port.state, "link": port.physical},
            )
        elif port.rate < (best := max((one.rate for one in peers if one.is_active), default=0.0)):
            yield CheckProblem(
                code=_CODE,
                text=f"port {port.name} runs at {port.rate:g} Gbit/s, others of this node at "
                f"{best:g}",
                subject=port.name,
                remedies=("clean or change the cable; `mlxlink -d DEVICE` tells the width",),
                measures={"rate_gbit_per_s": port.rate, "threshold_gbit_per_s": best},
                details={"port": port.name},
            )


def _judge_counters(port: Port, context: Context) -> Iterator[CheckProblem]:
    policy = context.policy.fabric
    limits = {
        "symbol_error": policy.max_symbol_errors,
        "symbol_errors": policy.max_symbol_errors,
        "link_downed": policy.max_link_downed,
        "link_error_recovery": policy.max_link_downed,
        "port_rcv_errors": policy.max_receive_errors,
        "local_link_integrity_errors": 0,
        "excessive_buffer_overrun_errors": 0,
        "rnr_nak_retry_err": 0,
    }
    for name, most in limits.items():
        count = port.counters.get(name, 0)
        if count > most:
            yield CheckProblem(
                code=_CODE,
                text=f"port {port.name} counts {count} {name}, more than {most}",
                subject=port.name,
                because=("counters since the card was started, or since they were cleared",),
                remedies=(
                    "run `perfquery -x` twice, a minute apart",
                    "clean or change the cable where the counter grows",
                ),
                measures={"count": count, "threshold": most},
                details={"port": port.name, "counter": name},
            )


def _describe(port: Port) -> str:
    return f"{port.layer}, {port.state}, {port.rate:g} Gbit/s"
