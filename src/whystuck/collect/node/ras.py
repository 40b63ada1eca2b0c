"""NCCL's RAS subsystem: a thread in each process of a job that answers for all of its nodes.

It is asked only where a rank takes connections on its port, and needs no GIL of the job. The
processes of all jobs on a node share that port: an answer counts when a rank of this job gave it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from whystuck.collect.processes.connections import list_listeners, owns_connection
from whystuck.collect.processes.proc_files import read_environment
from whystuck.collect.processes.target import Target
from whystuck.evidence.finding import Gap
from whystuck.evidence.nodes.ras import RAS_JSON_FILE, RAS_TEXT_FILE

WHAT = "answer of NCCL RAS"
DEADLINE_S = 5.0
MAX_BYTES = 8 << 20
_PORT = 28028
# How long NCCL waits for each of its processes.
_LEG_TIMEOUT_S = 2
_MAX_LINE_BYTES = 4096
_PIECE_BYTES = 1 << 16
# The kernel picks one of the processes by the ports of a connection.
_MAX_TRIES = 32
# Each answer is about the whole job. Of many nodes, that of the first rank asks.
_FEW_NODES = 8

Address = tuple[str, int]


class _RasError(Exception):
    """No answer could be had; the message says why."""


class _StrangerError(_RasError):
    """A process that is no rank of this job has answered."""


def collect_ras(
    targets: Sequence[Target], folder: Path, deadline_s: float = DEADLINE_S
) -> list[Gap]:
    """Ask RAS for the state of a job, and keep what it says as ``ras.json`` or ``ras.txt``.

    Args:
        targets: The ranks of the job on this node.
        folder: The folder of an incident; the answer goes into that of the node.
        deadline_s: After so many seconds, no more is waited for.

    Returns:
        Why there is no answer; nothing where the job does not use NCCL, or one without RAS.
    """
    end_s = time.monotonic() + deadline_s
    address = _find_address(targets)
    if address is None:
        return []
    try:
        data, is_json = _ask(address, [target.pid for target in targets], end_s)
    except _RasError as error:
        return [Gap(None, WHAT, str(error))]
    except TimeoutError:
        return [Gap(None, WHAT, f"it was not complete after {deadline_s:.0f} s")]
    except OSError as error:
        return [Gap(None, WHAT, error.strerror or str(error))]
    path = folder / targets[0].node / (RAS_JSON_FILE if is_json else RAS_TEXT_FILE)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        return [Gap(None, WHAT, error.strerror or str(error))]
    return []


def _find_address(targets: Sequence[Target]) -> Address | None:
    """Find where a rank listens for clients of RAS."""
    for target in targets:
        try:
            environment = read_environment(target.pid)
        except OSError:
            continue
        if not _is_asker(targets, environment) or environment.get("NCCL_RAS_ENABLE") == "0":
            return None
        port = _read_port(environment.get("NCCL_RAS_ADDR", ""))
        for host, listening in list_listeners(target.pid):
            if listening == port and _shares_network(target.pid):
                return _name_host(host), port
    return None


def _is_asker(targets: Sequence[Target], environment: Mapping[str, str]) -> bool:
    world = environment.get("WORLD_SIZE", "")
    is_small = not world.isdecimal() or int(world) <= _FEW_NODES * len(targets)
    return is_small or any(target.rank == 0 for target in targets)


def _read_port(text: str) -> int:
    port = text.rpartition(":")[2]
    return int(port) if port.isdecimal() else _PORT


def _name_host(host: str) -> str:
    """Return an address to call; one that stands for all interfaces is that of the node itself."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - to compare


def _shares_network(pid: int) -> bool:
    try:
        own, other = (Path(f"/proc/{one}/ns/net").stat() for one in ("self", pid))
    except OSError:
        return False
    return (own.st_dev, own.st_ino) == (other.st_dev, other.st_ino)


def _ask(address: Address, pids: Sequence[int], end_s: float) -> tuple[bytes, bool]:
    """Ask until a rank of this job answers; return the answer, and whether it is JSON."""
    for _ in range(_MAX_TRIES):
        with suppress(_StrangerError):
            return _ask_once(address, pids, end_s)
    raise _StrangerError("only processes of other jobs answer on its port")


def _ask_once(address: Address, pids: Sequence[int], end_s: float) -> tuple[bytes, bool]:
    with socket.create_connection(address, timeout=_left_s(end_s)) as sock:
        client = _Client(sock, end_s)
        answer = client.call("CLIENT PROTOCOL 2")
        if not answer.startswith("SERVER PROTOCOL "):
            raise _RasError("what listens on its port does not speak its protocol")
        if not _is_of_job(sock, pids):
            raise _StrangerError("a process of another job answers on its port")
        client.call(f"TIMEOUT {_LEG_TIMEOUT_S}")
        is_json = client.call("SET FORMAT json") == "OK"
        client.send("STATUS" if is_json else "VERBOSE STATUS")
        data = client.read_rest()
    if not data:
        raise _RasError("it closed the connection without an answer")
    return data, is_json


def _is_of_job(sock: socket.socket, pids: Sequence[int]) -> bool:
    """Return whether a rank of this job has the other end of a connection."""
    local, remote = _format_address(sock.getsockname()), _format_address(sock.getpeername())
    return any(owns_connection(pid, remote, local) for pid in pids)


def _format_address(address: Sequence[object]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def _left_s(end_s: float) -> float:
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


class _Client:
    """Lines of text over a connection, all within one limit of time and one of bytes."""

    def __init__(self, sock: socket.socket, end_s: float) -> None:
        self._sock = sock
        self._end_s = end_s
        self._data = b""

    def send(self, command: str) -> None:
        self._sock.settimeout(_left_s(self._end_s))
        self._sock.sendall(f"{command}\n".encode())

    def call(self, command: str) -> str:
        """Send a command, and return the line that answers it."""
        self.send(command)
        while b"\n" not in self._data:
            if len(self._data) > _MAX_LINE_BYTES:
                raise _RasError("what listens on its port does not speak its protocol")
            piece = self._receive()
            if not piece:
                raise _RasError("it closed the connection without an answer")
            self._data += piece
        line, _, self._data = self._data.partition(b"\n")
        return line.decode(errors="replace").strip()

    def read_rest(self) -> bytes:
        """Return all that comes until the connection is closed."""
        parts, size = [self._data], len(self._data)
        while piece := self._receive():
            parts.append(piece)
            size += len(piece)
            if size > MAX_BYTES:
                raise _RasError(f"it has more than {MAX_BYTES >> 20} MiB")
        return b"".join(parts)

    def _receive(self) -> bytes:
        self._sock.settimeout(_left_s(self._end_s))
        return self._sock.recv(_PIECE_BYTES)
