"""A process that listens as a rank of NCCL does for clients of RAS; run by `test_ras.py`.

Arguments: what it does, and a file with its answer. It prints ``ready`` when it listens, at the
address in NCCL_RAS_ADDR.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path


def answer(client: socket.socket, mode: str, data: bytes) -> None:
    """Speak with one client as a version of NCCL does, or as something broken."""
    lines = client.makefile("rb")
    for line in lines:
        command = line.decode().strip().lower()
        if mode == "silent":
            time.sleep(3600)
        if mode == "garbage":
            client.sendall(b"\x80" * 100_000)
        elif command.startswith("client protocol "):
            client.sendall(b"SERVER PROTOCOL 2\n")
        elif command.startswith("timeout ") or (command == "set format json" and mode == "json"):
            client.sendall(b"OK\n")
        elif command in {"status", "verbose status"}:
            give(client, mode, data)
            return
        else:
            client.sendall(f"ERROR: Unknown command {command}\n".encode())


def give(client: socket.socket, mode: str, data: bytes) -> None:
    """Give the answer, byte by byte or without an end where that is asked for."""
    if mode == "closes":
        return
    if mode == "drip":
        for byte in data * 1000:
            client.sendall(bytes([byte]))
            time.sleep(0.02)
    while mode == "endless":
        client.sendall(b"x" * (1 << 20))
    client.sendall(data)


def main() -> None:
    """Listen, and speak with one client after the other."""
    mode, path = sys.argv[1:3]
    host, _, port = os.environ["NCCL_RAS_ADDR"].rpartition(":")
    listener = socket.create_server((host, int(port)), reuse_port=True)
    print("ready", flush=True)
    if mode == "stranger" and os.fork():
        # Another process has the connections, as where two jobs share a port.
        mode = "idle"
    while mode == "idle":
        time.sleep(3600)
    while True:
        client, _ = listener.accept()
        with client:
            try:
                answer(client, "json" if mode == "stranger" else mode, Path(path).read_bytes())
            except OSError:
                continue


if __name__ == "__main__":
    main()
