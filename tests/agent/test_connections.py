"""Who shows in time that it may come in gets in, however many others hold a connection."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.agent.rpc.parts import make_certificate, running, send_raw

from whystuck.agent.connections import ConnectionLimits, Connections, Guest, bind, name_machine
from whystuck.agent.rpc.auth import RpcAuth, make_server_tls
from whystuck.agent.rpc.client import RpcAddress, call
from whystuck.agent.rpc.frames import pack_frame
from whystuck.agent.rpc.server import RpcLimits

STATUS = pack_frame(b'{"fn":"getStatus"}')
ONE = pack_frame(b'{"status":1}')
WORD = b"let me in\n"
TOKEN = "0123456789abcdef"


def go(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 120))


@asynccontextmanager
async def greeting(limits: ConnectionLimits) -> AsyncIterator[tuple[int, Connections]]:
    """A port that lets in who says the word, and then waits for it to end."""

    async def serve(guest: Guest) -> None:
        loop = asyncio.get_running_loop()
        said = b""
        while not said.endswith(b"\n"):
            more = await loop.sock_recv(guest.socket, 64)
            if not more:
                return
            said += more
        if said == WORD:
            guest.let_in()
        await loop.sock_sendall(guest.socket, b"hello" if said == WORD else b"no")
        await loop.sock_recv(guest.socket, 1)

    [listener] = bind("127.0.0.1", 0)
    connections = Connections(limits)
    connections.listen(listener, serve)
    try:
        yield listener.getsockname()[1], connections
    finally:
        await connections.close()


async def connect(port: int, source: str = "127.0.0.1") -> socket.socket:
    client = socket.socket()
    client.setblocking(False)
    client.bind((source, 0))
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
    return client


async def say(client: socket.socket, text: bytes = WORD) -> bytes:
    loop = asyncio.get_running_loop()
    with suppress(ConnectionError):
        await loop.sock_sendall(client, text)
        return await loop.sock_recv(client, 64)
    return b""


def test_the_oldest_stranger_gives_way_and_no_friend() -> None:
    async def work() -> None:
        async with greeting(ConnectionLimits(total=3, stranger_s=3600)) as (port, connections):
            friend = await connect(port)
            assert await say(friend) == b"hello"
            strangers = [await connect(port) for _ in range(10)]
            last = await connect(port)
            assert await say(last) == b"hello"

            assert [await say(one) for one in strangers[:8]] == [b""] * 8
            assert connections.counts.crowded_out >= 8
            assert connections.counts.open <= 3
            # the friend is still there
            await asyncio.get_running_loop().sock_sendall(friend, b"x")
            assert await asyncio.get_running_loop().sock_recv(friend, 1) == b""
            for one in (friend, *strangers, last):
                one.close()

    go(work())


def test_where_all_were_let_in_a_new_one_is_closed() -> None:
    async def work() -> None:
        async with greeting(ConnectionLimits(total=2, stranger_s=3600)) as (port, _):
            friends = [await connect(port) for _ in range(2)]
            assert [await say(one) for one in friends] == [b"hello"] * 2
            late = await connect(port)

            assert await say(late) == b""
            for one in (*friends, late):
                one.close()

    go(work())


def test_a_stranger_is_closed_in_time_and_a_friend_is_not() -> None:
    async def work() -> None:
        async with greeting(ConnectionLimits(stranger_s=0.2)) as (port, connections):
            friend, silent, wrong = [await connect(port) for _ in range(3)]
            assert await say(friend) == b"hello"
            assert await say(wrong, b"let us in\n") in {b"no", b""}
            loop = asyncio.get_running_loop()
            for one in (silent, wrong):
                with suppress(ConnectionError):
                    assert await loop.sock_recv(one, 64) == b""

            assert connections.counts.timed_out == 2
            assert connections.counts.open == 1
            for one in (friend, silent, wrong):
                one.close()

    go(work())


def test_a_machine_takes_no_more_than_its_share() -> None:
    limits = ConnectionLimits(total=100, per_address=4, stranger_s=3600)

    async def work() -> None:
        async with greeting(limits) as (port, connections):
            clients = [await connect(port, f"127.0.0.{n % 8 + 1}") for n in range(50)]
            while connections.counts.accepted < 50:  # noqa: ASYNC110 - a counter has no event
                await asyncio.sleep(0.01)

            # all of 127.0.0.0/8 is this machine
            assert connections.counts.open == 4
            for one in clients:
                one.close()

    go(work())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_of_this_machine_crowds_out_only_itself() -> None:
    code = (
        "import os, socket, sys\n"
        "os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
        "others = [socket.socket() for _ in range(100)]\n"
        "for one in others: one.connect(('127.0.0.1', int(sys.argv[1])))\n"
        "print(flush=True); sys.stdin.read()\n"
    )
    limits = ConnectionLimits(total=50, per_address=10, stranger_s=3600)

    async def work() -> None:
        async with greeting(limits) as (port, connections):
            first = await connect(port)
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", code, str(port)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            assert child.stdout is not None
            await child.stdout.readline()
            while connections.counts.accepted < 101:  # noqa: ASYNC110 - a counter has no event
                await asyncio.sleep(0.01)

            assert connections.counts.open == 11
            assert await say(first) == b"hello"
            await child.communicate(b"")
            first.close()

    go(work())


@pytest.mark.parametrize(
    ("address", "machine"),
    [
        (("10.0.0.3", 5), "10.0.0.3"),
        (("127.8.9.1", 5), "loopback"),
        (("::1", 5, 0, 0), "loopback"),
        (("::ffff:127.0.0.1", 5, 0, 0), "loopback"),
        (("::ffff:10.0.0.3", 5, 0, 0), "10.0.0.3"),
        (("2001:db8::1", 5, 0, 0), "2001:db8::/64"),
        (("2001:db8::ffff:1", 5, 0, 0), "2001:db8::/64"),
        (("fe80::1%eth0", 5, 0, 3), "fe80::/64"),
        ("", "loopback"),
        (b"", "loopback"),
    ],
)
def test_an_address_stands_for_a_machine(address: object, machine: str) -> None:
    assert name_machine(address) == machine


def test_without_descriptors_strangers_make_room() -> None:
    async def work() -> None:
        async with greeting(ConnectionLimits(stranger_s=3600)) as (port, connections):
            clients = [socket.socket() for _ in range(40)]
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            lowest = os.dup(0)
            os.close(lowest)
            loop = asyncio.get_running_loop()
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 8, hard))
            try:
                for one in clients:
                    one.setblocking(False)
                    await loop.sock_connect(one, ("127.0.0.1", port))
                assert await say(clients[-1]) == b"hello"
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert connections.counts.crowded_out > 0
            for one in clients:
                one.close()

    go(work())


@pytest.mark.parametrize("has_tls", [False, True])
def test_200_slow_clients_hold_up_no_call(tmp_path: Path, has_tls: bool) -> None:
    cert = make_certificate(tmp_path)
    tls = make_server_tls(cert, cert.with_suffix(".key")) if has_tls else None
    trust = ssl.create_default_context(cafile=str(cert)) if has_tls else None
    auth = RpcAuth(token=TOKEN, tls=tls)
    limits = RpcLimits(read_s=3600, connections=100)

    async def work() -> None:
        async with running(limits=limits, auth=auth) as agent:
            slow = [await connect(agent.port, f"127.0.0.{n % 8 + 1}") for n in range(200)]
            for one in slow:
                with suppress(ConnectionError):
                    await asyncio.get_running_loop().sock_sendall(one, b"\x16\x03\x01")
            where = RpcAddress(host="localhost", port=agent.port, token=TOKEN, tls=trust)
            for _ in range(8):
                assert await call(where, "getStatus", {}, timeout_s=60) == {"status": 1}
            for one in slow:
                one.close()

    go(work())


def test_large_requests_of_strangers_are_read_few_at_a_time() -> None:
    body = b'{"fn":"getStatus","pad":"%s"}' % (b"x" * 900_000)

    async def work() -> None:
        async with running(limits=RpcLimits(read_s=2)) as agent:
            # GIVEN many that send all but the last byte
            writers = []
            for _ in range(30):
                _, writer = await asyncio.open_connection("127.0.0.1", agent.port)
                writer.write(pack_frame(body)[:-1])
                writers.append(writer)
            assert await send_raw(agent.port, STATUS) == ONE
            # A whole one waits until those are closed, and is then read.
            while agent.server.counters.timed_out < 30:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
            assert await send_raw(agent.port, pack_frame(body)) == ONE
            assert agent.server._large._value == 8
            for writer in writers:
                writer.close()

    go(work())


def test_single_bytes_do_not_renew_the_time_of_a_call() -> None:
    async def work() -> None:
        async with running(limits=RpcLimits(read_s=0.2)) as agent:
            reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
            with suppress(ConnectionError):
                while not reader.at_eof():
                    writer.write(b"\1\0")  # 65537 bytes are to come
                    await writer.drain()
                    await asyncio.sleep(0.01)
            writer.close()
            assert agent.server.counters.timed_out == 1

    go(work())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_is_not_answered_at_the_socket_file(tmp_path: Path) -> None:
    code = (
        "import os, socket, sys\n"
        "client = socket.socket(socket.AF_UNIX); client.settimeout(60)\n"
        "os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
        "client.connect('rpc')\n"
        "try: client.sendall(bytes.fromhex(sys.argv[1])); print(client.recv(100))\n"
        "except ConnectionError: print(b'')\n"
    )
    tmp_path.chmod(0o711)

    async def work() -> None:
        async with running() as agent:
            path = tmp_path / "rpc"
            await agent.server.listen_unix(path)
            path.chmod(0o666)  # the mode of the file is not all that keeps others out
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", code, STATUS.hex()),
                stdout=asyncio.subprocess.PIPE,
                cwd=tmp_path,
            )
            told, _ = await child.communicate()
            assert told.strip() == b"b''"
            assert agent.server.counters.refused == 1

    go(work())
