"""Telling the supervisor something, over a unix socket in the job folder."""

from __future__ import annotations

import array
import json
import os
import socket

from . import files

SUPERVISOR_SOCKET = "supervisor.sock"
_MAX_REPLY_BYTES = 65536


def tell(message: dict[str, object], reply_timeout_s: float = 0.0) -> dict[str, object] | None:
    """Send one message; wait for the reply when asked to.

    Returns None when there is no supervisor, no reply in time, or none was asked for.
    """
    return tell_for_fds(message, reply_timeout_s)[0]


def tell_for_fds(
    message: dict[str, object], reply_timeout_s: float
) -> tuple[dict[str, object] | None, list[int]]:
    """Send one message; return the reply and the file descriptors that came with it."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(1.0)
            sock.connect(os.path.join(files.job_dir(), SUPERVISOR_SOCKET))
            sock.sendall(json.dumps(message).encode() + b"\n")
            if reply_timeout_s <= 0:
                return None, []
            sock.settimeout(reply_timeout_s)
            return _receive(sock)
    except (OSError, ValueError):
        return None, []


def _receive(sock: socket.socket) -> tuple[dict[str, object] | None, list[int]]:
    fds = array.array("i")
    room = socket.CMSG_SPACE(4 * fds.itemsize)
    data, ancillary, _, _ = sock.recvmsg(_MAX_REPLY_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    reply = json.loads(data) if data else None
    return (reply if isinstance(reply, dict) else None), list(fds)
