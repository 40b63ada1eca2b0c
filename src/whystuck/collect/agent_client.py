"""Asks the agent of a node or a job, through the socket in its folder."""

from __future__ import annotations

import os
import socket
import stat
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from whystuck.evidence.agent import RPC_SOCKET

_LENGTH = struct.Struct("=i")
_MAX_REPLY_BYTES = 1 << 20
_PIECE_BYTES = 1 << 16


class AgentError(Exception):
    """No agent answers; the message says why."""


def has_agent(folder: Path) -> bool:
    """Tell whether a folder is an agent's, of this user or of root."""
    try:
        found, served = folder.lstat(), (folder / RPC_SOCKET).lstat()
    except OSError:
        return False
    # Others may make files in a folder of root's agent that serves all users.
    is_trusted = {found.st_uid, served.st_uid} <= {os.geteuid(), 0}
    return stat.S_ISDIR(found.st_mode) and stat.S_ISSOCK(served.st_mode) and is_trusted


def ask_agent(folder: Path, fields: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    """Ask an agent, and return what it says.

    Args:
        folder: That of the agent.
        fields: The request.
        timeout_s: How long to wait at most.

    Returns:
        The reply.

    Raises:
        AgentError: It does not answer, refuses, or the reply is none.
    """
    deadline_s = time.monotonic() + timeout_s
    body = msgspec.json.encode(fields)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(timeout_s)
            link.connect(str(folder / RPC_SOCKET))
            link.sendall(_LENGTH.pack(len(body)) + body)
            (length,) = _LENGTH.unpack(_receive(link, _LENGTH.size, deadline_s))
            if not 0 < length <= _MAX_REPLY_BYTES:
                raise AgentError("the agent sent no reply")
            reply = msgspec.json.decode(_receive(link, length, deadline_s))
    except (OSError, ValueError) as error:
        raise AgentError(f"the agent does not answer ({error})") from error
    if not isinstance(reply, dict):
        raise AgentError("the agent sent no reply")
    if "error" in reply:
        raise AgentError(f"the agent refuses: {reply['error']}")
    return reply


def _receive(link: socket.socket, size_bytes: int, deadline_s: float) -> bytes:
    data = bytearray()
    while len(data) < size_bytes:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise AgentError("the agent does not answer in time")
        link.settimeout(left_s)
        piece = link.recv(min(_PIECE_BYTES, size_bytes - len(data)))
        if not piece:
            raise AgentError("the agent closed the connection")
        data += piece
    return bytes(data)
