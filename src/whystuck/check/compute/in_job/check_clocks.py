"""Addresses and clocks of nodes: how one finds the way to another, and asks it for the time."""

import fcntl
import socket
import struct
import threading
import time
from pathlib import Path

_PINGS = 24
_PING_S = 2.0
NONCE_BYTES = 16
_STAMP = struct.Struct(">d")
_GET_ADDRESS = 0x8915  # SIOCGIFADDR
_NAME = struct.Struct("16s24x")


def find_addresses(host, port):
    """Return the address of this node on the way to the first one, and that of the first one."""
    try:
        kind, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect(place)
            return probe.getsockname()[0], place[0]
    except OSError:
        return "", ""


def find_interface(address):
    """Return the interface that has an address; empty when none has."""
    names = [name for _, name in socket.if_nameindex()]
    if ":" in address:
        packed = socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex()
        try:
            lines = Path("/proc/net/if_inet6").read_text().splitlines()
        except OSError:
            return ""
        rows = [line.split() for line in lines]
        return next((row[5] for row in rows if row[0] == packed), "")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name in names:
            try:
                told = fcntl.ioctl(probe, _GET_ADDRESS, _NAME.pack(name.encode()[:15]))
            except OSError:
                continue
            if socket.inet_ntoa(told[20:24]) == address:
                return name
    return ""


def serve_clock(nonce):
    """Tell our time to whoever knows the nonce, from a thread; return the port."""
    if socket.has_dualstack_ipv6():
        server = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    else:
        server = socket.create_server(("", 0))
    server.settimeout(None)
    threading.Thread(target=serve_all, args=(server, nonce.encode()), daemon=True).start()
    return server.getsockname()[1]


def serve_all(server, nonce):
    """Answer one node after the other."""
    while True:
        try:
            asked, _ = server.accept()
        except OSError:
            return
        with asked:
            try:
                asked.settimeout(_PING_S)
                asked.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                until_s = time.monotonic() + _PING_S
                while time.monotonic() < until_s:
                    if read_whole(asked, NONCE_BYTES) != nonce:
                        break
                    asked.sendall(_STAMP.pack(time.time()))
            except OSError:
                continue


def read_whole(connection, size):
    """Read so many bytes; fewer at the end."""
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            break
        data += piece
    return data


def ask_clock(host, port, nonce):
    """Return how far the clock of the first node is ahead of ours, and how sure that is, in s."""
    found = []
    with socket.create_connection((host, port), timeout=_PING_S) as asked:
        asked.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(_PINGS):
            before_s, begun_s = time.time(), time.perf_counter()
            asked.sendall(nonce.encode())
            data = read_whole(asked, _STAMP.size)
            took_s = time.perf_counter() - begun_s
            if len(data) < _STAMP.size:
                break
            found.append((took_s / 2, _STAMP.unpack(data)[0] - before_s - took_s / 2))
    if not found:
        raise OSError("the first node tells no time")
    error_s, offset_s = min(found)
    return offset_s, error_s
