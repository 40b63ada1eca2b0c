"""A registry and a tracer of a few lines, for what lies in front of them."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec

from whystuck.agent.interfaces import FabricPoll
from whystuck.agent.rpc.auth import RpcAuth
from whystuck.agent.rpc.client import RpcAddress
from whystuck.agent.rpc.dyno_calls import DynoCalls
from whystuck.agent.rpc.own_calls import OwnCalls, has_ended
from whystuck.agent.rpc.server import RpcLimits, RpcServer
from whystuck.evidence.agent import (
    ProcessEntry,
    ProcessKind,
    TraceProgress,
    TraceRequest,
    TraceState,
)


class ListRegistry:
    """Knows what it was given."""

    def __init__(self, entries: Sequence[ProcessEntry] = ()) -> None:
        self.entries = list(entries)

    def note(self, poll: FabricPoll) -> ProcessEntry:
        raise NotImplementedError

    def find(self, pid: int) -> ProcessEntry | None:
        return next((one for one in self.entries if one.pid == pid), None)

    def match(self, request: TraceRequest) -> list[ProcessEntry]:
        last = (ProcessKind.LAUNCHER, ProcessKind.HELPER)
        found = [one for one in self.entries if self._is_wanted(one, request)]
        return sorted(found, key=lambda one: (one.kind in last, one.rank))

    def _is_wanted(self, one: ProcessEntry, request: TraceRequest) -> bool:
        pids = {one.pid, *one.told_pids}
        return (not request.pids or bool(pids & set(request.pids))) and (
            not request.ranks or one.rank in request.ranks
        )

    def list_all(self) -> list[ProcessEntry]:
        return self.entries


class StepTracer:
    """Keeps requests; a test moves them on with `set_state`."""

    def __init__(self, registry: ListRegistry) -> None:
        self.registry = registry
        self.configs: list[str] = []
        self.requests: list[TraceRequest] = []
        self.traces: dict[str, list[TraceProgress]] = {}
        self._changed = asyncio.Event()

    def answer(self, poll: FabricPoll) -> str:
        raise NotImplementedError

    def start(self, request: TraceRequest) -> list[TraceProgress]:
        self.requests.append(request)
        found = self.registry.match(request)[: request.process_limit]
        self.traces[request.id] = [
            TraceProgress(
                request_id=request.id,
                pid=one.pid,
                rank=one.rank,
                node=one.node,
                state=TraceState.BUSY if one.is_busy else TraceState.PENDING,
            )
            for one in found
        ]
        return self.traces[request.id]

    def start_raw(self, config: str, request: TraceRequest) -> list[TraceProgress]:
        self.configs.append(config)
        return self.start(request)

    def set_state(self, request_id: str, state: TraceState, file: str = "") -> None:
        self.traces[request_id] = [
            msgspec.structs.replace(one, state=state, file=file) for one in self.traces[request_id]
        ]
        self._changed.set()

    def cancel(self, request_id: str) -> list[TraceProgress]:
        self.set_state(request_id, TraceState.CANCELLED)
        return self.traces[request_id]

    def progress(self, request_id: str) -> list[TraceProgress]:
        return self.traces[request_id]

    async def wait(self, request_id: str, timeout_s: float) -> list[TraceProgress]:
        self._changed.clear()
        if not has_ended(self.traces[request_id]):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), timeout_s)
        return self.traces[request_id]


class Agent:
    """A server with all calls, over stand-ins."""

    def __init__(
        self, entries: Sequence[ProcessEntry] = (), limits: RpcLimits | None = None
    ) -> None:
        self.registry = ListRegistry(entries)
        self.tracer = StepTracer(self.registry)
        dyno = DynoCalls(self.registry, self.tracer)
        own = OwnCalls(self.registry, self.tracer, lambda: {"agent": {"pid": 1}})
        self.server = RpcServer({**dyno.table(), **own.table()}, limits)
        self.port = 0

    @property
    def address(self) -> RpcAddress:
        return RpcAddress(host="127.0.0.1", port=self.port)


@asynccontextmanager
async def running(
    entries: Sequence[ProcessEntry] = (),
    *,
    limits: RpcLimits | None = None,
    auth: RpcAuth | None = None,
    address: str = "",
) -> AsyncIterator[Agent]:
    agent = Agent(entries, limits)
    agent.port = await agent.server.listen_tcp(0, address, auth)
    try:
        yield agent
    finally:
        await agent.server.close()


async def send_raw(port: int, data: bytes, host: str = "127.0.0.1") -> bytes:
    """Send bytes as they are, and return all that comes back until the other side closes."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(data)
        await writer.drain()
        return await asyncio.wait_for(reader.read(), 60)
    except ConnectionError:
        return b""
    finally:
        writer.close()


def make_certificate(folder: Path, name: str = "agent", host: str = "localhost") -> Path:
    """Make a certificate that signs itself, and its key beside it, with the openssl command."""
    openssl = shutil.which("openssl")
    assert openssl
    cert = folder / f"{name}.pem"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", f"/CN={host}"),
            *("-addext", f"subjectAltName=DNS:{host},IP:127.0.0.1"),
            *("-keyout", str(cert.with_suffix(".key")), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    return cert
