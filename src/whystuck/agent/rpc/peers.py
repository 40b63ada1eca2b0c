"""Who is at the other end of a connection on this machine, as the kernel tells it."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid
_TABLES = {4: Path("/proc/net/tcp"), 6: Path("/proc/net/tcp6")}
_MAX_TABLE_BYTES = 64 << 20
_LOCAL, _REMOTE, _UID, _INODE = 1, 2, 7, 9
_MAPPED = ipaddress.ip_network("::ffff:0:0/96")


def is_loopback(address: str) -> bool:
    """Return whether a numeric address is of the loopback interface."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def read_unix_uid(connection: socket.socket) -> int | None:
    """Return the uid of the peer of a unix stream socket, as it was when it connected."""
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:
        return None
    return int(_CREDENTIALS.unpack(raw)[1])


def read_loopback_uid(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """Return the uid of the process that holds the other end of a TCP connection of this host.

    ``peer`` and ``own`` are address and port as the accepted socket tells them. The kernel lists
    the uid of each socket; one that its process has closed already has no inode, and nobody's uid.

    Returns:
        The uid, or None when it cannot be told.
    """
    for version in (4, 6):
        try:
            wanted = [_hex_of(*peer, version=version), _hex_of(*own, version=version)]
            with _TABLES[version].open("rb") as table:
                lines = table.read(_MAX_TABLE_BYTES).splitlines()
        except (OSError, ValueError):
            continue
        found = find_uid(lines, wanted)
        if found is not None:
            return found
    return None


def find_uid(lines: Iterable[bytes], wanted: Sequence[bytes]) -> int | None:
    """Return the uid of the socket whose local and remote address are ``wanted``."""
    for line in lines:
        if wanted[0] not in line:
            continue
        fields = line.split()
        if len(fields) <= _INODE or [fields[_LOCAL], fields[_REMOTE]] != list(wanted):
            continue
        if not fields[_UID].isdigit() or not int(fields[_INODE]):
            return None
        return int(fields[_UID])
    return None


def _hex_of(address: str, port: int, *, version: int) -> bytes:
    """Write an address as ``/proc/net/tcp`` does: words of 32 bits in native byte order.

    Raises:
        ValueError: The address is not of this version of IP.
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    packed = found.packed
    if version == 4 and found.version == 6:  # noqa: PLR2004 - versions of IP
        if found not in _MAPPED:
            raise ValueError("no IPv4 address")
        packed = packed[12:]
    elif version == 6 and found.version == 4:  # noqa: PLR2004 - as above
        packed = _MAPPED.network_address.packed[:12] + packed
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words).encode() + f":{port:04X}".encode()


def trusted_uids() -> frozenset[int]:
    """Return whose calls are taken: ours and those of root."""
    return frozenset({os.getuid(), 0})
