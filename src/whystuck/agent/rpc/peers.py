"""Who is at the other end of a connection on this machine, as the kernel tells it."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid
# sock_diag(7): struct nlmsghdr, and struct inet_diag_req_v2 with the addresses of one socket.
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1
_DIAG_REQUEST = struct.Struct("=IHHII BBBxI 2s2s16s16s I 8s")
_ALL_STATES = 0xFFFFFFFF
_NO_COOKIE = b"\xff" * 8
_NLMSG_BYTES, _NLMSG_ERROR = 16, 2
# In struct inet_diag_msg, behind nlmsghdr: uid and inode.
_UID_AT = 16 + 4 + 48 + 12
_DIAG_TIMEOUT_S = 0.2
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


def find_loopback_uid(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """Return what `ask_loopback_uid` does, from the table of all sockets where it cannot be asked.

    That table may be long, and takes time to read.
    """
    try:
        return ask_loopback_uid(peer, own)
    except (OSError, ValueError):
        # A sandbox may not have sock_diag.
        return read_loopback_uid(peer, own)


def ask_loopback_uid(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """Return the uid of the process that holds the other end of a TCP connection of this host.

    Asks the kernel for this one socket (sock_diag(7)), which takes microseconds. ``peer`` and
    ``own`` are address and port as the accepted socket tells them. A socket that its process has
    closed already has no inode, and nobody's uid.

    Returns:
        The uid, or None when that socket is not open any more.

    Raises:
        OSError: The kernel does not answer such questions.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(_DIAG_TIMEOUT_S)
        netlink.send(_pack_question(peer, own))
        reply = netlink.recv(1 << 16)
    kind = struct.unpack_from("=H", reply, 4)[0] if len(reply) >= _NLMSG_BYTES else 0
    if kind == _NLMSG_ERROR and len(reply) >= _NLMSG_BYTES + 4:
        number = -struct.unpack_from("=i", reply, _NLMSG_BYTES)[0]
        if number == errno.ENOENT:
            return None
        raise OSError(number, os.strerror(number))
    if kind != _SOCK_DIAG_BY_FAMILY or len(reply) < _UID_AT + 8:
        raise OSError(errno.EPROTO, "no answer of sock_diag")
    uid, inode = struct.unpack_from("=II", reply, _UID_AT)
    return int(uid) if inode else None


def _pack_question(peer: tuple[str, int], own: tuple[str, int]) -> bytes:
    addresses = [ipaddress.ip_address(one[0].partition("%")[0]) for one in (peer, own)]
    plain = [getattr(one, "ipv4_mapped", None) or one for one in addresses]
    family = socket.AF_INET if plain[0].version == 4 else socket.AF_INET6  # noqa: PLR2004
    return _DIAG_REQUEST.pack(
        *(_DIAG_REQUEST.size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0),
        *(family, socket.IPPROTO_TCP, 0, _ALL_STATES),
        *(peer[1].to_bytes(2, "big"), own[1].to_bytes(2, "big")),
        *(one.packed.ljust(16, b"\0") for one in plain),
        *(0, _NO_COOKIE),
    )


def read_loopback_uid(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """Find the same in the kernel's table of all sockets, which may be long.

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
