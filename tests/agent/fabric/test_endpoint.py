from __future__ import annotations

import asyncio
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.fabric.clients import Client, Handler, until

from whystuck.agent.agent_folder import agent_folder, claim_folder
from whystuck.agent.fabric import addresses, endpoint
from whystuck.agent.fabric.addresses import AbstractAddress, PathAddress
from whystuck.agent.fabric.endpoint import FabricEndpoint
from whystuck.agent.fabric.messages import (
    HEAD,
    MAX_CONFIG_BYTES,
    pack_context,
    pack_request,
)
from whystuck.agent.interfaces import FabricHandler, FabricPoll
from whystuck.evidence.errors import UsageError

# Datagrams that a client may leave unread: 10, or 512 where systemd has started the machine.
QUEUE = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ws", dir="/tmp") as name:
        yield Path(name) / "k"


@asynccontextmanager
async def _serving(
    handler: FabricHandler, where: Path | str, **options: bool
) -> AsyncIterator[FabricEndpoint]:
    address = AbstractAddress(where) if isinstance(where, str) else PathAddress(where)
    served = FabricEndpoint(handler, address, any_uid=options.get("any_uid", False))
    served.start()
    try:
        yield served
    finally:
        served.close()


def _mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def _move_away(folder: Path) -> None:
    folder.rename(folder.parent / "gone")


def _count_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _private_name() -> str:
    return f"dynolog-test-{os.getpid()}"


def test_poll_is_told_and_answered(folder: Path) -> None:
    async def go() -> None:
        handler = Handler("A=1\nB=ü", "")
        async with _serving(handler, folder) as served:
            with Client(folder) as client:
                assert await client.ask(pack_request(3, 42, (7, 8))) == "A=1\nB=ü"
                assert await client.ask(wants=1) == ""
                (first, second) = handler.polls
                assert first.address == f"{folder}/{client.name}"
                assert (first.pid, first.uid) == (os.getpid(), os.getuid())
                assert (first.told_pids, first.job_number, first.wants) == ((7, 8), 42, 3)
                assert (second.wants, second.can_answer) == (1, True)
                assert 0 < first.time_ns < second.time_ns
            assert (served.counts.polls, served.counts.answers, served.counts.configs) == (2, 2, 1)

    asyncio.run(go())


def test_socket_is_private_and_gone_in_the_end(folder: Path) -> None:
    async def go() -> None:
        async with _serving(Handler(), folder):
            assert _mode_of(folder / "dynolog") == 0o600
            assert _mode_of(folder) == 0o700
        assert not (folder / "dynolog").exists()

    asyncio.run(go())


def test_shared_socket_is_open_to_all(folder: Path) -> None:
    async def go() -> None:
        served = FabricEndpoint(Handler(), PathAddress(folder, is_shared=True), any_uid=True)
        served.start()
        assert _mode_of(folder / "dynolog") == 0o666
        served.close()

    asyncio.run(go())


def test_abstract_name_has_a_nul_at_its_end() -> None:
    async def go() -> None:
        handler = Handler("A=1")
        async with _serving(handler, _private_name()) as served:
            with Client(None, _private_name()) as client:
                assert await client.ask() == "A=1"
                assert handler.polls[0].address == f"\0{client.name}\0".encode()
            assert served.counts.answers == 1

    asyncio.run(go())


def test_name_that_another_has_is_refused() -> None:
    async def go() -> None:
        async with _serving(Handler(), _private_name()):
            with pytest.raises(UsageError, match="listens on the abstract socket"):
                FabricEndpoint(Handler(), AbstractAddress(_private_name())).start()

    asyncio.run(go())


