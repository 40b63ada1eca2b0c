"""Pass on what the job writes: a small program that opens no file and outlives all the others.

It reads what the job writes, writes to the two outputs that it has inherited, and sends copies to
the process that keeps the logs. A copy that is not taken is dropped and counted: output never waits
for our files. It ends when nobody can write to the job's outputs any more, and by no signal.

Started as a script, by ``python -I -S relay.py CONTROL_FD LOG_FD [READ_FD:OUT_FD:ID]...``.
"""

from __future__ import annotations

import collections
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import termios
import threading
import time
from contextlib import suppress

HEADER = struct.Struct("<IB")
"""Of a message to the keeper of the logs: number of the channel, and kind."""
DATA, CLOSED, DRAINED, DROPPED, TAKEN = range(5)
ADD = struct.Struct("<II")
"""Of a message from the keeper: channel and output; with a descriptor, or before a text."""
MAX_SAID_BYTES = 1 << 15

_CHUNK_BYTES = 1 << 16
# Unbuffered Python writes a line in pieces. The rest of it is waited for, so that lines of several
# ranks do not mix; a prompt or a progress bar is shown after that.
_REST_OF_LINE_S = 0.05
_MAX_REST_BYTES = 1 << 16
_MAX_WAITING_BYTES = 8 << 20
# A pipe holds 1 MiB at most: one round reads all that was in it when the round began.
_MAX_ROUND_BYTES = 1 << 20


