"""Work in processes of their own, which may hang for ever: what they tell before a deadline counts.

A process that waits for a dead file server or a broken device does not even end when it is killed.
So nobody waits for its end, and it holds nothing that others wait for.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

Tell = Callable[[bytes], None]
_MAX_BYTES = 4 << 20
_PIECE_BYTES = 1 << 16
_SLACK_S = 2
_PR_SET_PDEATHSIG = 1
_FIRST_FREE = 3  # behind the standard streams
_REAP_S = 0.2
_LOOK_S = 0.1


@dataclass
class Apart:
    """A process at work; ``lines`` is what it has told, and ``took_s`` when it was over."""

    pid: int
    fd: int
    began_s: float
    deadline_s: float
    took_s: float = 0.0
    is_late: bool = False
    data: bytearray = field(default_factory=bytearray)

    @property
    def lines(self) -> list[bytes]:
        """The lines that are complete."""
        return bytes(self.data).split(b"\n")[:-1]


def start_apart(work: Callable[[Tell], None], deadline_s: float, kept: int = -1) -> Apart:
    """Do some work in a new process, which tells lines by the function that it gets.

    Args:
        work: What to do.
        deadline_s: How long it may take.
        kept: A descriptor that the work needs, beside what it opens itself.

    Raises:
        OSError: No process can be had.
    """
    reader, writer = make_pipe()
    parent = os.getpid()
    # An interrupt that came while Python prepares the fork would be passed over.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        pid = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    if pid == 0:
        code = 1
        try:
            _prepare({writer, kept}, deadline_s, parent)
            work(lambda line: _write_all(writer, line + b"\n"))
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    os.set_blocking(reader, False)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Apart(pid, reader, time.monotonic(), deadline_s)


def make_pipe() -> tuple[int, int]:
    """Make a pipe beside the standard streams, also where our caller has closed these."""
    ends = os.pipe()
    try:
        reader, writer = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE) for end in ends)
    finally:
        for end in ends:
            os.close(end)
    return reader, writer


def wait_apart(
    works: Iterable[Apart], is_over: Callable[[], bool] = lambda: False
) -> Iterator[Apart]:
    """Yield each process when it is over, or when its deadline has passed; it is ended then.

    Args:
        works: The processes.
        is_over: Asked ten times a second whether to leave all of them.
    """
    running = {work.fd: work for work in works}
    try:
        while running and not is_over():
            next_s = min(work.began_s + work.deadline_s for work in running.values())
            wait_s = min(_LOOK_S, max(0.0, next_s - time.monotonic()))
            ready, _, _ = select.select(list(running), [], [], wait_s)
            for work in [running[fd] for fd in ready]:
                if not _read(work):
                    yield _finish(running.pop(work.fd))
            now_s = time.monotonic()
            for work in list(running.values()):
                if now_s >= work.began_s + work.deadline_s:
                    work.is_late = True
                    yield _finish(running.pop(work.fd))
    finally:
        for work in running.values():  # interrupted
            _finish(work)


def _prepare(kept: set[int], deadline_s: float, parent: int) -> None:
    """Let go of all that others wait for the end of; a signal of the terminal is not for us."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    # Should whoever waits be killed, this ends with it, and by itself at the latest.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signal.alarm(int(deadline_s) + _SLACK_S)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for fd in {int(name) for name in os.listdir("/proc/self/fd")} - kept:  # noqa: PTH208
        if fd >= _FIRST_FREE:
            with suppress(OSError):
                os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _read(work: Apart) -> bool:
    """Read what there is; return False at the end."""
    with suppress(BlockingIOError):
        piece = os.read(work.fd, _PIECE_BYTES)
        work.data += piece[: max(0, _MAX_BYTES - len(work.data))]
        return bool(piece)
    return True


def _finish(work: Apart) -> Apart:
    """End a process with all that it started, and close its pipe."""
    work.took_s = time.monotonic() - work.began_s
    for kill in (os.killpg, os.kill):  # it may not have come to a group of its own yet
        with suppress(OSError):
            kill(work.pid, signal.SIGKILL)
    with suppress(OSError):
        os.close(work.fd)
    until_s = time.monotonic() + _REAP_S
    with suppress(OSError):
        while os.waitpid(work.pid, os.WNOHANG) == (0, 0) and time.monotonic() < until_s:
            time.sleep(0.005)
    return work