def test_answer_never_goes_to_a_client_that_would_die_of_it(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An answer from the other kind of socket, or from another spelling, is a SIGABRT there."""

    async def go() -> None:
        handler = Handler()
        async with _serving(handler, folder) as served, _serving(handler, _private_name()) as other:
            (folder.parent / "link").symlink_to(folder)
            spellings = [f"{folder}/", f"{folder}/../k", f"{folder.parent}/link"]
            clients = [Client(name) for name in spellings]
            abstract = Client(None)
            abstract.daemon = f"{folder}/dynolog"
            below = Client(folder, _private_name())
            below.daemon = f"\0{_private_name()}\0".encode()
            unbound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            for client in [*clients, abstract, below]:
                client.send()
            unbound.sendto(pack_request(3, 0, ()), f"{folder}/dynolog")

            await until(lambda: served.counts.misplaced == 5 and other.counts.misplaced == 1)

            assert not any(client.has_answer() for client in [*clients, abstract, below])
            assert handler.polls == []
            for client in [*clients, abstract, below]:
                client.socket.close()
            unbound.close()

    asyncio.run(go())


def test_own_sockets_are_no_clients(folder: Path) -> None:
    where = PathAddress(folder)
    for name in ("dynolog", "rpc", "", "..", "a/b"):
        assert not where.may_answer(f"{folder}/{name}")
    assert not where.may_answer(b"\0dynoconfigclient\0")
    assert not where.may_answer(f"{folder}x/client")
    assert where.may_answer(f"{folder}/any-name")


def test_garbage_is_counted_and_others_are_served(folder: Path) -> None:
    bad = [b"x", b"\0" * 40, HEAD.pack(1 << 60, b"req"), b"a" * 5000, b"a" * 100_000]
    bad += [HEAD.pack(16, b"req") + struct.pack("@iiq", 3, n, 0) for n in (-1, 1, 1 << 30)]

    async def go() -> None:
        async with _serving(Handler(), folder) as served:
            with Client(folder) as client:
                for data in bad:
                    await asyncio.to_thread(client.send, data)
                assert await client.ask() == ""
            assert (served.counts.garbage, served.counts.answers) == (len(bad), 1)

    asyncio.run(go())


def test_any_datagrams_leave_the_service_intact(folder: Path) -> None:
    payloads = st.one_of(
        st.binary(min_size=1, max_size=300),
        st.builds(
            lambda name, size, rest: HEAD.pack(size, name) + rest,
            st.sampled_from([b"req", b"ctxt", b"", b"r" * 32]),
            st.one_of(st.integers(0, 100), st.integers(0, (1 << 64) - 1)),
            st.binary(max_size=100),
        ),
    )

    async def serve(datagrams: list[bytes]) -> None:
        async with _serving(Handler(), folder) as served:
            with Client(folder) as client, Client(folder) as other:
                for data in datagrams:
                    other.send(data)
                    await asyncio.sleep(0)
                assert await client.ask() == ""
            assert served.counts.failed == 0

    @settings(max_examples=40, deadline=None)
    @given(st.lists(payloads, max_size=8))
    def run(datagrams: list[bytes]) -> None:
        asyncio.run(serve(datagrams))

    run()


def test_open_files_that_somebody_passes_are_not_kept(folder: Path) -> None:
    async def go() -> None:
        async with _serving(Handler(), folder):
            with Client(folder) as client:
                await client.ask()
                before = _count_open_files()
                for _ in range(5):
                    fds = struct.pack("2i", 0, 1)
                    control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]
                    request = pack_request(3, 0, (1,))
                    client.socket.sendmsg([request], control, 0, client.daemon)
                    await client.receive()
                assert _count_open_files() == before

    asyncio.run(go())


AS_OTHER_USER = """
import os, socket, sys
os.setgid(12345); os.setuid(12345)
client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
client.bind(b"\\0other%d\\0" % os.getpid())
client.sendto(bytes.fromhex(sys.argv[2]), b"\\0" + sys.argv[1].encode() + b"\\0")
client.settimeout(20)
print(len(client.recv(100)) if sys.argv[3] == "wait" else "sent")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user, which root can")
@pytest.mark.parametrize("any_uid", [False, True])
def test_other_users_are_answered_only_when_asked_for(any_uid: bool) -> None:
    async def go() -> None:
        handler = Handler()
        async with _serving(handler, _private_name(), any_uid=any_uid) as served:
            request = pack_request(3, 0, (1,)).hex()
            mode = "wait" if any_uid else "go"
            command = [sys.executable, "-c", AS_OTHER_USER, _private_name(), request, mode]
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True)
            await until(lambda: served.counts.foreign + served.counts.answers == 1)
            assert served.counts.answers == any_uid
            assert [poll.uid for poll in handler.polls] == [12345] * any_uid
            assert done.stdout == (b"40\n" if any_uid else b"sent\n")

    asyncio.run(go())


