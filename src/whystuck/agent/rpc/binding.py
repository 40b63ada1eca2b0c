"""Sockets that a server of calls listens at: unix ones, on the loopback, and at an address."""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
from pathlib import Path

from whystuck.agent.connections import (
    bind,
    close_all,
)
from whystuck.evidence.errors import UsageError

_LOGGER = logging.getLogger(__name__)
_BACKLOG = 512
_LOOPBACK = ("127.0.0.1", "::1")
_FREE_PORT_TRIES = 8


def bind_loopback(port: int) -> list[socket.socket]:
    """Listen on 127.0.0.1 and ::1: clients try only what `localhost` is on their machine."""
    for tries_left in reversed(range(_FREE_PORT_TRIES if not port else 1)):
        found = bind_tcp(_LOOPBACK[0], port)
        try:
            return [*found, *bind_tcp(_LOOPBACK[1], int(found[0].getsockname()[1]))]
        except UsageError as error:
            if getattr(error.__cause__, "errno", 0) != errno.EADDRINUSE:
                _LOGGER.info("nothing listens on ::1: %s", error)  # IPv6 may be off
                return found
            close_all(found)  # the port is free for IPv4 only
            if not tries_left:
                raise
    raise AssertionError  # the last try returns or raises


def bind_tcp(address: str, port: int) -> list[socket.socket]:
    """Return sockets that are bound to an address of this machine.

    Raises:
        UsageError: They cannot be.
    """
    try:
        return bind(address, port)
    except (OSError, OverflowError) as error:
        taken = getattr(error, "errno", 0) == errno.EADDRINUSE
        why = "something listens there already" if taken else _say(error)
        raise UsageError(
            f"cannot listen on {address} port {port}: {why}",
            hint="another agent or dynolog may run on this node; give another port"
            if taken
            else "give an address of this machine, and a port from 1 to 65535",
        ) from error


def bind_path(path: Path) -> tuple[socket.socket, int]:
    """Return a socket that is bound to ``path``, and the inode of that; only we may connect."""
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The file gets the mode of the socket, at once and whatever the umask.
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(str(path))
        listener.listen(_BACKLOG)
        return listener, path.stat().st_ino
    except OSError:
        listener.close()
        raise


def _remove_stale(path: Path) -> None:
    """Remove a socket that nobody serves any more.

    Raises:
        UsageError: An agent answers there, or a file that is no socket has the name.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise UsageError(f"{path} is in the way", hint="remove it, or give another folder")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass
    raise UsageError(
        f"another agent serves {path}", hint="`whystuck trace list` shows what it knows"
    )


def _say(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
