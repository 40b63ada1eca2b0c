"""Network interfaces: links that are down, and errors on them (N408, N409)."""

from __future__ import annotations

import fcntl
import re
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from whystuck.check.check import Check, Context
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult

_DOWN, _ERRORS = "N408", "N409"
_NET = "/sys/class/net"
_UP_FLAG, _LOOPBACK_FLAG, _RUNNING_FLAG = 0x1, 0x8, 0x40
# Of ioctl: what the kernel knows of an interface of this network namespace.
_GET_FLAGS, _GET_ADDRESS = 0x8913, 0x8915
_NAME_BYTES, _REQUEST_BYTES = 16, 40
_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_ERROR_COUNTERS = (
    "rx_errors", "tx_errors", "rx_crc_errors", "rx_frame_errors", "tx_carrier_errors",
)  # fmt: skip
_MOST_SHOWN = 8


@dataclass(frozen=True)
class Link:
    """An interface at one moment.

    ``carrier`` is -1 where it has no such thing, ``ups`` is how often it came up so far. A bridge
    without ports, as one for containers that do not run, ``is_idle``.
    """

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
    ups: int = 0
    address: str = ""
    is_idle: bool = False

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
    """Return the interfaces of this network namespace.

    What is mounted at /sys may be of another one.
    """
    shown = context.list_names(_NET)
    if context.root != Path("/"):
        return _read_shown(shown, context)
    known = [name for _, name in socket.if_nameindex()]
    links = _read_shown([name for name in shown if name in known], context)
    hidden = [name for name in known if name not in {link.name for link in links}]
    links = [*links, *map(_ask_link, hidden)]
    return [replace(link, address=_ask_address(link.name)) for link in links]


def _ask_link(name: str) -> Link:
    """Return what the kernel tells of an interface that /sys does not show."""
    flags = int.from_bytes(_ask(name, _GET_FLAGS)[:2], "little")
    is_on, has_carrier = bool(flags & _UP_FLAG), int(bool(flags & _RUNNING_FLAG))
    is_loopback = bool(flags & _LOOPBACK_FLAG)
    return Link(name, is_on, is_loopback, "", has_carrier, -1, -1, 0, {}, 0)


def _ask_address(name: str) -> str:
    """Return the address of IPv4 that an interface has; it keeps that while it is switched off."""
    data = _ask(name, _GET_ADDRESS)
    return socket.inet_ntoa(data[4:8]) if any(data[4:8]) else ""


def _ask(name: str, what: int) -> bytes:
    """Return what the kernel answers about an interface; zeros where it has no answer."""
    request = struct.pack(f"{_REQUEST_BYTES}s", name.encode()[: _NAME_BYTES - 1])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            return fcntl.ioctl(asked.fileno(), what, request)[_NAME_BYTES:]
    except OSError:
        return bytes(_REQUEST_BYTES - _NAME_BYTES)


def _read_shown(names: list[str], context: Context) -> list[Link]:
    """Return interfaces as /sys shows them."""
    links = []
    for name in names:
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
                ups=context.read_number(f"{place}/carrier_up_count", 0),
                is_idle=bool(context.list_names(f"{place}/bridge"))
                and not context.list_names(f"{place}/brif"),
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
    outer = [link for link in links if not link.is_loopback]
    down = [
        link for link in outer if link.name not in told and not link.has_link and not link.is_idle
    ]
    used = [link for link in down if link.name in routed or link.address]
    if not used and not any(link.has_link for link in outer):
        used = [link for link in down if link.ups]  # nothing is left that leads out of here
    for link in used:
        if link.name in routed:
            text = f"a route leads over {link.name}, which is {_name_state(link)}"
        elif link.address:
            text = f"{link.name} has the address {link.address}, and is {_name_state(link)}"
        else:
            text = f"no interface is up but the loopback: {link.name} is {_name_state(link)}"
        yield CheckProblem(
            code=_DOWN,
            text=text,
            subject=link.name,
            remedies=(_advise(link),),
            details={"interfaces": [link.name], "state": link.state},
        )


def _advise(link: Link) -> str:
    if not link.is_on:
        return f"ip link set {link.name} up"
    return f"`ip link show {link.name}`, `ethtool {link.name}`: cable, switch port"


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