def test_full_and_dead_clients_cost_only_themselves(folder: Path) -> None:
    async def go() -> None:
        handler = Handler()
        async with _serving(handler, folder) as served:
            with Client(folder) as full, Client(folder) as good:
                for number in range(1, QUEUE + 31):
                    full.send()
                    await handler.saw(number)
                assert served.counts.unsent > 0
                dead = Client(folder)
                dead.send()
                dead.socket.close()
                (folder / dead.name).unlink()
                assert await good.ask() == ""
            await until(lambda: served.counts.polls == QUEUE + 32)

    asyncio.run(go())


class _Broken(Handler):
    def answer(self, poll: FabricPoll) -> str:
        super().answer(poll)
        raise RuntimeError("a fault of ours")


def test_fault_of_the_handler_is_nothing_to_do(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        async with _serving(_Broken(), folder) as served:
            with Client(folder) as client:
                assert [await client.ask(), await client.ask()] == ["", ""]
            assert served.counts.failed == 2

    asyncio.run(go())
    assert caplog.text.count("could not be answered") == 1


def test_config_that_is_too_long_is_not_sent(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        handler = Handler("x" * MAX_CONFIG_BYTES, "x" * (MAX_CONFIG_BYTES + 1))
        async with _serving(handler, folder) as served:
            with Client(folder) as client:
                assert len(await client.ask()) == MAX_CONFIG_BYTES
                assert await client.ask() == ""
            assert served.counts.failed == 1

    asyncio.run(go())
    assert "65537 bytes" in caplog.text


def test_context_is_answered_with_the_number_of_users(folder: Path) -> None:
    async def count(client: Client, gpu: int, job: int) -> int:
        client.send(pack_context(gpu, os.getpid(), job))
        name, payload = await client.receive()
        assert name == b"ctxt"
        return int(struct.unpack("@i", payload)[0])

    ask = "import sys,socket\nfrom tests.agent.fabric.clients import Client\n"
    ask += "from whystuck.agent.fabric.messages import pack_context\n"
    ask += "c=Client(sys.argv[1]); c.send(pack_context(0, 1, 5)); print(c.receive_now()[1][0])"

    async def go() -> None:
        async with _serving(Handler(), folder):
            with Client(folder) as client:
                assert await count(client, 0, 5) == 1
                assert await count(client, 0, 5) == 1
                assert await count(client, 1, 5) == 1
                other = await asyncio.to_thread(
                    subprocess.run,
                    [sys.executable, "-c", ask, str(folder)],
                    capture_output=True,
                    check=True,
                    cwd=Path(__file__).parents[3],
                )
                assert other.stdout == b"2\n"
                assert await count(client, 0, 5) == 1  # the other has ended

    asyncio.run(go())


def test_answers_do_not_lag_behind_after_we_were_held_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client reads one answer a poll; late ones would stay before all that follow."""
    handler = Handler("late")

    async def go() -> None:
        async with _serving(handler, folder) as served:
            with Client(folder) as client:
                monkeypatch.setattr(endpoint, "_LATE_NS", 0)
                for _ in range(4):
                    client.send()  # and waits in vain each time
                await until(lambda: served.counts.polls == 4)
                assert served.counts.answers == 1
                monkeypatch.setattr(endpoint, "_LATE_NS", 1 << 62)
                assert await client.ask() == "late"
                handler.configs.append("next")
                assert await client.ask() == "next"
            assert (served.counts.answers, served.counts.late) == (2, 1)

    asyncio.run(go())


def test_slow_service_still_answers_every_poll(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "_LATE_NS", -1 << 62)  # all is late

    async def go() -> None:
        async with _serving(Handler("one", "two", "three"), folder):
            with Client(folder) as client:
                assert [await client.ask() for _ in range(3)] == ["one", "two", "three"]

    asyncio.run(go())


def test_busy_clients_do_not_hold_up_other_tasks(folder: Path) -> None:
    async def go() -> None:
        handler = Handler()
        async with _serving(handler, folder):
            with Client(folder) as client:
                stop = False

                def flood() -> None:
                    while not stop:
                        client.socket.settimeout(1)
                        client.send(b"garbage")

                flooding = asyncio.get_running_loop().run_in_executor(None, flood)
                for _ in range(50):
                    await asyncio.sleep(0)
                with Client(folder) as other:
                    assert await other.ask() == ""
                stop = True
                await flooding

    asyncio.run(go())


def test_stale_socket_is_replaced_and_a_served_one_is_not(folder: Path) -> None:
    async def go() -> None:
        agent_folder(folder)
        stale = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        stale.bind(f"{folder}/dynolog")
        with pytest.raises(UsageError, match="another daemon listens"):
            FabricEndpoint(Handler(), PathAddress(folder)).start()
        stale.close()
        async with _serving(Handler(), folder):
            with Client(folder) as client:
                assert await client.ask() == ""
        (folder / "dynolog").write_text("")
        with pytest.raises(UsageError, match="is no socket"):
            FabricEndpoint(Handler(), PathAddress(folder)).start()

    asyncio.run(go())


def test_removed_folder_is_made_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_CHECK_EVERY_S", 0.02)

    async def go() -> None:
        handler = Handler()
        remade: list[bool] = []
        claim = claim_folder(agent_folder(folder))
        address = PathAddress(folder, claim=claim)
        served = FabricEndpoint(handler, address, on_remade=lambda: remade.append(True))
        served.start()
        with Client(folder) as old:
            assert await old.ask() == ""
            _move_away(folder)
            await until(lambda: bool(remade))
            with Client(folder) as new:
                assert await new.ask() == ""
            assert claim.is_held()
            # Its socket's file went with the folder: it can ask, and never be answered.
            old.send()
            await until(lambda: len(handler.polls) == 3)
            assert [poll.can_answer for poll in handler.polls] == [True, True, False]
            assert (served.counts.remade, served.problem) == (1, "")
        served.close()
        claim.release()

    asyncio.run(go())


def test_folder_that_another_agent_took_is_left_to_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "_CHECK_EVERY_S", 0.02)

    async def go() -> None:
        claim = claim_folder(agent_folder(folder))
        served = FabricEndpoint(Handler(), PathAddress(folder, claim=claim))
        served.start()
        _move_away(folder)
        other_claim = claim_folder(agent_folder(folder))
        async with _serving(Handler("other"), folder):
            await until(lambda: "serves" in served.problem)
            with Client(folder) as client:
                assert await client.ask() == "other"
        other_claim.release()
        await until(lambda: served.problem == "")
        with Client(folder) as client:
            assert await client.ask() == ""
        served.close()

    asyncio.run(go())


def test_sockets_of_dead_clients_are_reaped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_MIN_AGE_S", -1.0)
    agent_folder(folder)
    with Client(folder) as alive:
        dead = Client(folder)
        dead.socket.close()
        (folder / "dynoconfigclient-file").touch()
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stream.bind(f"{folder}/rpc")
        stream.close()

        assert PathAddress(folder).reap() == 1

        assert not (folder / dead.name).exists()
        assert {path.name for path in folder.iterdir()} == {
            alive.name,
            "dynoconfigclient-file",
            "rpc",
        }


def test_socket_that_was_just_made_is_not_reaped(folder: Path) -> None:
    agent_folder(folder)
    young = Client(folder)
    young.socket.close()

    assert PathAddress(folder).reap() == 0
