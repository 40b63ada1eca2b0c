"""Network interfaces: links that are down, and errors on them (N408, N409)."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from whystuck.check.check import Check, Context
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult

_DOWN, _ERRORS = "N408", "N409"
_NET = "/sys/class/net"
_UP_FLAG, _LOOPBACK_FLAG = 0x1, 0x8
_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_ERROR_COUNTERS = (
    "rx_errors", "tx_errors", "rx_crc_errors", "rx_frame_errors", "tx_carrier_errors",
)  # fmt: skip
_MOST_SHOWN = 8


@dataclass(frozen=True)
class Link:
    """An interface at one moment; ``carrier`` is -1 where it has no such thing."""

    name: str
    is_on: bool
    is_loopback: bool
    state: str
    carrier: int
    mtu: int
    speed: int
    packets: int
    errors: Mapping[str, int]
    losses: int

    @property
    def has_link(self) -> bool:
        """Whether packets can go over it."""
        return self.is_on and self.carrier != 0 and self.state not in {"down", "lowerlayerdown"}


class Nic(Check):
    """Interfaces that the job may use: their links, speed and errors."""

    name = "nic"
    codes = (_DOWN, _ERRORS)

    def why_skipped(self, context: Context) -> str:
        """Return why there is nothing to check."""
        return "" if context.list_names(_NET) else f"{_NET} cannot be read"

    def run(self, context: Context) -> CheckResult:
        """Look at all links twice."""
        before = {link.name: link for link in read_links(context)}
        time.sleep(context.policy.nic.sample_s)
        after = read_links(context)
        wanted = _list_wanted(context)
        routed = _list_routed(context)
        problems = [
            *_judge_wanted(wanted, after),
            *_judge_all(after, wanted, routed),
            *(one for link in after for one in _judge_errors(link, before.get(link.name), context)),
        ]
        shown = [link for link in after if not link.is_loopback and link.is_on][:_MOST_SHOWN]
        return self.make_result(problems, facts={link.name: _describe(link) for link in shown})


def read_links(context: Context) -> list[Link]:
    """Return the interfaces of this network namespace."""
    links = []
    for name in context.list_names(_NET):
        place = f"{_NET}/{name}"
        flags = context.read_text(f"{place}/flags")
        if not flags.startswith("0x"):
            continue  # `bonding_masters` is a file
        bits = int(flags, 16)
        statistics = f"{place}/statistics"
        links.append(
            Link(
                name=name,
                is_on=bool(bits & _UP_FLAG),
                is_loopback=bool(bits & _LOOPBACK_FLAG),
                state=context.read_text(f"{place}/operstate"),
                carrier=context.read_number(f"{place}/carrier"),
                mtu=context.read_number(f"{place}/mtu"),
                speed=context.read_number(f"{place}/speed"),
                packets=sum(
                    context.read_number(f"{statistics}/{one}", 0)
                    for one in ("rx_packets", "tx_packets")
                ),
                errors={
                    one: context.read_number(f"{statistics}/{one}", 0) for one in _ERROR_COUNTERS
                },
                losses=context.read_number(f"{place}/carrier_down_count", 0),
            )
        )
    return links


def _list_wanted(context: Context) -> dict[str, str]:
    """Return what variables ask for: the list of names, by variable."""
    found = {name: context.environment.get(name, "") for name in _VARIABLES}
    # `^` leaves out, and asks for nothing.
    return {name: text for name, text in found.items() if text and not text.startswith("^")}


def _list_routed(context: Context) -> set[str]:
    """Return the interfaces that a route of IPv4 leads to."""
    lines = context.read_text("/proc/net/route").splitlines()[1:]
    return {line.split("\t")[0].strip() for line in lines if line.strip()}


def _matches(link: Link, text: str) -> bool:
    """Return whether a variable asks for an interface: names are prefixes, after `=` exact."""
    is_exact = text.startswith("=")
    names = [one for one in re.split(r"[,\s]+", text.lstrip("=")) if one]
    return any(link.name == one or (not is_exact and link.name.startswith(one)) for one in names)


def _judge_wanted(wanted: Mapping[str, str], links: list[Link]) -> Iterator[CheckProblem]:
    for variable, text in wanted.items():
        found = [link for link in links if _matches(link, text)]
        if any(link.has_link for link in found):
            continue
        state = ", ".join(f"{link.name} is {_name_state(link)}" for link in found)
        yield CheckProblem(
            code=_DOWN,
            severity="error",
            text=f"{variable}={text} names no interface that is up: {state or 'there is none'}",
            subject=text,
            because=tuple(_describe_all(links)),
            remedies=(
                f"ip link set {found[0].name} up" if found else f"unset {variable}",
                "`ip -br link` lists the interfaces of this node",
            ),
            details={"variable": variable, "interfaces": [link.name for link in found]},
        )


def _judge_all(
    links: list[Link], wanted: Mapping[str, str], routed: set[str]
) -> Iterator[CheckProblem]:
    told = {link.name for link in links for text in wanted.values() if _matches(link, text)}
    for link in links:
        if link.name in told or link.is_loopback or link.name not in routed or link.has_link:
            continue
        yield CheckProblem(
            code=_DOWN,
            text=f"a route leads over {link.name}, which is {_name_state(link)}",
            subject=link.name,
            remedies=(f"`ip link show {link.name}`, `ethtool {link.name}`: cable, switch port",),
            details={"interfaces": [link.name], "state": link.state},
        )


def _judge_errors(link: Link, before: Link | None, context: Context) -> Iterator[CheckProblem]:
    policy = context.policy.nic
    total = sum(link.errors.values())
    grown = total - (sum(before.errors.values()) if before else total)
    share = total / max(link.packets, 1)
    is_bad = total >= policy.min_errors and share > policy.max_error_share
    kinds = ", ".join(f"{name} {count}" for name, count in link.errors.items() if count)
    if grown > 0 or is_bad:
        now = f", {grown} of them in the last {policy.sample_s:g} s" if grown > 0 else ""
        yield CheckProblem(
            code=_ERRORS,
            text=f"{link.name} has {total} errors in {link.packets} packets{now}",
            subject=link.name,
            because=(kinds,),
            measures={
                "errors": total,
                "packets": link.packets,
                "errors_now": max(grown, 0),
                "threshold_share": policy.max_error_share,
            },
        )
    if link.losses > policy.max_carrier_losses and not link.is_loopback:
        yield CheckProblem(
            code=_ERRORS,
            severity="note",
            text=f"the link of {link.name} was lost {link.losses} times, more than "
            f"{policy.max_carrier_losses}",
            subject=link.name,
            because=("carrier_down_count",),
            measures={"losses": link.losses, "threshold": policy.max_carrier_losses},
        )


def _name_state(link: Link) -> str:
    if not link.is_on:
        return "switched off"
    return "without a link" if link.carrier == 0 else link.state or "in an unknown state"


def _describe(link: Link) -> str:
    speed = f", {link.speed / 1000:g} Gbit/s" if link.speed > 0 else ""
    state = "up" if link.has_link else _name_state(link)
    return f"{state}{speed}, MTU {link.mtu}"


def _describe_all(links: list[Link]) -> Iterator[str]:
    for link in links[:_MOST_SHOWN]:
        yield f"{link.name} is {_describe(link)}"
