"""A small agent in a thread: it hears Kineto's polls, and answers one with a wish for a trace."""

from __future__ import annotations

import queue
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

HEAD = struct.Struct("@N32s")
BODY = struct.Struct("@iiq")
WAIT_S = 240.0


class Fabric:
    """Serves ``folder/dynolog`` until it is closed or killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "dynolog"
        self.polls: list[tuple[int, int]] = []
        self.replies: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / "kineto.conf").write_text("ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n")
        self._ends = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.path.unlink(missing_ok=True)
        self._socket.bind(str(self.path))
        self._socket.settimeout(0.05)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def ask(self, *lines: str, file: Path) -> None:
        """Answer the next poll of a process that is not busy with a request."""
        text = [f"ACTIVITIES_LOG_FILE={file}", "ACTIVITIES_WARMUP_PERIOD_SECS=0", *lines]
        self.replies.put("\n".join([*text, ""]).encode())

    def ask_until(self, folder: Path, *lines: str, name: str) -> int:
        """Ask again and again until a trace is there; return how many times it took."""
        for asked in range(1, 7):
            self.ask(*lines, file=folder / f"{name}-{asked}.json")
            with suppress(AssertionError):
                wait_until(lambda: [*folder.glob(f"{name}-*.json")], WAIT_S / 6)
                return asked
        raise AssertionError(f"no trace came; the last polls: {self.polls[-20:]}")

    def kill(self) -> None:
        """Stop reading and leave the socket's file behind, as a process that is killed does."""
        self._ends = True
        self._thread.join()
        self._socket.close()

    def wait_for_polls(self, count: int) -> None:
        """Wait until so many polls have come from now on."""
        wanted = len(self.polls) + count
        wait_until(lambda: len(self.polls) >= wanted)

    def _run(self) -> None:
        while not self._ends:
            try:
                data, address = self._socket.recvfrom(1 << 16)
            except TimeoutError:
                continue
            wants, count, _ = BODY.unpack_from(data, HEAD.size)
            pid = struct.unpack_from(f"@{count}i", data, HEAD.size + BODY.size)[0]
            reply = b""
            if wants & 2:
                with suppress(queue.Empty):
                    reply = self.replies.get_nowait()
            self.polls.append((pid, wants))
            with suppress(OSError):
                self._socket.sendto(HEAD.pack(len(reply), b"req") + reply, address)


@contextmanager
def fabric() -> Iterator[Fabric]:
    """Serve a folder with a short path."""
    with tempfile.TemporaryDirectory(prefix="wk") as name:
        served = Fabric(Path(name) / "k")
        try:
            yield served
        finally:
            served.kill()


def wait_until(condition: Callable[[], object], limit_s: float = WAIT_S) -> None:
    """Wait for something, and fail when it does not come."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come"
        time.sleep(0.02)


def has_socket_of(folder: Path) -> bool:
    """Tell whether a process has polled in this folder: Kineto leaves its own socket there."""
    return any(folder.glob("dynoconfigclient*"))
