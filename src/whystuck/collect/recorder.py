"""The flight recorder of a live rank, asked of the probe's thread."""

from __future__ import annotations

import json
import socket
import stat
from pathlib import Path

import msgspec

from whystuck.evidence.decoding import decode_json

_PROBE_TIMEOUT_S = 2.5


class RecorderError(Exception):
    """No dump could be had; the message says why.

    ``is_well`` tells that the probe answered, and had a reason not to dump.
    """

    def __init__(self, message: str, *, is_well: bool = False) -> None:
        super().__init__(message)
        self.is_well = is_well


class _Reply(msgspec.Struct):
    ok: bool = False
    reason: str | None = None


def ask_probe_for_dump(probe_socket: Path, target: Path) -> None:
    """Have the probe write its dump to ``target``; raises RecorderError without one."""
    ask_probe(probe_socket, "dump", target)
    if not target.exists():
        raise RecorderError("the probe wrote it where only its own container sees it")


def ask_probe(
    probe_socket: Path, op: str, target: Path, *, timeout_s: float = _PROBE_TIMEOUT_S
) -> None:
    """Have the probe write something to ``target``.

    Args:
        probe_socket: The socket of the probe in the job folder.
        op: What is asked for: ``dump`` or ``peers``; ``switch``, to look at the switch now.
        target: The file to write.
        timeout_s: How long to wait for the answer.

    Raises:
        RecorderError: No answer came, or a refusal.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(timeout_s)
            check_socket(probe_socket)
            sock.connect(str(probe_socket))
            sock.sendall(json.dumps({"op": op, "path": str(target)}).encode())
            reply = decode_json(sock.recv(4096) or b"{}", _Reply)
    except TimeoutError as error:
        message = f"the probe did not answer in {timeout_s:.0f} s"
        raise RecorderError(message) from error
    except (OSError, ValueError, RecursionError) as error:
        message = f"the probe cannot be reached: {error}"
        raise RecorderError(message) from error
    if not reply.ok:
        what = "dump the flight recorder" if op == "dump" else f"write {target.name}"
        reason = reply.reason or ""
        message = f"the probe could not {what}" + (f": {reason}" if reason else "")
        raise RecorderError(message, is_well=bool(reason))


def check_socket(path: Path) -> None:
    """Raise OSError when no socket lies there that the owner of its folder has made."""
    found = path.lstat()
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != path.parent.lstat().st_uid:
        raise OSError(0, "no socket of this job lies there")
