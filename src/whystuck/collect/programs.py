"""Programs that are run for what they print, also while a disk hangs that holds files of ours.

A new process closes its copies of our files first, and on a shared file system that asks the
server: it is not started before that answers. So the watcher lets a child start them that was
forked before any file of the evidence was opened.
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_HEAD = struct.Struct("<iiI")
"""Of an answer: error number (0 when it ran), exit code, and the length of its output."""
_MAX_REQUEST_BYTES = 1 << 17
_SLACK_S = 2.0
# A stack of 4,000 threads has some 4 MB.
_MAX_OUTPUT_BYTES = 64 << 20
_KILLED_S = 1.0
_PIECE_BYTES = 1 << 16

_starter: socket.socket | None = None


def run_program(command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end, without input, and return what it wrote.

    Raises:
        OSError: It cannot be started, or writes too much: then it was killed.
        TimeoutExpired: It took longer; it was killed.
    """
    if _starter is not None:
        return _ask(_starter, list(command), timeout_s)
    return _run(command, timeout_s)


@contextmanager
def starting_apart() -> Iterator[None]:
    """Let a child start all programs while the block runs; fork it before files are opened."""
    global _starter  # noqa: PLW0603 - one for each process, as its files are
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        pid = os.fork()
    except OSError:  # no process can be had
        ours.close()
        its.close()
        yield
        return
    if pid == 0:
        try:
            _close_all_but(its.fileno())
            _serve(its)
        finally:
            os._exit(0)
    its.close()
    _starter = ours
    try:
        yield
    finally:
        _starter = None
        ours.close()


def _close_all_but(kept: int) -> None:
    """Close what others wait for the end of."""
    for fd in [int(one.name) for one in Path("/proc/self/fd").iterdir()]:
        if fd > 2 and fd != kept:  # noqa: PLR2004 - standard streams
            with suppress(OSError):
                os.close(fd)


def _run(command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[bytes]:
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    until_s = time.monotonic() + timeout_s
    try:
        out, err = _read_output(child, until_s)
        child.wait(max(0.0, until_s - time.monotonic()))
    except (OSError, subprocess.TimeoutExpired):
        child.kill()
        # One that hangs in a driver does not even end when it is killed.
        with suppress(subprocess.TimeoutExpired):
            child.wait(_KILLED_S)
        raise
    finally:
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
    return subprocess.CompletedProcess(command, child.returncode, out, err)


def _read_output(child: subprocess.Popen[bytes], until_s: float) -> tuple[bytes, bytes]:
    """Return what a program writes: of a process with odd stacks, py-spy writes GB."""
    pipes = [pipe for pipe in (child.stdout, child.stderr) if pipe is not None]
    found = {pipe.fileno(): bytearray() for pipe in pipes}
    with selectors.DefaultSelector() as waiting:
        for fd in found:
            waiting.register(fd, selectors.EVENT_READ)
        while waiting.get_map():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise subprocess.TimeoutExpired(child.args, 0)
            for key, _ in waiting.select(left_s):
                piece = os.read(key.fd, _PIECE_BYTES)
                found[key.fd] += piece
                if not piece:
                    waiting.unregister(key.fd)
                if len(found[key.fd]) > _MAX_OUTPUT_BYTES:
                    raise OSError(errno.EFBIG, "it writes too much")
    out, err = (bytes(data) for data in found.values())
    return out, err


def _ask(
    starter: socket.socket, command: list[str], timeout_s: float
) -> subprocess.CompletedProcess[bytes]:
    ours, its = socket.socketpair()
    with ours:
        with its:
            request = json.dumps([command, timeout_s]).encode()
            socket.send_fds(starter, [request], [its.fileno()])
        data = _receive(ours, time.monotonic() + timeout_s + _SLACK_S)
    if len(data) < _HEAD.size:
        raise subprocess.TimeoutExpired(command, timeout_s)
    number, code, out_bytes = _HEAD.unpack_from(data)
    if number == errno.ETIMEDOUT:
        raise subprocess.TimeoutExpired(command, timeout_s)
    if number:
        raise OSError(number, os.strerror(number))
    rest = data[_HEAD.size :]
    return subprocess.CompletedProcess(command, code, rest[:out_bytes], rest[out_bytes:])


def _receive(end: socket.socket, until_s: float) -> bytes:
    """Return all that comes before the end; what there is, where it takes too long."""
    found = bytearray()
    with suppress(OSError):  # also: timed out
        while True:
            end.settimeout(max(0.01, until_s - time.monotonic()))
            piece = end.recv(_PIECE_BYTES)
            if not piece:
                return bytes(found)
            found += piece
    return b""


def _serve(requests: socket.socket) -> None:
    """Start what is asked for, each in a thread, until the other end is closed."""
    while True:
        data, fds, _, _ = socket.recv_fds(requests, _MAX_REQUEST_BYTES, 1)
        if not data:
            return
        answer = socket.socket(fileno=fds[0])
        command, timeout_s = json.loads(data)
        threading.Thread(target=_answer, args=[answer, command, timeout_s], daemon=True).start()


def _answer(to: socket.socket, command: list[str], timeout_s: float) -> None:
    try:
        done = _run(command, timeout_s)
    except subprocess.TimeoutExpired:
        data = _HEAD.pack(errno.ETIMEDOUT, 0, 0)
    except OSError as error:
        data = _HEAD.pack(error.errno or errno.EIO, 0, 0)
    else:
        data = _HEAD.pack(0, done.returncode, len(done.stdout)) + done.stdout + done.stderr
    with to, suppress(OSError):  # nobody may wait for it any more
        to.sendall(data)