class Copies:
    """What waits to be sent to the keeper of the logs, of bounded size."""

    def __init__(self, end: socket.socket, wake: Wake) -> None:
        self._socket = end
        self._wake = wake
        self._lock = threading.Lock()
        self.waiting: collections.deque[bytes] = collections.deque()
        self._waiting_bytes = 0
        self._dropped_bytes = 0
        self.is_gone = False

    def put(self, channel: int, kind: int, data: bytes = b"") -> None:
        """Send soon, or never when too much waits."""
        with self._lock:
            if self.is_gone:
                return
            if kind == DATA and self._waiting_bytes + len(data) > _MAX_WAITING_BYTES:
                self._dropped_bytes += len(data)
                return
            if self._dropped_bytes:
                dropped, self._dropped_bytes = self._dropped_bytes, 0
                self._append(HEADER.pack(0, DROPPED) + str(dropped).encode())
            self._append(HEADER.pack(channel, kind) + data)
        self._wake.set()

    def _append(self, message: bytes) -> None:
        self.waiting.append(message)
        self._waiting_bytes += len(message)

    def send(self) -> None:
        """Send what the socket takes now."""
        while self.waiting:
            try:
                self._socket.send(self.waiting[0], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError:
                self.give_up()
            else:
                with self._lock:
                    self._waiting_bytes -= len(self.waiting.popleft())

    def give_up(self) -> None:
        """Nobody keeps logs any more."""
        with self._lock:
            self.is_gone = True
            self.waiting.clear()


class Wake:
    """Wakes a thread that polls."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def set(self) -> None:
        """Wake it, once for all calls until it looks."""
        os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """Take what has woken it."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)


class Channel:
    """One pipe or terminal that the job writes to."""

    def __init__(self, read_fd: int, number: int, *, is_first: bool) -> None:
        os.set_blocking(read_fd, False)
        self.read_fd = read_fd
        self.number = number
        self.is_first = is_first  # what the command was given itself; the others are of ranks
        self.rest = b""
        self.due_s = 0.0


class Output(threading.Thread):
    """One of our outputs, and all channels that are written to it."""

    def __init__(self, fd: int, copies: Copies, on_change: Wake) -> None:
        super().__init__(daemon=True)
        self._fd = fd
        self._copies = copies
        self._on_change = on_change
        self._wake = Wake()
        self._lock = threading.Lock()
        self._new: list[Channel] = []
        self._said: list[bytes] = []
        self._channels: dict[int, Channel] = {}
        self._poll = select.poll()
        self._poll.register(self._wake.fd, select.POLLIN)
        self._had_first = self._is_broken = False
        self._wants_drain = self.is_drained = False

    def add(self, channel: Channel) -> None:
        """Read a channel from now on."""
        with self._lock:
            self._new.append(channel)
        self._wake.set()

    def say(self, text: bytes) -> None:
        """Write a text of whystuck's own, after what the job has written until now."""
        with self._lock:
            self._said.append(text)
        self._wake.set()

    def is_empty(self) -> bool:
        """Return whether nobody can write to it any more."""
        with self._lock:
            return not (self._new or self._channels or self._said)

    def close_when_done(self) -> None:
        """Let who reads our stdout see its end; stderr is whystuck's own, too.

        All channels must be taken: a command that is a rank has one before it leaves the first.
        """
        if self._fd == 1 and self._had_first and self.is_empty():
            os.dup2(self._wake.fd, self._fd)
            self._had_first = False

    def drain(self) -> None:
        """Pass on all that was written until now; ``is_drained`` says when that is done."""
        self.is_drained, self._wants_drain = False, True
        self._wake.set()

    def resize(self) -> None:
        """Give the terminals of ranks the size of ours."""
        for read_fd in list(self._channels):
            _copy_window_size(self._fd, read_fd)

    def run(self) -> None:
        """Copy for ever; the process ends without asking."""
        while True:
            held = any(channel.rest for channel in self._channels.values())
            ready = {fd for fd, _ in self._poll.poll(_REST_OF_LINE_S * 1000 if held else None)}
            if self._wake.fd in ready:
                self._wake.clear()
                self._take_new()
            # What ranks wrote before the command spoke of them comes before it.
            found = [self._channels[fd] for fd in ready if fd in self._channels]
            for channel in sorted(found, key=lambda one: one.is_first):
                if channel.read_fd in self._channels:
                    self._copy(channel)
            self._write_due(time.monotonic())
            self._write_said()
            if self._wants_drain:
                self._drain_all()

    def _take_new(self) -> None:
        # The command spoke before it started the rank, and a rank before it had ended itself.
        for channel in sorted(self._channels.values(), key=lambda one: one.is_first):
            self._read_all(channel)
        with self._lock:
            new, self._new = self._new, []
            self._channels.update((one.read_fd, one) for one in new)
        for channel in new:
            self._had_first = self._had_first or channel.is_first
            _copy_window_size(self._fd, channel.read_fd)
            self._poll.register(channel.read_fd, select.POLLIN)
            if not channel.is_first:  # what it writes comes before what the command says later
                self._copies.put(channel.number, TAKEN)
            if self._is_broken:
                self._close(channel)

    def _write_said(self) -> None:
        while self._said:
            self._write(self._said[0])
            with self._lock:
                del self._said[0]
            self._on_change.set()

    def _drain_all(self) -> None:
        for channel in sorted(self._channels.values(), key=lambda one: one.is_first):
            self._read_all(channel)
        self._write_due(float("inf"))
        self._wants_drain, self.is_drained = False, True
        self._on_change.set()

    def _read_all(self, channel: Channel) -> None:
        left_bytes = _MAX_ROUND_BYTES
        while left_bytes > 0 and channel.read_fd in self._channels:
            left_bytes -= self._copy(channel) or left_bytes

    def _copy(self, channel: Channel) -> int:
        """Copy what one read gives; return how many bytes that were."""
        try:
            data = os.read(channel.read_fd, _CHUNK_BYTES)
        except BlockingIOError:
            return 0
        except OSError:  # the last writer of a terminal is gone
            data = b""
        if not data:
            self._close(channel)
            return 0
        if channel.is_first:
            for other in [one for one in self._channels.values() if not one.is_first]:
                self._read_all(other)
        self._copies.put(channel.number, DATA, data)
        text = channel.rest + data
        end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        if len(text) - end > _MAX_REST_BYTES:
            end = len(text)
        if not channel.rest or end:
            channel.due_s = time.monotonic() + _REST_OF_LINE_S
        channel.rest = text[end:]
        self._write(text[:end])
        return len(data)

    def _write_due(self, now_s: float) -> None:
        for channel in list(self._channels.values()):
            if channel.rest and channel.due_s <= now_s:
                self._write(channel.rest)
                channel.rest = b""

    def _close(self, channel: Channel) -> None:
        self._write(channel.rest)
        if self._channels.pop(channel.read_fd, None) is None:
            return
        self._poll.unregister(channel.read_fd)
        os.close(channel.read_fd)
        self._copies.put(channel.number, CLOSED)
        self._on_change.set()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self._is_broken:
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:
                select.select([], [self._fd], [])
            except OSError:
                # The job's next write fails, as it would without us.
                self._is_broken = True
                for channel in list(self._channels.values()):
                    channel.rest = b""
                    self._close(channel)


class Relay:
    """The main thread: what is asked of us, and the copies that wait."""

    def __init__(self, control_fd: int, log_fd: int) -> None:
        self._control: socket.socket | None = socket.socket(fileno=control_fd)
        self._log: socket.socket | None = socket.socket(fileno=log_fd)
        self._log.settimeout(0)
        self._wake = Wake()
        self._copies = Copies(self._log, self._wake)
        self._outputs = {fd: Output(fd, self._copies, self._wake) for fd in (1, 2)}
        self._is_draining = False

    def run(self, channels: list[str]) -> None:
        """Serve until nobody can write to the job's outputs, and nobody asks for more."""
        for text in channels:
            read_fd, out_fd, number = map(int, text.split(":"))
            self._outputs[out_fd].add(Channel(read_fd, number, is_first=True))
        for output in self._outputs.values():
            output.start()
        while self._control or not all(output.is_empty() for output in self._outputs.values()):
            self._wait()
            if self._is_draining and all(one.is_drained for one in self._outputs.values()):
                self._is_draining = False
                self._copies.put(0, DRAINED)
                self._copies.send()
                self._answer(b"d")
        self._flush_copies()

    def _wait(self) -> None:
        poller = select.poll()
        poller.register(self._wake.fd, select.POLLIN)
        if self._control:
            poller.register(self._control, select.POLLIN)
        if self._log:
            more = select.POLLOUT if self._copies.waiting else 0
            poller.register(self._log, select.POLLIN | more)
        ready = {fd for fd, _ in poller.poll()}
        if self._wake.fd in ready:
            self._wake.clear()
        # A rank's channel is sent to us before the rank can write to it, and so before the end.
        while self._log and self._take_channel(self._log):
            pass
        for output in self._outputs.values():
            output.close_when_done()
        if self._control and self._control.fileno() in ready:
            self._obey(self._control)
        self._copies.send()

    def _obey(self, control: socket.socket) -> None:
        asked = b""
        with suppress(OSError):
            asked = control.recv(16)
        if not asked:
            control.close()
            self._control = None
        elif asked == b"e":
            self._is_draining = True
            for output in self._outputs.values():
                output.drain()
        elif asked == b"a":
            self._answer(asked)
        elif asked == b"w":
            for output in self._outputs.values():
                output.resize()

    def _answer(self, text: bytes) -> None:
        with suppress(OSError):
            if self._control:
                self._control.send(text, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def _take_channel(self, log: socket.socket) -> bool:
        """Take one new channel; return whether there may be more."""
        try:
            message, fds, _, _ = socket.recv_fds(log, ADD.size + MAX_SAID_BYTES, 1)
        except BlockingIOError:
            return False
        except OSError:
            message, fds = b"", []
        if not message:
            self._copies.give_up()
            log.close()
            self._log = None
            return False
        number, out_fd = ADD.unpack_from(message)
        if fds:
            self._outputs[out_fd].add(Channel(fds[0], number, is_first=False))
        else:
            self._outputs[out_fd].say(message[ADD.size :])
        return True

    def _flush_copies(self) -> None:
        deadline_s = time.monotonic() + 5.0
        while self._log and self._copies.waiting and time.monotonic() < deadline_s:
            poller = select.poll()
            poller.register(self._log, select.POLLOUT)
            poller.poll(100)
            self._copies.send()


def _copy_window_size(from_fd: int, to_fd: int) -> None:
    with suppress(OSError):
        size = fcntl.ioctl(from_fd, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
        fcntl.ioctl(to_fd, termios.TIOCSWINSZ, size)


def main(arguments: list[str]) -> None:
    """Relay until the end; a fault of ours is never printed between the lines of the job."""
    threading.excepthook = lambda _: None
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    Relay(int(arguments[0]), int(arguments[1])).run(arguments[2:])


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    finally:
        # Threads of ours may wait for a reader that never comes back.
        os._exit(0)
