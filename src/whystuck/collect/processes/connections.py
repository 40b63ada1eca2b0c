"""The TCP connections of a process, and which of them do not get rid of their bytes."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from ipaddress import IPv6Address
from pathlib import Path

from whystuck.evidence.records import Connection

_MAX_TABLE_BYTES = 8 << 20
# A full mesh of gloo has one connection for each pair of ranks.
_MAX_CONNECTIONS = 512
_ESTABLISHED, _LISTENING = "01", "0A"
_FIELDS = 10
_RETRANSMIT_TIMER, _PROBE_TIMER = "01", "04"
_INODE = re.compile(r"socket:\[(\d+)\]")
_IPV4_BYTES, _WORD_BYTES = 4, 4


def collect_connections(pid: int) -> list[Connection]:
    """Read the established TCP connections of a process, those with unsent bytes first.

    The table is that of the network namespace of the process. What may not be read is left out.
    """
    inodes = _list_inodes(pid)
    found = []
    for name in ("tcp", "tcp6"):
        for line in _read_table(Path(f"/proc/{pid}/net/{name}")):
            entry = _parse_line(line, inodes)
            if entry is not None:
                found.append(entry)
    found.sort(key=lambda entry: (not entry.is_resending, -entry.unsent_bytes))
    return found[:_MAX_CONNECTIONS]


def list_listeners(pid: int) -> list[tuple[str, int]]:
    """List the addresses and ports on which a process takes TCP connections."""
    inodes = _list_inodes(pid)
    found = []
    for local, _, inode in _list_sockets(pid, _LISTENING):
        if inode in inodes:
            host, _, port = local.rpartition(":")
            found.append((host.strip("[]"), int(port)))
    return found


def owns_connection(pid: int, local: str, remote: str) -> bool:
    """Return whether a process has the end of a TCP connection that has these two addresses.

    Args:
        pid: The process.
        local: Its end, as ``127.0.0.1:28028`` or ``[::1]:28028``.
        remote: The other end.
    """
    wanted = {inode for *ends, inode in _list_sockets(pid, _ESTABLISHED) if ends == [local, remote]}
    return bool(wanted) and not wanted.isdisjoint(_list_inodes(pid))


def _list_sockets(pid: int, state: str) -> Iterator[tuple[str, str, str]]:
    """Yield both addresses and the inode of each TCP socket in the network of a process."""
    for name in ("tcp", "tcp6"):
        for line in _read_table(Path(f"/proc/{pid}/net/{name}")):
            fields = line.split()
            if len(fields) < _FIELDS or fields[3] != state:
                continue
            try:
                yield _read_address(fields[1]), _read_address(fields[2]), fields[9]
            except (ValueError, OSError):
                continue


def _list_inodes(pid: int) -> set[str]:
    inodes = set()
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            match = _INODE.fullmatch(str(entry.readlink()))
            if match:
                inodes.add(match[1])
    except OSError:
        return inodes
    return inodes


def _read_table(path: Path) -> list[str]:
    try:
        with path.open(encoding="ascii", errors="replace") as stream:
            return stream.read(_MAX_TABLE_BYTES).splitlines()[1:]
    except OSError:
        return []


def _parse_line(line: str, inodes: set[str]) -> Connection | None:
    """Read a line of /proc/net/tcp (proc(5)): numbers are hexadecimal, addresses in host order."""
    try:
        _, local, remote, state, queues, timer, resends, _, _, inode = line.split()[:10]
        if state != _ESTABLISHED or inode not in inodes:
            return None
        unsent, _, unread = queues.partition(":")
        kind = timer.partition(":")[0]
        return Connection(
            local=_read_address(local),
            remote=_read_address(remote),
            unsent_bytes=int(unsent, 16),
            unread_bytes=int(unread, 16),
            is_resending=kind in {_RETRANSMIT_TIMER, _PROBE_TIMER} and int(resends, 16) > 0,
        )
    except (ValueError, OSError):
        return None


def _read_address(text: str) -> str:
    host, _, port = text.partition(":")
    raw = bytes.fromhex(host)
    words = [raw[start : start + _WORD_BYTES][::-1] for start in range(0, len(raw), _WORD_BYTES)]
    packed = b"".join(words)
    if len(packed) == _IPV4_BYTES:
        return f"{socket.inet_ntoa(packed)}:{int(port, 16)}"
    address = IPv6Address(packed)
    # Both ends must get the same name, whatever family their socket has.
    if address.ipv4_mapped is not None:
        return f"{address.ipv4_mapped}:{int(port, 16)}"
    return f"[{address}]:{int(port, 16)}"
