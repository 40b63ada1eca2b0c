"""Who connects to a socket of the probe: its own user and root, and nobody else."""

from __future__ import annotations

import os
import socket
import struct

_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid


def accept(server: socket.socket) -> socket.socket | None:
    """Take the next connection; None when it is another user's, which is closed. Raises OSError.

    The folder of the job keeps others out, too; this holds where somebody has opened it.
    """
    connection, _ = server.accept()
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(raw)[1] in (os.getuid(), 0):
            return connection
    except OSError:
        pass
    connection.close()
    return None
