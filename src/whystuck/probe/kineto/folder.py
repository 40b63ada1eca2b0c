"""The folder of an agent, as a process that polls it sees it."""

from __future__ import annotations

import os
import socket
import stat

# Kineto writes its own name behind the path, into 108 bytes, and looks at no length.
MAX_FOLDER_BYTES = 54
SOCKET_NAME = "dynolog"
SERVED, ABSENT, FOREIGN = "served", "absent", "foreign"


def is_ours(folder: str) -> bool:
    """Tell whether a folder may be polled: what is answered there makes this process write files.

    It must be a folder of this user or of root, and its path must be one that Kineto can take.
    """
    if not os.path.isabs(folder) or len(os.fsencode(folder)) > MAX_FOLDER_BYTES:
        return False
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and _is_trusted(status)


def tend(folder: str) -> str:
    """Look who serves a folder, and remove the socket of an agent that was killed.

    Kineto tries ten seconds to send to a socket that nobody reads, at the exit of the job too; one
    that is not there costs it nothing.

    Returns:
        `SERVED`, `ABSENT`, or `FOREIGN` when folder or socket belong to somebody else.
    """
    try:
        if not _is_trusted(os.lstat(folder)):
            return FOREIGN
        path = os.path.join(folder, SOCKET_NAME)
        found = os.lstat(path)
        if not _is_trusted(found):
            return FOREIGN
        if _is_read(path):
            return SERVED
        if os.path.samestat(found, os.lstat(path)):
            os.unlink(path)
    except OSError:
        return ABSENT
    return ABSENT


def is_mark(path: str) -> bool:
    """Return whether an agent made the file: others may make files in a folder of root."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and _is_trusted(status)


def open_mark(path: str) -> int:
    """Open a file that an agent made; raises OSError for any other that lies there."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(file)
    if not (stat.S_ISREG(status.st_mode) and _is_trusted(status)):
        os.close(file)
        raise PermissionError(path)
    return file


def _is_trusted(status: os.stat_result) -> bool:
    return status.st_uid in {os.geteuid(), 0}


def _is_read(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        try:
            one.connect(path)
        except ConnectionRefusedError:
            return False
    return True
