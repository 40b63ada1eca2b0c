"""No client can hold up another, or get what it may not have."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.agent.rpc.parts import Agent, running, send_raw

from whystuck.agent.connections import bind
from whystuck.agent.rpc.auth import RpcAuth
from whystuck.agent.rpc.frames import MAX_REQUEST_BYTES, pack_frame
from whystuck.agent.rpc.peers import ask_loopback_uid, find_uid, is_loopback, read_loopback_uid
from whystuck.agent.rpc.server import RpcLimits
from whystuck.evidence.errors import UsageError

STATUS = pack_frame(b'{"fn":"getStatus"}')
ONE = pack_frame(b'{"status":1}')


def go(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 120))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_both_loopback_addresses_answer(host: str) -> None:
    async def work() -> None:
        async with running() as agent:
            assert await send_raw(agent.port, STATUS, host) == ONE

    go(work())


def test_silent_clients_do_not_hold_up_others() -> None:
    async def work() -> None:
        async with running(limits=RpcLimits(read_s=60)) as agent:
            silent = [await asyncio.open_connection("127.0.0.1", agent.port) for _ in range(20)]
            for _, writer in silent[10:]:
                writer.write(struct.pack("=i", 500) + b'{"fn"')
            assert await send_raw(agent.port, STATUS) == ONE
            for _, writer in silent:
                writer.close()

    go(work())


def test_slow_client_is_closed_in_time() -> None:
    async def work() -> None:
        async with running(limits=RpcLimits(read_s=0.05)) as agent:
            assert await send_raw(agent.port, struct.pack("=i", 500) + b"{") == b""
            assert agent.server.counters.timed_out == 1

    go(work())


def test_client_that_takes_no_reply_is_closed_in_time() -> None:
    async def work() -> None:
        agent = Agent(limits=RpcLimits(write_s=0.05))

        async def large(_request: object) -> bytes:
            return b"x" * (32 << 20)

        agent.server._calls["large"] = large
        agent.port = await agent.server.listen_tcp(0)
        _, writer = await asyncio.open_connection("127.0.0.1", agent.port, limit=1 << 10)
        writer.write(pack_frame(b'{"fn":"large"}'))
        while not agent.server.counters.timed_out:  # noqa: ASYNC110 - a counter has no event
            await asyncio.sleep(0.01)
        writer.close()
        await agent.server.close()

    go(work())


def test_200_clients_at_once_are_all_answered() -> None:
    async def work() -> None:
        async with running() as agent:
            got = await asyncio.gather(*(send_raw(agent.port, STATUS) for _ in range(200)))
            assert got == [ONE] * 200
            assert agent.server.counters.answered == 200

    go(work())


def test_too_many_silent_clients_make_room() -> None:
    async def work() -> None:
        async with running(limits=RpcLimits(connections=5)) as agent:
            silent = [await asyncio.open_connection("127.0.0.1", agent.port) for _ in range(12)]
            assert await send_raw(agent.port, STATUS) == ONE
            assert agent.server.counters.crowded_out >= 7
            for _, writer in silent:
                writer.close()

    go(work())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        struct.pack("=i", 0),
        struct.pack("=i", -5) + b"{}",
        struct.pack("=i", MAX_REQUEST_BYTES + 1) + b"{}",
        b"GET / HTTP/1.1\r\n\r\n",
        pack_frame(b"[1]"),
        pack_frame(b"\xff" * 100),
    ],
)
def test_garbage_is_closed_without_a_reply(data: bytes) -> None:
    async def work() -> None:
        async with running(limits=RpcLimits(read_s=0.3)) as agent:
            assert await send_raw(agent.port, data) == b""
            assert await send_raw(agent.port, STATUS) == ONE

    go(work())


def test_request_of_the_largest_size_is_read() -> None:
    async def work() -> None:
        body = b'{"fn":"getStatus","pad":"%s"}' % (b"x" * (MAX_REQUEST_BYTES - 27))
        assert len(body) == MAX_REQUEST_BYTES
        async with running() as agent:
            assert await send_raw(agent.port, pack_frame(body)) == ONE

    go(work())


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=30))
def test_server_outlives_any_bytes(blobs: list[bytes]) -> None:
    async def work() -> None:
        async with running(limits=RpcLimits(read_s=0.2)) as agent:
            framed = [pack_frame(blob) for blob in blobs]
            await asyncio.gather(*(send_raw(agent.port, one) for one in [*blobs, *framed]))
            assert await send_raw(agent.port, STATUS) == ONE
            assert agent.server.counters.failed == 0

    go(work())


def test_call_that_fails_costs_only_itself() -> None:
    async def work() -> None:
        async with running() as agent:

            async def fail(_request: object) -> bytes:
                raise ValueError("a bug")

            agent.server._calls["fail"] = fail
            assert await send_raw(agent.port, pack_frame(b'{"fn":"fail"}')) == b""
            assert await send_raw(agent.port, STATUS) == ONE
            assert agent.server.counters.failed == 1

    go(work())


def test_unix_socket_is_ours_alone_and_goes_at_the_end(tmp_path: Path) -> None:
    async def work() -> None:
        agent = Agent()
        path = tmp_path / "rpc"
        await agent.server.listen_unix(path)
        assert path.stat().st_mode & 0o777 == 0o600
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(STATUS)
        assert await reader.read() == ONE
        writer.close()
        await agent.server.close()
        assert not path.exists()

    go(work())


def test_stale_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "rpc"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    async def work() -> None:
        first, second = Agent(), Agent()
        await first.server.listen_unix(path)
        with pytest.raises(UsageError, match="another agent serves"):
            await second.server.listen_unix(path)
        await second.server.close()
        assert path.exists(), "an agent must not remove the socket of another"
        await first.server.close()

    go(work())


def test_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "rpc"
    path.write_text("mine")

    async def work() -> None:
        with pytest.raises(UsageError, match="in the way"):
            await Agent().server.listen_unix(path)

    go(work())
    assert path.read_text() == "mine"


def test_unix_socket_with_a_long_path_says_so(tmp_path: Path) -> None:
    async def work() -> None:
        with pytest.raises(UsageError, match="cannot be made"):
            await Agent().server.listen_unix(tmp_path / ("x" * 120))

    go(work())


def test_two_agents_on_one_port_is_a_clear_error() -> None:
    async def work() -> None:
        async with running() as agent:
            other = Agent()
            with pytest.raises(UsageError, match="something listens there already") as caught:
                await other.server.listen_tcp(agent.port)
            assert "another agent or dynolog" in caught.value.hint
            await other.server.close()

    go(work())


def test_free_port_is_one_that_is_free_on_both_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[socket.socket] = []

    def take_and_bind(address: str, port: int) -> list[socket.socket]:
        if address == "::1" and not taken:
            taken.append(socket.create_server(("::1", port), family=socket.AF_INET6))
        return bind(address, port)

    monkeypatch.setattr("whystuck.agent.rpc.binding.bind", take_and_bind)

    async def work() -> None:
        agent = Agent()
        port = await agent.server.listen_tcp(0)
        assert port != taken[0].getsockname()[1]
        assert await send_raw(port, STATUS, "127.0.0.1") == ONE
        assert await send_raw(port, STATUS, "::1") == ONE
        taken[0].close()
        await agent.server.close()

    go(work())


def test_address_that_is_not_ours_is_a_clear_error() -> None:
    async def work() -> None:
        with pytest.raises(UsageError, match="cannot listen on"):
            await Agent().server.listen_tcp(70000)
        with pytest.raises(UsageError, match="needs a token and TLS"):
            await Agent().server.listen_tcp(0, "0.0.0.0")
        with pytest.raises(UsageError, match="needs a token and TLS"):
            await Agent().server.listen_tcp(0, "::", RpcAuth(token="x" * 20))

    go(work())


def test_user_that_is_not_allowed_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        nobody = RpcAuth(uids=frozenset({os.getuid() + 12345}))
        async with running(auth=nobody) as agent:
            assert await send_raw(agent.port, STATUS) == b""
            await agent.server.listen_unix(tmp_path / "rpc", nobody)
            reader, writer = await asyncio.open_unix_connection(tmp_path / "rpc")
            with suppress(OSError):
                writer.write(STATUS)
                assert await reader.read() == b""
            writer.close()
            assert agent.server.counters.refused == 2

    go(work())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_other_user_of_this_machine_is_refused() -> None:
    program = (
        "import os, socket, sys; os.setuid(65534); "
        "c = socket.socket(); c.connect(('127.0.0.1', int(sys.argv[1])));"
        f"c.sendall({STATUS!r}); c.settimeout(60); sys.exit(len(c.recv(100)))"
    )

    async def work() -> None:
        async with running() as agent:
            other = await asyncio.create_subprocess_exec(
                sys.executable, "-c", program, str(agent.port)
            )
            code = await other.wait()
            assert code in {0, 1}, "nothing was read, or the connection was reset"
            assert agent.server.counters.refused == 1
            assert agent.server.counters.answered == 0

    go(work())


@pytest.mark.parametrize("look", [ask_loopback_uid, read_loopback_uid])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_uid_of_the_other_end_is_found_while_it_is_open(
    host: str, look: Callable[[tuple[str, int], tuple[str, int]], int | None]
) -> None:
    with socket.create_server((host, 0), family=socket.getaddrinfo(host, 0)[0][0]) as server:
        client = socket.create_connection(server.getsockname()[:2])
        accepted, peer = server.accept()
        own = accepted.getsockname()[:2]
        assert look(peer[:2], own) == os.getuid()
        client.close()
        assert look(peer[:2], own) is None
        accepted.close()


def test_uid_of_a_mapped_address_is_found() -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        client = socket.create_connection(("127.0.0.1", server.getsockname()[1]))
        accepted, peer = server.accept()
        assert peer[0] == "::ffff:127.0.0.1"
        for look in (ask_loopback_uid, read_loopback_uid):
            assert look(peer[:2], accepted.getsockname()[:2]) == os.getuid()
        accepted.close()
        client.close()


def test_server_works_where_the_kernel_has_no_sock_diag(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(peer: object, own: object) -> int | None:
        raise OSError("not in this sandbox")

    monkeypatch.setattr("whystuck.agent.rpc.server.ask_loopback_uid", refuse)

    async def work() -> None:
        async with running() as agent:
            assert await send_raw(agent.port, STATUS) == ONE

    go(work())


def test_uid_of_a_socket_without_an_owner_is_not_root() -> None:
    line = (
        b"  1: 0100007F:9C40 0100007F:06F2 04 00000000:00000000 00:00000000 00000000     0"
        b"        0 %d 1 0000000000000000 20 4 30 10 -1"
    )
    wanted = [b"0100007F:9C40", b"0100007F:06F2"]
    assert find_uid([line % 0], wanted) is None
    assert find_uid([line % 4711], wanted) == 0
    assert find_uid([b"", wanted[0], b" ".join(wanted)], wanted) is None


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("::", False),
        ("0.0.0.0", False),
        ("fe80::1%eth0", False),
        ("x", False),
    ],
)
def test_loopback_is_told_from_other_addresses(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected
