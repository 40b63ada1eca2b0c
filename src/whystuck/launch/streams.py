"""Pipes and terminals between the job and us, and the thread that empties them."""

from __future__ import annotations

import fcntl
import os
import pty
import selectors
import struct
import termios
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from whystuck.launch.logfile import LogFile

_CHUNK_BYTES = 1 << 16
# Unbuffered Python writes a line in pieces. We wait this long for the rest of it, so that lines of
# several ranks do not mix; a prompt or a progress bar is shown after that.
_REST_OF_LINE_S = 0.05
_MAX_REST_BYTES = 1 << 16


def open_channel(like_fd: int) -> tuple[int, int]:
    """Open (read end, write end): a terminal when ``like_fd`` is one, else a pipe."""
    if not os.isatty(like_fd):
        return os.pipe()
    master, slave = pty.openpty()
    attributes = termios.tcgetattr(slave)
    # The real terminal turns \n into \r\n; doing it twice would change what arrives.
    attributes[1] &= ~termios.OPOST
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    copy_window_size(like_fd, master)
    return master, slave


def copy_window_size(from_fd: int, to_fd: int) -> None:
    """Give one terminal the size of another."""
    try:
        size = fcntl.ioctl(from_fd, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
        fcntl.ioctl(to_fd, termios.TIOCSWINSZ, size)
    except OSError:
        return


def identify(fd: int) -> str:
    """Name the file behind a descriptor as the probe does, to see whether they share it."""
    status = os.fstat(fd)
    return f"{status.st_dev}:{status.st_ino}:{status.st_rdev}"


@dataclass
class _Channel:
    read_fd: int
    out_fd: int
    is_terminal: bool
    log: LogFile
    stream: str
    rest: bytes = b""
    rest_due_s: float = 0.0


@dataclass
class Pump:
    """Copies what the job writes to our own output, byte for byte, and to the logs by line."""

    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _wake: tuple[int, int] = field(default_factory=os.pipe)
    _open: int = 0
    _idle: threading.Event = field(default_factory=threading.Event)
    _rests: dict[int, _Channel] = field(default_factory=dict)

    def add(self, read_fd: int, out_fd: int, log: LogFile, stream: str) -> None:
        """Read ``read_fd`` from now on; its bytes go to ``out_fd`` (1 or 2)."""
        os.set_blocking(read_fd, False)
        channel = _Channel(read_fd, out_fd, os.isatty(read_fd), log, stream)
        with self._lock:
            self._open += 1
            self._idle.clear()
            self._selector.register(read_fd, selectors.EVENT_READ, channel)
        os.write(self._wake[1], b"+")

    def start(self) -> None:
        """Start the thread."""
        os.set_blocking(self._wake[0], False)
        self._selector.register(self._wake[0], selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, name="pump", daemon=True)
        self._thread.start()

    def resize(self) -> None:
        """Pass on the new size of our terminal."""
        with self._lock:
            keys = [key.data for key in self._selector.get_map().values() if key.data]
        for channel in keys:
            if channel.is_terminal:
                copy_window_size(channel.out_fd, channel.read_fd)

    def drain(self, timeout_s: float) -> None:
        """Wait until all writers are gone, or for ``timeout_s``, then stop."""
        with self._lock:
            empty = self._open == 0
        if not empty:
            self._idle.wait(timeout_s)
        self._stop.set()
        os.write(self._wake[1], b"x")
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            events = self._selector.select(_REST_OF_LINE_S if self._rests else None)
            for key, _ in events:
                if key.data is None:
                    self._clear_wake()
                else:
                    self._copy(key.data)
            now_s = time.monotonic()
            for channel in [one for one in self._rests.values() if one.rest_due_s <= now_s]:
                self._write_rest(channel)
            if self._stop.is_set() and not any(key.data for key, _ in events):
                for channel in list(self._rests.values()):
                    self._write_rest(channel)
                return

    def _clear_wake(self) -> None:
        try:
            os.read(self._wake[0], 4096)
        except BlockingIOError:
            return

    def _copy(self, channel: _Channel) -> None:
        try:
            data = os.read(channel.read_fd, _CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:  # the last writer of a terminal is gone
            data = b""
        if not data:
            self._close(channel)
            return
        channel.log.write(channel.stream, data)
        text = channel.rest + data
        end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        if len(text) - end > _MAX_REST_BYTES:
            end = len(text)
        if not channel.rest or end:
            channel.rest_due_s = time.monotonic() + _REST_OF_LINE_S
        channel.rest = text[end:]
        self._note_rest(channel)
        if end and not self._write(channel.out_fd, text[:end]):
            self._close(channel)

    def _write_rest(self, channel: _Channel) -> None:
        rest, channel.rest = channel.rest, b""
        self._note_rest(channel)
        if not self._write(channel.out_fd, rest):
            self._close(channel)

    def _note_rest(self, channel: _Channel) -> None:
        if channel.rest:
            self._rests[channel.read_fd] = channel
        else:
            self._rests.pop(channel.read_fd, None)

    def _close(self, channel: _Channel) -> None:
        if channel.rest:
            self._write(channel.out_fd, channel.rest)
            channel.rest = b""
            self._note_rest(channel)
        with self._lock:
            self._selector.unregister(channel.read_fd)
            self._open -= 1
            if self._open == 0:
                self._idle.set()
        # The job gets SIGPIPE when our own reader is gone, as it would without us.
        os.close(channel.read_fd)
        channel.log.flush()

    @staticmethod
    def _write(fd: int, data: bytes) -> bool:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:
                selector = selectors.SelectSelector()
                selector.register(fd, selectors.EVENT_WRITE)
                selector.select()
                selector.close()
            except OSError:
                return False
        return True


def rank_log_path(round_dir: Path, node: str, rank: int) -> Path:
    """Return where the log of a rank lies."""
    return round_dir / node / f"rank-{rank}" / "log.txt"
