"""The supervisor's ear: a unix socket on which the probes of this job speak."""

from __future__ import annotations

import array
import json
import os
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whystuck.launch.output.rank_outputs import LAUNCHER_CHANNELS, JobOutputs
from whystuck.launch.processes.rank_table import RankTable

_MAX_MESSAGE_BYTES = 65536
# Of the messages of probes, as `whystuck.probe.wire` sends them.
VERSION = 1
# What a message that is not one of ours can end in; a deep one ends in RecursionError.
_UNUSABLE = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
)


@dataclass
class Listener:
    """Answers ``hello``, ``capture`` and ``exception``.

    An ``exception`` is not answered before :meth:`release` is called: the rank waits so long,
    for some seconds at most, and the scene stays as it is.
    """

    job_dir: Path
    table: RankTable
    outputs: JobOutputs
    on_exception: Callable[[], None]
    _held: list[socket.socket] = field(default_factory=list)
    _released: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _socket: socket.socket = field(
        default_factory=lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    )

    def start(self) -> None:
        """Bind the socket now, and serve it in a thread."""
        self._socket.bind(str(self.job_dir / "supervisor.sock"))
        self._socket.listen(256)
        threading.Thread(target=self._run, name="listener", daemon=True).start()

    def release(self) -> None:
        """Let the ranks go that wait, and all that come later."""
        with self._lock:
            self._released = True
            held, self._held = self._held, []
        for connection in held:
            _reply(connection, {"ok": True})
            connection.close()

    def hold_again(self) -> None:
        """Hold ranks that raise from now on: the launcher has started them anew."""
        with self._lock:
            self._released = False

    def stop(self) -> None:
        """Stop listening."""
        self.release()
        self._socket.close()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            try:
                self._serve(connection)
            except _UNUSABLE:
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(1.0)
        peer_pid, peer_uid = _peer(connection)
        message: dict[str, Any] = json.loads(connection.recv(_MAX_MESSAGE_BYTES))
        # A process that we cannot see has no pid here, and its own may be that of another one.
        is_usable = peer_pid > 0 and int(message.get("version", VERSION)) == VERSION
        if peer_uid not in (os.getuid(), 0) or not is_usable:
            connection.close()
            return
        kind, rank = message["type"], int(message["rank"])
        # The probe tells its number in its own PID namespace, by which it names its files.
        pid, file_pid = peer_pid, int(message["pid"])
        if kind == "exception":
            self.table.note_failing(pid)
            with self._lock:
                if not self._released:
                    self._held.append(connection)
                    self.on_exception()
                    return
            _reply(connection, {"ok": True})
        elif kind == "hello":
            self._note_hello(message, pid, file_pid, rank)
        elif kind == "capture":
            # Known from here on, so that its log is that of the right attempt.
            self.table.add(rank=rank, pid=pid, file_pid=file_pid, world_size=0, is_member=False)
            self._give_streams(connection, pid, [int(fd) for fd in message["streams"]])
        connection.close()

    def _note_hello(self, message: dict[str, Any], pid: int, file_pid: int, rank: int) -> None:
        self.table.add(
            rank=rank,
            pid=pid,
            file_pid=file_pid,
            world_size=int(message.get("world_size", 0)),
            is_member=bool(message.get("is_member")),
        )
        self.table.torch_version = str(message.get("torch", "")) or self.table.torch_version
        self.table.python_version = str(message.get("python", "")) or self.table.python_version

    def _give_streams(self, connection: socket.socket, pid: int, streams: list[int]) -> None:
        """Send ends of the same kind as our outputs, one for each stream asked for."""
        wanted = [fd for fd in streams if fd in LAUNCHER_CHANNELS]
        ends = self.outputs.open_channels(pid, wanted)
        try:
            connection.sendmsg(
                [json.dumps({"ok": True}).encode()],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", ends))],
            )
        finally:
            # Without a taker the read ends come to their end here.
            for end in set(ends):
                os.close(end)


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Return pid and user of the other side, as they are in our namespaces."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, _ = struct.unpack("3i", credentials)
    return int(pid), int(uid)


def _reply(connection: socket.socket, message: dict[str, object]) -> None:
    try:
        connection.sendall(json.dumps(message).encode())
    except OSError:
        return
