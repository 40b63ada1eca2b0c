"""One request to 256 simulated agents on loopback, with one dead and one mute among them.

python bench/agent_nodes.py [--quick] [--agents N]

Each agent is a real RPC server on a port of its own; only what lies behind it is made up. All
states must be there within 5 s, and the dead and the mute one told as such.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from whystuck.agent.interfaces import FabricPoll
from whystuck.agent.rpc.discovery import HostList
from whystuck.agent.rpc.nodes import FanOut, NodeRun
from whystuck.agent.rpc.own_calls import OwnCalls, has_ended
from whystuck.agent.rpc.server import RpcServer
from whystuck.evidence.agent import (
    ProcessEntry,
    ProcessKind,
    TraceProgress,
    TraceRequest,
    TraceState,
)

BAR_S = 5.0
AGENTS = 256
PROCESSES = 2
_STEPS = (
    TraceState.PENDING,
    TraceState.WARM_UP,
    TraceState.COLLECTING,
    TraceState.WRITING,
    TraceState.WRITTEN,
)
_STEP_S = 0.2


class SimulatedRanks:
    """A registry and a tracer of eight ranks, whose traces take 0.8 s."""

    def __init__(self, number: int) -> None:
        self._entries = [
            ProcessEntry(
                pid=1000 + rank, kind=ProcessKind.RANK, rank=number * 8 + rank, node=f"n{number}"
            )
            for rank in range(8)
        ]
        self._started: dict[str, tuple[float, TraceRequest]] = {}

    def note(self, poll: FabricPoll) -> ProcessEntry:
        raise NotImplementedError

    def find(self, pid: int) -> ProcessEntry | None:
        return next((one for one in self._entries if one.pid == pid), None)

    def match(self, request: TraceRequest) -> list[ProcessEntry]:
        return [one for one in self._entries if not request.ranks or one.rank in request.ranks]

    def list_all(self) -> list[ProcessEntry]:
        return self._entries

    def answer(self, poll: FabricPoll) -> str:
        raise NotImplementedError

    def start(self, request: TraceRequest) -> list[TraceProgress]:
        self._started[request.id] = time.monotonic(), request
        return self.progress(request.id)

    def start_raw(self, config: str, request: TraceRequest) -> list[TraceProgress]:
        raise NotImplementedError

    def cancel(self, request_id: str) -> list[TraceProgress]:
        return self.progress(request_id)

    def progress(self, request_id: str) -> list[TraceProgress]:
        started_s, request = self._started[request_id]
        step = int((time.monotonic() - started_s) / _STEP_S)
        state = _STEPS[min(step, len(_STEPS) - 1)]
        return [
            TraceProgress(
                request_id=request_id, pid=one.pid, rank=one.rank, node=one.node, state=state
            )
            for one in self.match(request)
        ]

    async def wait(self, request_id: str, timeout_s: float) -> list[TraceProgress]:
        before, until_s = self.progress(request_id), time.monotonic() + timeout_s
        while time.monotonic() < until_s and not has_ended(before):
            await asyncio.sleep(_STEP_S / 8)
            if (now := self.progress(request_id)) != before:
                return now
        return self.progress(request_id)


async def serve(first: int, count: int) -> None:
    """Serve until stdin ends; the ports are told on stdout."""
    servers = []
    ports = []
    for number in range(first, first + count):
        ranks = SimulatedRanks(number)
        server = RpcServer(OwnCalls(ranks, ranks, dict).table())
        ports.append(await server.listen_tcp(0, "127.0.0.1"))
        servers.append(server)
    print(json.dumps(ports), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for server in servers:
        await server.close()


@contextmanager
def simulated_agents(count: int, processes: int = PROCESSES) -> Iterator[list[int]]:
    """Start simulated agents in some processes, and give their ports."""
    share = -(-count // processes)
    with ExitStack() as stack:
        children = []
        for first in range(0, count, share):
            command = [sys.executable, __file__, "--serve", str(first)]
            child = subprocess.Popen(
                [*command, "--agents", str(min(share, count - first))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(_end, child)
            children.append(child)
        ports = []
        for child in children:
            assert child.stdout
            ports += json.loads(child.stdout.readline())
        yield ports


def _end(child: subprocess.Popen[str]) -> None:
    assert child.stdin
    assert child.stdout
    child.stdin.close()
    child.stdout.close()
    child.wait(60)


@contextmanager
def dead_and_mute() -> Iterator[tuple[int, int]]:
    """Give a port where nobody listens, and one where somebody does and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        dead = gone.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as mute:
        yield dead, mute.getsockname()[1]


async def ask(ports: list[int]) -> tuple[list[NodeRun], float, float]:
    """Ask all for a trace and follow it.

    Gives the runs, and the seconds until every node had told a state or had a problem, and until
    the last state of all.
    """
    nodes = HostList(",".join(f"127.0.0.1:{port}" for port in ports)).find_nodes()
    fan_out = FanOut(nodes)
    request = TraceRequest(id="bench", iterations=3, start_iteration=100)
    began_s = time.monotonic()
    first_s: dict[str, float] = {}

    def note(run: NodeRun) -> None:
        first_s.setdefault(run.node.name, time.monotonic() - began_s)

    runs = await fan_out.trace(request, began_s + 60, note)
    return runs, max(first_s.values()), time.monotonic() - began_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--agents", type=int, default=AGENTS)
    parser.add_argument("--quick", action="store_true", help="the same: it takes some seconds")
    parser.add_argument("--serve", type=int, default=-1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve >= 0:
        asyncio.run(serve(options.serve, options.agents))
        return 0
    with dead_and_mute() as (dead, mute), simulated_agents(options.agents - 2) as ports:
        runs, told_s, ended_s = asyncio.run(ask([*ports, dead, mute]))
    kinds = [run.kind for run in runs if run.problem]
    written = sum(one.state == TraceState.WRITTEN for run in runs for one in run.traces)
    print(f"{len(runs)} agents, {written} traces written, problems: {', '.join(kinds)}")
    print(
        f"first states of all after {told_s:.2f} s, last ones after {ended_s:.2f} s (bar {BAR_S})"
    )
    is_told = sorted(kinds) == ["mute", "refused"] and written == 8 * len(ports)
    return 0 if is_told and ended_s <= BAR_S else 1


if __name__ == "__main__":
    sys.exit(main())
