"""Our own calls: start, follow, cancel and fetch."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.agent.rpc.parts import Agent, running

from whystuck.agent.rpc.client import CallError, RpcAddress, call
from whystuck.evidence.agent import ProcessEntry, ProcessKind, TraceState

RANK = ProcessEntry(pid=11, told_pids=(11,), kind=ProcessKind.RANK, rank=0, node="n1")


def run(work: Callable[[Agent], Awaitable[None]]) -> None:
    async def go() -> None:
        async with running([RANK]) as agent:
            await work(agent)

    asyncio.run(asyncio.wait_for(go(), 120))


async def ask(agent: Agent, name: str, **fields: Any) -> dict[str, Any]:
    return await call(agent.address, f"whystuck.{name}", fields, timeout_s=60)


def test_processes_and_status_are_told() -> None:
    async def work(agent: Agent) -> None:
        assert (await ask(agent, "processes"))["processes"][0]["rank"] == 0
        assert await ask(agent, "status") == {"agent": {"pid": 1}}

    run(work)


def test_trace_is_started_with_an_id_of_its_own_or_the_given_one() -> None:
    async def work(agent: Agent) -> None:
        first = await ask(agent, "trace.start", request={"iterations": 3, "new_field": 1})
        assert len(first["id"]) == 16
        assert first["progress"][0]["state"] == "pending"
        assert agent.tracer.requests[0].iterations == 3
        assert (await ask(agent, "trace.start", request={"id": "mine"}))["id"] == "mine"

    run(work)


def test_requests_are_told_in_the_log_also_those_that_are_refused(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, logger="whystuck")

    async def work(agent: Agent) -> None:
        await ask(agent, "trace.start", request={"id": "a", "iterations": 3, "job": "j"})
        await ask(agent, "trace.start", request={"id": "b", "ranks": [0, 1, 2], "pids": [11]})
        other = ProcessEntry(pid=12, kind=ProcessKind.RANK, rank=0, job="j2")
        monkeypatch.setattr(agent.registry, "entries", [RANK, other])
        with pytest.raises(CallError):
            await ask(agent, "trace.start", request={"id": "c"}, is_one_job=True)

    run(work)
    refused = (
        "a trace was refused: 2 jobs run here: one without a name, j2; "
        "hint: choose one with --job, or its processes with --pid"
    )
    assert [one.getMessage() for one in caplog.records] == [
        "trace a: 3 iterations of job j are wanted: 1 processes match",
        "trace b: 500 ms, ranks 0-2, pids 11 are wanted: 1 processes match",
        refused,
    ]


def test_progress_waits_for_news_and_tells_old_ones_at_once() -> None:
    async def work(agent: Agent) -> None:
        await ask(agent, "trace.start", request={"id": "t"})
        seen = {"11": "pending"}
        waiting = asyncio.create_task(ask(agent, "trace.progress", id="t", timeout_s=30, seen=seen))
        while not waiting.done():
            agent.tracer.set_state("t", TraceState.COLLECTING)
            await asyncio.sleep(0.005)
        assert waiting.result()["progress"][0]["state"] == "collecting"
        late = await ask(agent, "trace.progress", id="t", timeout_s=30, seen=seen)
        assert late["progress"][0]["state"] == "collecting"
        same = {"11": "collecting"}
        still = await ask(agent, "trace.progress", id="t", timeout_s=0.01, seen=same)
        assert still["progress"][0]["state"] == "collecting"

    run(work)


def test_cancel_tells_what_became_of_it() -> None:
    async def work(agent: Agent) -> None:
        await ask(agent, "trace.start", request={"id": "t"})
        assert (await ask(agent, "trace.cancel", id="t"))["progress"][0]["state"] == "cancelled"

    run(work)


@pytest.mark.parametrize(
    ("name", "fields", "kind"),
    [
        ("trace.progress", {"id": "nope"}, "unknown-trace"),
        ("trace.cancel", {"id": "nope"}, "unknown-trace"),
        ("trace.fetch", {"id": "nope", "pid": 1}, "unknown-trace"),
        ("trace.progress", {}, "usage"),
        ("trace.progress", {"id": "x" * 300}, "usage"),
        ("trace.progress", {"id": 7}, "usage"),
        ("trace.start", {}, "usage"),
        ("trace.start", {"request": {"ranks": "all"}}, "usage"),
        ("trace.fetch", {"id": "t", "pid": 11, "offset": -1}, "usage"),
    ],
)
def test_wrong_request_says_what_is_wrong(name: str, fields: dict[str, Any], kind: str) -> None:
    async def work(agent: Agent) -> None:
        with pytest.raises(CallError) as caught:
            await ask(agent, name, **fields)
        assert (caught.value.kind, caught.value.told_kind) == ("told", kind)
        assert caught.value.hint

    run(work)


def test_file_is_fetched_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(os.urandom(1000))

    async def work(agent: Agent) -> None:
        await ask(agent, "trace.start", request={"id": "t"})
        agent.tracer.set_state("t", TraceState.WRITTEN, str(path))
        pieces = [
            await ask(agent, "trace.fetch", id="t", pid=11, offset=at, size_bytes=600)
            for at in (0, 600, 1000)
        ]
        data = b"".join(base64.b64decode(one["data"]) for one in pieces)
        assert data == path.read_bytes()
        assert {one["total_bytes"] for one in pieces} == {1000}

    run(work)


@pytest.mark.parametrize("what", ["pending", "other pid", "gone", "link", "pipe", "url"])
def test_nothing_but_a_written_file_is_fetched(tmp_path: Path, what: str) -> None:
    path = tmp_path / "trace.json"
    secret = tmp_path / "secret"
    secret.write_text("secret")
    if what == "link":
        path.symlink_to(secret)
    elif what == "pipe":
        os.mkfifo(path)
    elif what != "gone":
        path.write_text("{}")

    async def work(agent: Agent) -> None:
        await ask(agent, "trace.start", request={"id": "t"})
        state = TraceState.PENDING if what == "pending" else TraceState.WRITTEN
        agent.tracer.set_state("t", state, "s3://x/y" if what == "url" else str(path))
        with pytest.raises(CallError) as caught:
            await ask(agent, "trace.fetch", id="t", pid=12 if what == "other pid" else 11)
        assert caught.value.told_kind == "unreadable"

    run(work)


def test_agent_that_is_not_there_or_mute_is_told_apart(tmp_path: Path) -> None:
    async def kind_of(address: RpcAddress) -> str:
        with pytest.raises(CallError) as caught:
            await call(address, "whystuck.status", {}, timeout_s=0.3)
        assert caught.value.hint
        return caught.value.kind

    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            port = mute.getsockname()[1]
            assert await kind_of(RpcAddress(host="127.0.0.1", port=port)) == "mute"
        assert await kind_of(RpcAddress(host="127.0.0.1", port=port)) == "refused"
        assert await kind_of(RpcAddress(path=str(tmp_path / "none"))) == "refused"

        async def say_hello(_reader: object, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
            await writer.drain()
            writer.close()

        other = await asyncio.start_server(say_hello, "127.0.0.1", 0)
        port = other.sockets[0].getsockname()[1]
        assert await kind_of(RpcAddress(host="127.0.0.1", port=port)) == "garbled"
        other.close()

    asyncio.run(work())
