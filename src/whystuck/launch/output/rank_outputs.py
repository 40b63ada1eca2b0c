"""What the job has written: from the relay into the logs, in threads that nobody waits for."""

from __future__ import annotations

import array
import os
import queue
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from whystuck.launch.output.logfile import LogFile
from whystuck.launch.output.relay import (
    ADD,
    CLOSED,
    DATA,
    DRAINED,
    DROPPED,
    HEADER,
    MAX_SAID_BYTES,
    TAKEN,
)
from whystuck.launch.output.streams import OutputKinds

LAUNCHER_CHANNELS = {1: "out", 2: "err"}
"""The channels of the command itself: their numbers are those of its streams."""

_FIRST_RANK_CHANNEL = 3
_MAX_MESSAGE_BYTES = 1 << 17
_MAX_WAITING_BYTES = 16 << 20
# The relay takes a channel within a millisecond; where who reads the output is paused, or the
# machine has too much to do, the ranks start all the same.
_MAX_TAKE_S = 0.25


class RelayEnd:
    """The keeper's end of the socket to the relay; nothing sent to it is waited for."""

    def __init__(self, end: socket.socket) -> None:
        """Take the end."""
        end.settimeout(None)
        self._socket = end

    def say(self, text: str) -> None:
        """Print for the user, on the job's stderr: no process that may hang keeps that open."""
        data = text.encode(errors="backslashreplace")
        for start in range(0, len(data), MAX_SAID_BYTES):
            self._send(ADD.pack(0, 2) + data[start : start + MAX_SAID_BYTES], [])

    def send_channel(self, number: int, target: int, read_fd: int) -> bool:
        """Let the relay read a channel and write to the output ``target``; return whether it is."""
        return self._send(ADD.pack(number, target), [read_fd])

    def receive(self) -> bytes:
        """Wait for a message; return nothing when the relay is gone."""
        try:
            return self._socket.recv(_MAX_MESSAGE_BYTES)
        except OSError:
            return b""

    def _send(self, message: bytes, fds: list[int]) -> bool:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            # Not `socket.send_fds`, which drops the flags.
            self._socket.sendmsg([message], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            return False
        return True


@dataclass
class JobOutputs:
    """Asks the relay for channels, and writes its copies to the logs.

    What arrives is in the memory of its log at once, and in its file when that can be written.

    ``log_of_process`` returns the log of a rank by its pid, ``note`` gets a sentence for the log of
    the job. A disk that hangs holds up the writer's thread only: what comes meanwhile is dropped
    above 16 MiB, and counted.
    """

    kinds: OutputKinds
    relay: RelayEnd
    launcher_log: LogFile
    log_of_process: Callable[[int], LogFile]
    note: Callable[[str], None]
    _next_channel: int = _FIRST_RANK_CHANNEL
    _owners: dict[int, tuple[int, str]] = field(default_factory=dict)
    _waiting: queue.SimpleQueue[tuple[LogFile | None, bytes]] = field(
        default_factory=queue.SimpleQueue
    )
    _untaken: set[int] = field(default_factory=set)
    _is_behind: bool = False
    _on_taken: threading.Condition = field(default_factory=threading.Condition)
    _waiting_bytes: int = 0
    _dropped_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_heard: threading.Event = field(default_factory=threading.Event)
    _is_drained: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Start the threads."""
        threading.Thread(target=self._receive, name="outputs", daemon=True).start()
        threading.Thread(target=self._write_for_ever, name="logs", daemon=True).start()

    def open_channels(self, pid: int, streams: list[int]) -> list[int]:
        """Open a channel of a rank for each stream (1 or 2); return the ends that it writes to.

        The relay reads them before that: a rank may print and be gone the moment after, and the
        command that started it then speaks of it. Returns nothing when no relay takes them; the
        caller closes what it gets.
        """
        by_target: dict[int, int] = {}
        for stream in streams:
            target = self.kinds.target_of(stream)
            if target not in by_target:
                write_fd = self._open(pid, target, LAUNCHER_CHANNELS[stream])
                if write_fd is None:
                    for opened in by_target.values():
                        os.close(opened)
                    return []
                by_target[target] = write_fd
        self._wait_until_taken()
        return [by_target[self.kinds.target_of(stream)] for stream in streams]

    def _open(self, pid: int, target: int, stream: str) -> int | None:
        with self._lock:
            number, self._next_channel = self._next_channel, self._next_channel + 1
            self._owners[number] = pid, stream
        read_fd, write_fd = self.kinds.open_channel(target)
        with self._on_taken:
            self._untaken.add(number)
        is_taken = self.relay.send_channel(number, target, read_fd)
        os.close(read_fd)
        if is_taken:
            return write_fd
        with self._on_taken:
            self._untaken.discard(number)
        os.close(write_fd)
        return None

    def _wait_until_taken(self) -> None:
        """Wait until the relay reads all channels; not again where it has not come to the last."""
        with self._on_taken:
            timeout_s = 0.0 if self._is_behind else _MAX_TAKE_S
            self._is_behind = not self._on_taken.wait_for(lambda: not self._untaken, timeout_s)

    def wait_until_drained(self, timeout_s: float, *, hangs: bool = False) -> bool:
        """Wait until all that the job wrote before its end is in the logs, or for ``timeout_s``.

        Where their disk ``hangs``, it is waited for until all is in memory. Returns whether the
        files have it.
        """
        self._is_heard.wait(timeout_s)
        return self._is_drained.wait(0.0 if hangs else timeout_s)

    def _receive(self) -> None:
        while len(message := self.relay.receive()) >= HEADER.size:
            channel, kind = HEADER.unpack_from(message)
            with suppress(KeyError):
                self._take(channel, kind, message[HEADER.size :])
        self._end()

    def _take(self, channel: int, kind: int, data: bytes) -> None:
        if kind == DRAINED:
            self._end()
        elif kind == TAKEN:
            with self._on_taken:
                self._untaken.discard(channel)
                self._is_behind = self._is_behind and bool(self._untaken)
                self._on_taken.notify_all()
        elif kind == DROPPED:
            with self._lock:
                self._dropped_bytes += int(data)
        else:
            log, stream = self._find(channel)
            self._put(log, log.take(stream, data) if kind == DATA else log.take_rest())
            if kind == CLOSED and channel >= _FIRST_RANK_CHANNEL:
                self._owners.pop(channel, None)

    def _find(self, channel: int) -> tuple[LogFile, str]:
        """Return the log of a channel, and its stream; raises KeyError."""
        if channel in LAUNCHER_CHANNELS:
            return self.launcher_log, LAUNCHER_CHANNELS[channel]
        pid, stream = self._owners[channel]
        return self.log_of_process(pid), stream

    def _put(self, log: LogFile, text: bytes) -> None:
        with self._lock:
            if self._waiting_bytes + len(text) > _MAX_WAITING_BYTES:
                self._dropped_bytes += len(text)
                return
            self._waiting_bytes += len(text)
        self._waiting.put((log, text))

    def _end(self) -> None:
        """All that was written before the end of the command has arrived."""
        self._is_heard.set()
        self._waiting.put((None, b""))

    def _write_for_ever(self) -> None:
        while True:
            log, text = self._waiting.get()
            self._note_dropped()
            if log is None:
                self._is_drained.set()
                continue
            with suppress(OSError):
                log.put(text)
            with self._lock:
                self._waiting_bytes -= len(text)

    def _note_dropped(self) -> None:
        with self._lock:
            count, self._dropped_bytes = self._dropped_bytes, 0
        if count:
            self.note(f"{count} bytes of output are not in the logs: the disk was too slow.")
