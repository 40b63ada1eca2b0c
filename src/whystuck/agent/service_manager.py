"""Tells systemd, or what else set ``NOTIFY_SOCKET``, how the agent does (sd_notify's protocol)."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress

_MIN_WATCHDOG_S = 0.5


class ServiceManager:
    """Sends states to the service manager; does nothing where there is none."""

    def __init__(self) -> None:
        """Take the address from the environment, so that no child inherits it."""
        self._address = os.environ.pop("NOTIFY_SOCKET", "").replace("@", "\0", 1)
        self._watchdog_s = _watchdog_s()
        self._timer: asyncio.TimerHandle | None = None

    def tell(self, *states: str) -> None:
        """Send states such as ``READY=1``; nobody may be hurt by one that does not arrive."""
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto("\n".join(states).encode(), socket.MSG_DONTWAIT, self._address)

    def start_watchdog(self) -> None:
        """Say twice in each interval of the watchdog that the loop still turns."""
        if self._address and self._watchdog_s:
            self.tell("WATCHDOG=1")
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._watchdog_s / 2, self.start_watchdog)

    def close(self) -> None:
        """End the watchdog."""
        if self._timer:
            self._timer.cancel()


def _watchdog_s() -> float:
    """Return the interval that systemd asks for, 0 where it does not."""
    told, pid = os.environ.pop("WATCHDOG_USEC", ""), os.environ.pop("WATCHDOG_PID", "")
    if not told.isdigit() or pid not in {"", str(os.getpid())}:
        return 0.0
    return max(_MIN_WATCHDOG_S, int(told) / 1e6)
