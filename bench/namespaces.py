"""Hosts of one machine: network namespaces at a switch, whose links can be limited; for root.

with Hosts(4) as hosts:
    command = hosts.launch([python, "train.py"])   # a rank on each
    hosts.limit(2, "out", 150)                     # Mbit/s
"""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from typing import Self

PORT = 29_500
_BURST = ("burst", "64kb")
_numbers = itertools.count()


def find_lack() -> str:
    """Return what is missing for namespaces and limits; empty where nothing is."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} of iproute2 missing"
    try:
        with Hosts(2) as hosts:
            hosts.limit(0, "out", 100)
            hosts.limit(1, "in", 100)
    except subprocess.CalledProcessError as error:
        return f"no limited link can be made: {error.stderr.decode()[:100].strip()}"
    return ""


class Hosts:
    """Some namespaces, each with an interface ``link0`` at one switch."""

    def __init__(self, count: int) -> None:
        self.prefix = f"ws{os.getpid()}x{next(_numbers)}"
        self.names = [f"{self.prefix}h{number}" for number in range(count)]
        self.switch = f"{self.prefix}s"
        self._made: list[str] = []

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def address(self, number: int) -> str:
        """Return the address of a host."""
        return f"10.78.0.{number + 1}"

    def limit(self, number: int, direction: str, mbit: float) -> None:
        """Limit what leaves a host (``out``), or what comes to it (``in``)."""
        where = (self.names[number], "link0")
        if direction == "in":
            where = (self.switch, f"port{number}")
        rate = ("rate", f"{mbit:g}mbit", *_BURST, "latency", "200ms")
        _tc("-n", where[0], "qdisc", "replace", "dev", where[1], "root", "tbf", *rate)

    def limit_pair(self, source: int, target: int, mbit: float) -> None:
        """Limit what one host sends to another one alone."""
        at = ("-n", self.names[source])
        link = ("dev", "link0")
        _tc(*at, "qdisc", "add", *link, "root", "handle", "1:", "htb", "default", "1")
        for number, rate in ((1, "20gbit"), (2, f"{mbit:g}mbit")):
            line = ("classid", f"1:{number}", "htb", "rate", rate, *_BURST)
            _tc(*at, "class", "add", *link, "parent", "1:", *line)
        match = ("match", "ip", "dst", f"{self.address(target)}/32", "flowid", "1:2")
        _tc(
            *at,
            "filter",
            "add",
            *link,
            "parent",
            "1:",
            "protocol",
            "ip",
            "prio",
            "1",
            "u32",
            *match,
        )

    def free(self, number: int) -> None:
        """Take all limits of a host away."""
        for where in ((self.names[number], "link0"), (self.switch, f"port{number}")):
            subprocess.run(
                ["tc", "-n", where[0], "qdisc", "del", "dev", where[1], "root"],
                capture_output=True,
                check=False,
            )

    def launch(self, command: Sequence[str]) -> list[str]:
        """Return a command that starts a rank on each host, and fails when one of them does."""
        lines = ["pids=()"]
        for rank, name in enumerate(self.names):
            variables = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": len(self.names),
                "MASTER_ADDR": self.address(0),
                "MASTER_PORT": PORT,
                "GLOO_SOCKET_IFNAME": "link0",
            }
            words = [f"{key}={value}" for key, value in variables.items()]
            lines.append(f"ip netns exec {name} env {' '.join(words)} {shlex.join(command)} &")
            lines.append("pids+=($!)")
        lines.append('code=0; for pid in "${pids[@]}"; do wait "$pid" || code=1; done; exit $code')
        return ["bash", "-c", "\n".join(lines)]

    def _make(self) -> None:
        for name in (self.switch, *self.names):
            _ip("netns", "add", name)
            self._made.append(name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", self.switch, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", self.switch, "link", "set", "bridge0", "up")
        for number, name in enumerate(self.names):
            port = f"port{number}"
            peer = ("type", "veth", "peer", "name", port, "netns", self.switch)
            _ip("link", "add", "link0", "netns", name, *peer)
            _ip("-n", self.switch, "link", "set", port, "master", "bridge0", "up")
            _ip("-n", name, "addr", "add", f"{self.address(number)}/24", "dev", "link0")
            _ip("-n", name, "link", "set", "link0", "up")

    def _remove(self) -> None:
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        self._made.clear()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _tc(*arguments: str) -> None:
    subprocess.run(["tc", *arguments], check=True, capture_output=True)
