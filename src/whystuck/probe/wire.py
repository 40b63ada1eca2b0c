"""Telling the supervisor something, over a unix socket in the job folder.

The C module ``_socket`` is used, and JSON is written by hand, because this runs when the
interpreter starts: ``socket`` and ``json`` would take longer to import than all the rest.
"""

from __future__ import annotations

import _socket
import os

from . import files

# A supervisor of another version leaves messages alone that it does not know.
VERSION = 1
SUPERVISOR_SOCKET = "supervisor.sock"
_CONNECT_TIMEOUT_S = 1.0
_MAX_REPLY_BYTES = 4096
_MAX_FDS = 2
_FD_BYTES = 4


def tell(kind: str, rank: int, fields: str = "", reply_timeout_s: float = 0.0) -> list[int]:
    """Send one message, and wait for the reply when asked to.

    Args:
        kind: What it is: ``hello``, ``capture`` or ``exception``.
        rank: The rank of this process.
        fields: More fields, as the inside of a JSON object.
        reply_timeout_s: How long to wait for the reply; 0 does not wait.

    Returns:
        The file descriptors that came with the reply; none when nobody answers.
    """
    message = f'{{"version": {VERSION}, "type": "{kind}", "pid": {os.getpid()}, "rank": {rank}'
    message += f", {fields}}}\n" if fields else "}\n"
    try:
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    except OSError:
        return []
    try:
        sock.settimeout(_CONNECT_TIMEOUT_S)
        sock.connect(os.path.join(files.job_dir(), SUPERVISOR_SOCKET))
        sock.sendall(message.encode())
        if reply_timeout_s <= 0:
            return []
        sock.settimeout(reply_timeout_s)
        return _receive_fds(sock)
    except OSError:
        return []
    finally:
        sock.close()


def _receive_fds(sock: _socket.socket) -> list[int]:
    room = _socket.CMSG_SPACE(_MAX_FDS * _FD_BYTES)
    _, ancillary, _, _ = sock.recvmsg(_MAX_REPLY_BYTES, room)
    fds: list[int] = []
    for level, kind, payload in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            whole = len(payload) - len(payload) % _FD_BYTES
            fds += memoryview(payload[:whole]).cast("i")
    return fds
