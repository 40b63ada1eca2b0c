"""Clients that speak to the endpoint as Kineto does: from a socket of their own."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Self

from whystuck.agent.fabric.messages import HEAD, pack_request
from whystuck.agent.interfaces import FabricPoll

WAIT_S = 30.0


class Client:
    """A bound socket, and the address of the daemon; ``folder`` of None is the abstract mode."""

    def __init__(self, folder: str | Path | None, daemon: str = "dynolog") -> None:
        self.name = f"dynoconfigclient{uuid.uuid4()}"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.settimeout(WAIT_S)
        if folder is None:
            self.socket.bind(f"\0{self.name}\0".encode())
            self.daemon: str | bytes = f"\0{daemon}\0".encode()
        else:
            self.socket.bind(f"{folder}/{self.name}")
            self.daemon = f"{folder}/{daemon}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes | None = None, *, wants: int = 3, job: int = 0) -> None:
        if data is None:
            data = pack_request(wants, job, (os.getpid(), os.getppid()))
        self.socket.sendto(data, self.daemon)

    async def ask(self, data: bytes | None = None, *, wants: int = 3) -> str:
        """Send a request, and return the configuration that comes back."""
        # A full queue of the daemon holds a sender up, and the daemon runs in this loop.
        await asyncio.to_thread(self.send, data, wants=wants)
        return (await self.receive())[1].decode()

    async def receive(self) -> tuple[bytes, bytes]:
        """Return type and payload of an answer, read as Kineto does: its head first."""
        return await asyncio.to_thread(self.receive_now)

    def receive_now(self) -> tuple[bytes, bytes]:
        head = self.socket.recv(HEAD.size, socket.MSG_PEEK)
        size_bytes, name = HEAD.unpack(head)
        data = self.socket.recv(HEAD.size + size_bytes + 100)
        assert len(data) == HEAD.size + size_bytes
        return name.partition(b"\0")[0], data[HEAD.size :]

    def has_answer(self) -> bool:
        return bool(select.select([self.socket], [], [], 0)[0])


class Handler:
    """Notes polls, and answers with what is in ``configs``, once each."""

    def __init__(self, *configs: str) -> None:
        self.polls: list[FabricPoll] = []
        self.configs = list(configs)

    def answer(self, poll: FabricPoll) -> str:
        self.polls.append(poll)
        return self.configs.pop(0) if self.configs else ""

    async def saw(self, num_polls: int) -> None:
        await until(lambda: len(self.polls) >= num_polls)


async def until(is_true: Callable[[], bool], what: str = "") -> None:
    """Wait for a condition; the limit is for machines that do ten other things."""
    deadline_s = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < deadline_s, what or "it did not come true"
        await asyncio.sleep(0.005)
