"""The program of a `UserProcess`: it takes on a user's rights for good, then serves its parent.

Its arguments are the folder of our package, the descriptors of a socket and of the root of its
paths, and the numbers of user, group and other groups. Each request is a line of JSON on the
socket, each answer too; bytes follow those that have ``size``.
"""

from __future__ import annotations

import ctypes
import errno
import io
import json
import os
import resource
import secrets
import socket
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from whystuck.guarded.folders import FOLDER_FLAGS, make_file, open_file, remove_same
from whystuck.guarded.opening import GuardError, open_below

if TYPE_CHECKING:
    from collections.abc import Callable

_NO_NEW_PRIVS: Final = 38
_CAPABILITY_VERSION: Final = 0x20080522
_MAX_LINE: Final = 1 << 16
_MAX_PIECE: Final = 8 << 20


def main() -> None:
    """Serve until the parent closes the socket."""
    link, root, uid, gid = (int(word) for word in sys.argv[2:6])
    groups = [int(word) for word in sys.argv[6].split(",") if word]
    with socket.socket(fileno=link) as connection, connection.makefile("rwb") as stream:
        try:
            take_rights(uid, gid, groups)
        except OSError as error:
            text = f"the rights of uid {uid} cannot be taken on: {error.strerror or error}"
            stream.write(_encode({"error": errno.EPERM, "text": text, "is_guard": True}))
            return
        Worker(stream, root, uid).serve()


def take_rights(uid: int, gid: int, groups: list[int]) -> None:
    """Become a user, without a way back, and give up all capabilities; raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() == 0:
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    if libc.capset(header, (ctypes.c_uint32 * 6)()) != 0:
        raise OSError(ctypes.get_errno(), "capabilities cannot be given up")
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "more rights cannot be ruled out")
    if os.getresuid() != (uid,) * 3 or os.geteuid() == 0 != uid:
        raise PermissionError(None, "it has the rights of another user")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(0o077)
    os.chdir("/")


def _encode(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode() + b"\n"


class Worker:
    """Does what it is asked for; one file is open for reading, and one for writing."""

    def __init__(self, stream: io.BufferedRWPair, root: int, uid: int) -> None:
        self._stream, self._root, self._uid = stream, root, uid
        self._folder = self._source = self._target = -1
        self._name = self._part = ""
        self._status: os.stat_result | None = None

    def serve(self) -> None:
        """Answer requests until there are no more."""
        work: dict[str, Callable[..., dict[str, Any]]] = {
            "open": self._open,
            "look into": self._look_into,
            "close": self._close,
            "remove": self._remove,
            "folder": self._make_folder,
            "create": self._create,
            "write": self._write,
            "commit": self._commit,
        }
        while line := self._stream.readline(_MAX_LINE):
            fields = json.loads(line)
            name = fields.pop("do")
            try:
                if name == "read":
                    data = os.pread(self._source, min(fields["size"], _MAX_PIECE), fields["offset"])
                    self._tell({"size": len(data)})
                    self._stream.write(data)
                else:
                    self._tell(work[name](**fields))
            except GuardError as error:
                self._tell({"error": error.errno, "text": str(error), "is_guard": True})
            except OSError as error:
                self._tell({"error": error.errno or 0, "text": error.strerror or str(error)})
            self._stream.flush()

    def _tell(self, fields: dict[str, Any]) -> None:
        self._stream.write(_encode(fields))

    def _open(self, folder: str, name: str, same: list[int]) -> dict[str, Any]:
        """Open a file of the user for reading: the one with this device and number."""
        self._folder = open_below(self._root, folder, FOLDER_FLAGS)
        self._name = name
        self._source = open_file(self._folder, name, uid=self._uid)
        self._status = os.fstat(self._source)
        if [self._status.st_dev, self._status.st_ino] != same:
            raise GuardError("another file has come to its place")
        return {"size_bytes": self._status.st_size}

    def _look_into(self, path: str, max_bytes: int) -> dict[str, Any]:
        """Open any plain file that the user may read; his links are followed."""
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
        self._source = open_below(self._root, path, flags, follows_links=True)
        status = os.fstat(self._source)
        if not stat.S_ISREG(status.st_mode) or status.st_size > max_bytes:
            raise GuardError("it is no regular file of a fit size")
        return {"size_bytes": status.st_size}

    def _close(self) -> dict[str, Any]:
        os.close(self._source)
        return {}

    def _remove(self) -> dict[str, Any]:
        is_gone = self._status is not None and remove_same(self._folder, self._name, self._status)
        return {"is_gone": is_gone}

    def _make_folder(self, folder: str) -> dict[str, Any]:
        """Make a folder and those above it, below the root."""
        here = open_below(self._root, "/", FOLDER_FLAGS)
        for part in [one for one in folder.split("/") if one not in {"", "."}]:
            try:
                below = open_below(here, part, FOLDER_FLAGS)
            except FileNotFoundError:
                os.mkdir(part, 0o700, dir_fd=here)
                below = open_below(here, part, FOLDER_FLAGS)
            os.close(here)
            here = below
        os.close(here)
        return {}

    def _create(self, folder: str, name: str) -> dict[str, Any]:
        """Begin a file in a folder, which is made; here the user's own links may be followed."""
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._name, self._part = name, f".{name}.{secrets.token_hex(4)}"
        self._target = make_file(self._folder, self._part)
        return {}

    def _write(self, size: int) -> dict[str, Any]:
        data = memoryview(self._stream.read(size))
        while data:
            data = data[os.write(self._target, data) :]
        return {}

    def _commit(self, is_kept: bool) -> dict[str, Any]:  # noqa: FBT001 - a field of the request
        """End the file: it gets its name, or is removed."""
        if is_kept:
            os.fsync(self._target)
            os.rename(self._part, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        else:
            os.unlink(self._part, dir_fd=self._folder)
        return {}


__all__ = ["main"]
