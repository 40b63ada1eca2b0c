"""One request to many nodes: each answers, or is told of by itself."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bench.agent_nodes import ask, dead_and_mute, simulated_agents
from tests.agent.rpc.parts import Agent, running

from whystuck.agent.ondemand.common_start import LEAD_S, ROUNDUP, choose_start
from whystuck.agent.rpc.client import RpcAddress
from whystuck.agent.rpc.discovery import HostList, LocalAgents, Node
from whystuck.agent.rpc.fetching import fetch_all
from whystuck.agent.rpc.nodes import FanOut, NodeRun, RpcTransport
from whystuck.agent.rpc.own_calls import node_folder
from whystuck.evidence.agent import (
    AgentRecord,
    ProcessEntry,
    ProcessKind,
    TraceProgress,
    TraceRequest,
    TraceState,
)
from whystuck.evidence.errors import UsageError


def rank(number: int, steps: int = -1, node: str = "n0") -> ProcessEntry:
    return ProcessEntry(
        pid=100 + number, kind=ProcessKind.RANK, rank=number, steps=steps, node=node
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", [("a", 1778)]),
        (" a , b:9 ,", [("a", 1778), ("b", 9)]),
        ("a,a,a:1", [("a", 1778), ("a", 1)]),
        ("[::1]:9,fe80::1,[::2]", [("::1", 9), ("fe80::1", 1778), ("::2", 1778)]),
    ],
)
def test_hosts_are_read_as_people_write_them(text: str, expected: list[tuple[str, int]]) -> None:
    nodes = HostList(text).find_nodes()

    assert [(one.address.host, one.address.port) for one in nodes] == expected


@pytest.mark.parametrize(
    "text",
    ["", ",", "a:", "a:0x", "a:70000", "a:0", ":9", "a b", "user@a", "s3://x", "[::1"],
)
def test_host_that_is_none_is_a_clear_error(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        HostList(text).find_nodes()
    assert caught.value.hint


def test_local_agents_of_one_node_are_told_apart() -> None:
    records = [AgentRecord(pid=pid, node="n", folder=f"/f{pid}") for pid in (1, 2)]

    nodes = LocalAgents(records).find_nodes()

    assert [one.name for one in nodes] == ["n, agent 1", "n, agent 2"]
    assert nodes[0].address.path == "/f1/rpc"
    assert LocalAgents(records[:1]).find_nodes()[0].name == "n"


def node_of(agent: Agent, name: str = "") -> Node:
    return Node(name or f"n{agent.port}", agent.address)


def test_all_nodes_are_asked_and_followed_to_the_end() -> None:
    async def work() -> None:
        async with AsyncExitStack() as stack:
            agents = [await stack.enter_async_context(running([rank(i)])) for i in range(12)]
            changes: list[NodeRun] = []

            def note(run: NodeRun) -> None:
                changes.append(run)
                at = agents[[node_of(one).name for one in agents].index(run.node.name)]
                if run.traces[0].state == TraceState.PENDING:
                    at.tracer.set_state("t", TraceState.WRITTEN)

            fan_out = FanOut([node_of(one) for one in agents], timeout_s=60)
            until_s = time.monotonic() + 60
            runs = await fan_out.trace(TraceRequest(id="t", iterations=3), until_s, note)
            assert [run.traces[0].state for run in runs] == [TraceState.WRITTEN] * 12
            assert [run.traces[0].rank for run in runs] == list(range(12))
            assert len(changes) == 24
            assert not any(run.problem for run in runs)

    asyncio.run(work())


def test_dead_node_costs_only_itself() -> None:
    async def work() -> None:
        async with running([rank(0)]) as agent:
            with socket.create_server(("127.0.0.1", 0)) as gone:
                dead = Node("dead", RpcAddress(host="127.0.0.1", port=gone.getsockname()[1]))
            runs = await FanOut([node_of(agent), dead], timeout_s=60).start(TraceRequest(id="t"))
            assert [run.kind for run in runs] == ["", "refused"]
            assert "cannot be reached" in runs[1].problem
            assert runs[1].hint
            assert runs[1].has_ended

    asyncio.run(work())


def test_mute_node_is_told_as_such() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        node = Node("mute", RpcAddress(host="127.0.0.1", port=mute.getsockname()[1]))
        runs = asyncio.run(FanOut([node], timeout_s=0.3).start(TraceRequest(id="t")))

    assert runs[0].kind == "mute"
    assert "does not answer within 0.3 s" in runs[0].problem


def test_node_that_goes_away_meanwhile_is_told() -> None:
    async def work() -> None:
        async with running([rank(0)]) as agent:

            def end(run: NodeRun) -> None:
                if not run.problem:
                    tasks.append(asyncio.ensure_future(agent.server.close()))

            tasks: list[asyncio.Future[None]] = []
            fan_out = FanOut([node_of(agent)], timeout_s=60)
            runs = await fan_out.trace(TraceRequest(id="t"), time.monotonic() + 60, end)
            assert runs[0].kind == "refused"
            assert runs[0].traces, "what was known stays known"

    asyncio.run(work())


def test_agent_that_has_forgotten_the_trace_is_told() -> None:
    async def work() -> None:
        async with running([rank(0)]) as agent:
            fan_out = FanOut([node_of(agent)], timeout_s=60)

            def forget(run: NodeRun) -> None:
                agent.tracer.traces.clear()

            runs = await fan_out.trace(TraceRequest(id="t"), time.monotonic() + 60, forget)
            assert (runs[0].kind, runs[0].told_kind) == ("told", "unknown-trace")

    asyncio.run(work())


def test_following_ends_in_time() -> None:
    async def work() -> None:
        async with running([rank(0)]) as agent:
            fan_out = FanOut([node_of(agent)], timeout_s=60)
            runs = await fan_out.trace(TraceRequest(id="t"), time.monotonic() + 0.2)
            assert runs[0].traces[0].state == TraceState.PENDING
            assert not runs[0].problem

    asyncio.run(work())


def test_answer_of_another_shape_is_a_problem_of_its_node() -> None:
    class Odd:
        async def call(
            self, node: Node, name: str, fields: Mapping[str, Any], timeout_s: float
        ) -> dict[str, Any]:
            return {"progress": [{"pid": "x"}], "processes": 7}

    async def work() -> None:
        fan_out = FanOut([Node("a", RpcAddress(host="a"))], Odd())
        assert (await fan_out.start(TraceRequest()))[0].kind == "garbled"
        [(_, answer)] = await fan_out.list_processes()
        assert not isinstance(answer, list)

    asyncio.run(work())


# ------------------------------------------------------------------------------------ start


def test_start_is_an_iteration_that_no_rank_has_begun() -> None:
    before = [rank(0, 100), rank(1, 90, "n1")]
    after = [rank(0, 120), rank(1, 100, "n1")]

    start, roundup = choose_start(before, after, 2.0, TraceRequest(iterations=3))

    assert start >= 120 + 10 * LEAD_S, "rank 0 makes 10 steps a second"
    assert roundup == 20


@pytest.mark.parametrize(
    "after", [[rank(0, 120), rank(1, 90)], [rank(0, 120), rank(1)], [rank(0, 120)], []]
)
def test_start_is_a_multiple_when_steps_are_not_known(after: list[ProcessEntry]) -> None:
    before = [rank(0, 100), rank(1, 90)]
    before = before if len(after) != 1 else [rank(1)]

    assert choose_start(before, after, 1.0, TraceRequest(iterations=3)) == (-1, ROUNDUP)


def test_ranks_that_are_not_asked_do_not_count() -> None:
    before, after = [rank(0, 1), rank(1)], [rank(0, 2), rank(1)]

    assert choose_start(before, after, 1.0, TraceRequest(iterations=3, ranks=(0,)))[0] > 0


def test_nodes_get_one_time_or_one_iteration() -> None:
    async def work() -> None:
        async with running([rank(0, 5)]) as one, running([rank(1, 5, "n1")]) as two:
            fan_out = FanOut([node_of(one), node_of(two)], timeout_s=60)
            timed = await fan_out.plan(TraceRequest(duration_ms=500))
            assert timed.start_time_ms > time.time() * 1000
            given = TraceRequest(iterations=3, roundup=7)
            assert await fan_out.plan(given) == given
            alone = FanOut([node_of(one)], timeout_s=60)
            assert await alone.plan(TraceRequest(iterations=3)) == TraceRequest(iterations=3)

            async def step() -> None:
                while True:
                    for agent in (one, two):
                        old = agent.registry.entries[0]
                        new = msgspec.structs.replace(old, steps=old.steps + 1)
                        agent.registry.entries[0] = new
                    await asyncio.sleep(0.05)

            stepping = asyncio.create_task(step())
            planned = await fan_out.plan(TraceRequest(iterations=3))
            stepping.cancel()
            assert planned.start_iteration > one.registry.entries[0].steps
            assert planned.roundup > 1

    asyncio.run(work())


def test_node_that_did_not_answer_is_not_waited_for_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        silent = Node("mute", RpcAddress(host="127.0.0.1", port=mute.getsockname()[1]))

        async def work() -> None:
            async with running([rank(0)]) as agent:
                fan_out = FanOut([node_of(agent), silent], timeout_s=2)
                request = await fan_out.plan(TraceRequest(id="t", iterations=3))
                assert request.roundup == ROUNDUP, "its steps are not known"
                runs = await fan_out.start(request)
                assert [run.kind for run in runs] == ["", "mute"]

        asyncio.run(work())
        mute.settimeout(0)
        mute.accept()[0].close()
        with pytest.raises(BlockingIOError):
            mute.accept()


# ------------------------------------------------------------------------------------ fetch


def written(agent: Agent, file: Path, name: str = "t") -> NodeRun:
    agent.tracer.start(TraceRequest(id=name))
    agent.tracer.set_state(name, TraceState.WRITTEN, str(file))
    return NodeRun(node_of(agent), traces=agent.tracer.progress(name))


def test_files_are_fetched_whole_and_under_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whystuck.agent.rpc.fetching.PIECE_BYTES", 1000)
    here = tmp_path / "here"

    async def work() -> None:
        async with running([rank(0)]) as one, running([rank(1)]) as two:
            runs = []
            for agent in (one, two):
                file = tmp_path / str(agent.port) / "trace rank.json.gz"
                file.parent.mkdir()
                file.write_bytes(str(agent.port).encode() * 2000)
                runs.append(written(agent, file))
            found = await fetch_all(runs, here, RpcTransport())
            paths = [found[run.node.name, run.traces[0].pid] for run in runs]
            for agent, path in zip((one, two), paths, strict=True):
                assert isinstance(path, Path)
                assert path.read_bytes() == str(agent.port).encode() * 2000
            assert sorted(one.name for one in here.iterdir()) == sorted(
                path.name for path in paths if isinstance(path, Path)
            )
            assert (tmp_path / str(one.port) / "trace rank.json.gz").exists()

    asyncio.run(work())


def test_file_that_was_made_to_be_fetched_is_removed_there(tmp_path: Path) -> None:
    name = f"test-{tmp_path.name}-{time.time_ns()}"
    file = Path(node_folder(name)) / "trace.json"
    file.parent.mkdir()
    file.write_text("{}")

    async def work() -> None:
        async with running([rank(0)]) as agent:
            run = written(agent, file, name)
            found = await fetch_all([run], tmp_path, RpcTransport())
            assert found[run.node.name, 100] == tmp_path / "trace.json"

    asyncio.run(work())
    assert not file.parent.exists()


def test_file_that_cannot_be_fetched_is_told(tmp_path: Path) -> None:
    async def work() -> None:
        async with running([rank(0)]) as agent:
            run = written(agent, tmp_path / "gone")
            found = await fetch_all([run], tmp_path, RpcTransport())
            assert "cannot be read" in str(found[run.node.name, 100])

    asyncio.run(work())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"total_bytes": -1, "data": ""},
        {"total_bytes": 1 << 60, "data": ""},
        {"total_bytes": 4, "data": "%%%"},
        {"total_bytes": 4, "data": ""},
        {"total_bytes": 1, "data": base64.b64encode(b"four").decode()},
    ],
)
def test_hostile_node_leaves_no_file(tmp_path: Path, reply: dict[str, Any]) -> None:
    class Hostile:
        async def call(
            self, node: Node, name: str, fields: Mapping[str, Any], timeout_s: float
        ) -> dict[str, Any]:
            return reply

    trace = TraceProgress(
        request_id="t", pid=1, state=TraceState.WRITTEN, file="/x/../../etc/.passwd"
    )
    run = NodeRun(Node("../../n", RpcAddress(host="n")), traces=[trace])

    found = asyncio.run(fetch_all([run], tmp_path / "here", Hostile()))

    assert isinstance(found["../../n", 1], str)
    assert [one.name for one in tmp_path.rglob("*")] == ["here"]


def test_link_beside_a_fetched_file_is_not_written_to(tmp_path: Path) -> None:
    class Good:
        async def call(
            self, node: Node, name: str, fields: Mapping[str, Any], timeout_s: float
        ) -> dict[str, Any]:
            return {"total_bytes": 4, "data": base64.b64encode(b"four").decode()}

    here, other = tmp_path / "here", tmp_path / "other"
    here.mkdir()
    other.write_text("mine")
    for name in (f"t.json.{os.getpid()}.part", "t.json"):
        (here / name).symlink_to(other)
    trace = TraceProgress(request_id="t", pid=1, state=TraceState.WRITTEN, file="/x/t.json")
    run = NodeRun(Node("n", RpcAddress(host="n")), traces=[trace])

    found = asyncio.run(fetch_all([run], here, Good()))["n", 1]

    assert isinstance(found, Path)
    assert (found.read_text(), other.read_text()) == ("four", "mine")


@pytest.mark.slow
def test_256_agents_answer_one_request() -> None:
    with dead_and_mute() as (dead, mute), simulated_agents(254) as ports:
        runs, _, _ = asyncio.run(ask([*ports, dead, mute]))

    assert sorted(run.kind for run in runs[-2:]) == ["mute", "refused"]
    assert not [run.problem for run in runs[:-2] if run.problem]
    assert {one.state for run in runs for one in run.traces} == {TraceState.WRITTEN}
    assert sum(len(run.traces) for run in runs) == 254 * 8
