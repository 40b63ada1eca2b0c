"""The network interfaces of this node, and whether a library can be loaded here."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

_LOAD_TIMEOUT_S = 20.0
# Run in a process of its own: what a library does when it is loaded is its own affair.
_LOAD = """
import ctypes, sys
reasons = []
for name in sys.argv[1:]:
    try:
        ctypes.CDLL(name, mode=2)
        sys.exit(0)
    except OSError as error:
        reasons.append(str(error))
print(chr(10).join(reasons))
sys.exit(1)
"""


@dataclass(frozen=True)
class Interface:
    """A network interface, whether it is up, and its IP addresses."""

    name: str
    is_up: bool
    addresses: tuple[str, ...]

    @property
    def is_usable(self) -> bool:
        """Whether a connection can be made through it."""
        return self.is_up and bool(self.addresses)


def collect_interfaces() -> list[Interface]:
    """Return the interfaces of this node by name; none where the system does not tell."""
    try:
        states, addresses = psutil.net_if_stats(), psutil.net_if_addrs()
    except (OSError, psutil.Error):
        return []
    return [
        Interface(
            name,
            name in states and states[name].isup,
            tuple(
                one.address
                for one in addresses.get(name, ())
                if one.family in (socket.AF_INET, socket.AF_INET6)
            ),
        )
        for name in sorted(states.keys() | addresses.keys())
    ]


def try_loading(names: Sequence[str]) -> str | None:
    """Load the first of some libraries that can be loaded, in a process of its own.

    Args:
        names: Names as the dynamic linker takes them, in the order to try.

    Returns:
        None when one could be loaded, else why the last one could not.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _LOAD, *names],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LOAD_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    lines = done.stdout.strip().splitlines()
    return lines[-1] if lines else f"loading it ended with code {done.returncode}"
