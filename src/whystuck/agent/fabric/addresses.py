"""Where the socket for Kineto's clients lies, and which of their addresses may be answered.

A client compares the address that an answer comes from with what it expects, and **ends its
process** when they differ: it wants an abstract address when its own is one, and else a path that
begins with its ``KINETO_IPC_SOCKET_DIR``, letter by letter, and a slash. Who gave its folder as
``/tmp/x/`` or by a link would be killed by an answer from ``/tmp/x/dynolog``. Its own address shows
the spelling it uses, so only one that is spelt as ours is answered.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from whystuck.agent.agent_folder import FolderClaim, agent_folder
from whystuck.evidence.agent import CLIENT_PREFIX, FABRIC_SOCKET, RPC_SOCKET
from whystuck.evidence.errors import UsageError

# The kernel gives as much of it as it lets anybody have.
_SEND_BYTES: Final = 4 << 20
_MIN_AGE_S: Final = 10.0  # a client has made its file a moment before it can be connected to
_MAX_REAPED: Final = 1024

SO_TIMESTAMPNS: Final = 35  # not in Python's `socket`; the number of x86, ARM, POWER and RISC-V

Address = str | bytes


class FabricAddress(Protocol):
    """Where an endpoint listens.

    ``wanted`` is what clients are to have as their ``KINETO_IPC_SOCKET_DIR``, in words.
    """

    wanted: str

    def open(self) -> socket.socket:
        """Return a bound socket; raises UsageError or OSError when that cannot be."""

    def is_lost(self) -> bool:
        """Whether clients no longer reach the socket, because its file is gone."""

    def may_answer(self, client: Address) -> bool:
        """Whether an answer from here does a client no harm."""

    def is_gone(self, client: Address) -> bool:
        """Whether a client that lives can never be answered, because its file is gone."""

    def send(self, bound: socket.socket, answer: bytes, client: Address) -> None:
        """Answer a client without waiting; raises OSError when it cannot be reached."""

    def reap(self) -> int:
        """Remove what dead clients left; returns how many files that were."""

    def close(self) -> None:
        """Remove what `open` made."""


class PathAddress:
    """A socket in the folder of an agent, for jobs with ``KINETO_IPC_SOCKET_DIR`` (its path).

    The folder is made where it is missing. With ``is_shared`` users other than ours may write to
    the socket, and add theirs to the folder.
    """

    def __init__(
        self, folder: Path, *, claim: FolderClaim | None = None, is_shared: bool = False
    ) -> None:
        self.folder = folder
        self.wanted = f"{folder}, letter by letter"
        self._claim = claim
        self._is_shared = is_shared
        self._path = folder / FABRIC_SOCKET
        self._name = str(self._path)
        self._prefix = f"{folder}/"
        self._not_clients = frozenset({"", FABRIC_SOCKET, RPC_SOCKET, ".", ".."})
        self._file: os.stat_result | None = None

    def open(self) -> socket.socket:
        """Bind, in the place of a socket that nobody serves; raises UsageError or OSError."""
        if self._claim is None:
            agent_folder(self.folder, is_shared=self._is_shared)
        else:
            self._claim.renew()
        self._remove_stale()
        bound = _make_socket()
        try:
            # The file gets the mode of the socket, at once and without a change of the umask.
            os.fchmod(bound.fileno(), 0o600)
            bound.bind(str(self._path))
            if self._is_shared:
                self._path.chmod(0o666)
            self._file = self._path.lstat()
        except OSError:
            bound.close()
            raise
        return bound

    def is_lost(self) -> bool:
        """Whether another file, or none, lies where the socket was bound."""
        if self._file is None:
            return False
        with suppress(OSError):
            return not os.path.samestat(self._file, os.lstat(self._name))
        return True

    def may_answer(self, client: Address) -> bool:
        """Whether a client's socket lies in our folder, spelt as we spell it."""
        if not isinstance(client, str) or not client.startswith(self._prefix):
            return False
        name = client[len(self._prefix) :]
        return "/" not in name and name not in self._not_clients

    def is_gone(self, client: Address) -> bool:
        """Whether the file of a client's socket was removed."""
        return not os.path.lexists(client)

    def send(self, bound: socket.socket, answer: bytes, client: Address) -> None:
        """Answer a client; where other users share the folder, the socket itself and no link."""
        if not self._is_shared:
            bound.sendto(answer, socket.MSG_DONTWAIT, client)
            return
        file = os.open(client, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(file)
            if not stat.S_ISSOCK(status.st_mode) or status.st_nlink != 1:
                raise OSError(errno.ENOTSOCK, "another file lies in the place of its socket")
            bound.sendto(answer, socket.MSG_DONTWAIT, f"/proc/self/fd/{file}")
        finally:
            os.close(file)

    def reap(self) -> int:
        """Remove client sockets on which nobody listens; Kineto leaves them all behind."""
        num_reaped = 0
        with suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                if num_reaped >= _MAX_REAPED:
                    break
                if entry.name.startswith(CLIENT_PREFIX) and _is_dead_socket(entry):
                    with suppress(OSError):
                        os.unlink(entry.path)  # noqa: PTH108 - not worth a Path
                        num_reaped += 1
        return num_reaped

    def close(self) -> None:
        """Remove the socket's file, unless it is somebody else's by now."""
        if self._file is not None and not self.is_lost():
            with suppress(OSError):
                self._path.unlink()
        self._file = None

    def _remove_stale(self) -> None:
        try:
            mode = self._path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise UsageError(f"{self._path} is no socket", hint="remove it, or give another folder")
        if _is_served(self._path):
            raise UsageError(
                f"another daemon listens on {self._path}",
                hint="end it, or give this one a folder of its own",
            )
        self._path.unlink(missing_ok=True)


class AbstractAddress:
    """A name without a file, for jobs without ``KINETO_IPC_SOCKET_DIR``: Kineto's own default.

    It is seen in one network namespace, by every user: senders must be checked.
    """

    def __init__(self, name: str = FABRIC_SOCKET) -> None:
        self.name = name
        self.wanted = "unset"

    def open(self) -> socket.socket:
        """Bind; raises UsageError when another daemon has the name."""
        bound = _make_socket()
        try:
            # Kineto counts the NUL at the end to the name.
            bound.bind(b"\0" + os.fsencode(self.name) + b"\0")
        except OSError:
            bound.close()
            raise UsageError(
                f"another daemon listens on the abstract socket `{self.name}`",
                hint="end it, or lead jobs to a folder by KINETO_IPC_SOCKET_DIR",
            ) from None
        return bound

    def is_lost(self) -> bool:
        """Never: there is no file."""
        return False

    def may_answer(self, client: Address) -> bool:
        """Whether a client's address is abstract, too."""
        return isinstance(client, bytes) and client.startswith(b"\0")

    def is_gone(self, client: Address) -> bool:  # noqa: ARG002 - as FabricAddress has it
        """Never: a name lasts as long as its socket."""
        return False

    def send(self, bound: socket.socket, answer: bytes, client: Address) -> None:
        """Answer a client."""
        bound.sendto(answer, socket.MSG_DONTWAIT, client)

    def reap(self) -> int:
        """Nothing is left of abstract sockets."""
        return 0

    def close(self) -> None:
        """Nothing to remove."""


def _make_socket() -> socket.socket:
    """Return a socket that will know of each datagram who sent it and when."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        made.setblocking(False)  # noqa: FBT003 - its only form
        made.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        # Answers that a client leaves unread count here, too. Where systemd has started the machine
        # it may leave 512, more than the usual room has, and then nobody else could be answered.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        with suppress(OSError):
            made.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        made.close()
        raise
    return made


def _is_served(path: Path) -> bool:
    """Whether somebody has bound a socket's file; nothing is sent to it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
        asking.setblocking(False)  # noqa: FBT003 - its only form
        try:
            asking.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # such as a stream socket: somebody's, and not ours to remove
            return True
        return True


def _is_dead_socket(entry: os.DirEntry[str]) -> bool:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return False
    is_old = time.time() - status.st_mtime > _MIN_AGE_S
    return stat.S_ISSOCK(status.st_mode) and is_old and not _is_served(Path(entry.path))
