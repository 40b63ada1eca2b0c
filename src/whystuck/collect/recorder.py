"""The flight recorder of a live rank: by the probe's thread, else by torch's C++ server."""

from __future__ import annotations

import json
import socket
import stat
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

_PROBE_TIMEOUT_S = 2.5
_SERVER_TIMEOUT_S = 2.0
MAX_DUMP_BYTES = 256 << 20


class RecorderError(Exception):
    """No dump could be had; the message says why."""


def ask_probe_for_dump(probe_socket: Path, target: Path) -> None:
    """Have the probe write its dump to ``target``. Raises RecorderError without an answer."""
    ask_probe(probe_socket, "dump", target)


def ask_probe(probe_socket: Path, op: str, target: Path) -> None:
    """Have the probe write something to ``target``.

    Args:
        probe_socket: The socket of the probe in the job folder.
        op: What is asked for: ``dump`` or ``peers``.
        target: The file to write.

    Raises:
        RecorderError: No answer came, or a refusal.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(_PROBE_TIMEOUT_S)
            check_socket(probe_socket)
            sock.connect(str(probe_socket))
            sock.sendall(json.dumps({"op": op, "path": str(target)}).encode())
            reply = json.loads(sock.recv(4096) or b"{}")
    except TimeoutError as error:
        message = f"the probe did not answer in {_PROBE_TIMEOUT_S:.0f} s"
        raise RecorderError(message) from error
    except (OSError, ValueError) as error:
        message = f"the probe cannot be reached: {error}"
        raise RecorderError(message) from error
    if not reply.get("ok"):
        what = "dump the flight recorder" if op == "dump" else f"write {target.name}"
        message = f"the probe could not {what}"
        raise RecorderError(message)


def check_socket(path: Path) -> None:
    """Raise OSError when no socket lies there that the owner of its folder has made."""
    found = path.lstat()
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != path.parent.lstat().st_uid:
        raise OSError(0, "no socket of this job lies there")


class _UnixConnection(HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        check_socket(self._path)
        self.sock.connect(str(self._path))


# NCCL's recorder first, where torch has one; then that of gloo and the other backends.
_HANDLERS = ("dump_nccl_trace_json", "fr_trace_json")


def ask_server_for_dump(server_socket: Path) -> bytes:
    """Return the recorder as JSON, without frames, from torch's C++ worker server.

    It answers also while the GIL is held. Raises RecorderError without an answer.
    """
    problem = RecorderError("torch's worker server has no recorder")
    dump = b""
    for handler in _HANDLERS:
        try:
            dump = _ask_server(server_socket, handler)
        except RecorderError as error:
            problem = error
        else:
            if count_progress(dump) != (0, 0):
                break
    if not dump:
        raise problem
    return dump


def _ask_server(server_socket: Path, handler: str) -> bytes:
    connection = _UnixConnection(server_socket, _SERVER_TIMEOUT_S)
    try:
        connection.request("POST", f"/handler/{handler}")
        response = connection.getresponse()
        body = response.read(MAX_DUMP_BYTES)
    except (OSError, ValueError, HTTPException) as error:
        message = f"torch's worker server cannot be reached: {error or 'no answer'}"
        raise RecorderError(message) from error
    finally:
        connection.close()
    if response.status != 200:  # noqa: PLR2004 - the only good status of this server
        message = f"torch's worker server answered {response.status}"
        raise RecorderError(message)
    return body


def count_progress(dump: bytes) -> tuple[int, int]:
    """Return (enqueued, completed) over all groups of a JSON dump; zeros when unreadable."""
    try:
        status: dict[str, dict[str, Any]] = json.loads(dump).get("pg_status", {})
        return (
            sum(max(0, int(one.get("last_enqueued_collective", 0))) for one in status.values()),
            sum(max(0, int(one.get("last_completed_collective", 0))) for one in status.values()),
        )
    except (ValueError, AttributeError, TypeError):
        return 0, 0
