"""One request to the agents of many nodes: all at once, and what fails is told node by node.

How nodes are found (`Discovery`) and how they are called (`NodeTransport`) may be changed without
the rest: here, a list of hosts and one call to each.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import msgspec

from whystuck.agent.ondemand.common_start import LEAD_S, ROUNDUP, choose_start, has_steps, is_wanted
from whystuck.agent.rpc.client import CallError, call
from whystuck.agent.rpc.discovery import Node
from whystuck.agent.rpc.own_calls import check_one_job
from whystuck.evidence.agent import (
    ENDED,
    ProcessEntry,
    TraceProgress,
    TraceRequest,
)
from whystuck.evidence.decoding import convert
from whystuck.evidence.errors import WhystuckError

NODE_TIMEOUT_S = 4.0
"""How long a node may take to connect and answer before it counts as mute."""
POLL_S = 10.0
"""How long an agent keeps a question after news open."""
_LOOK_APART_S = 1.0
_LOOKS = 5
_TRIES = 3
_TRY_PAUSE_S = 0.3
_MAX_LOOKUPS = 256
_T = TypeVar("_T")


class NodeTransport(Protocol):
    """Calls one agent."""

    async def call(
        self, node: Node, name: str, fields: Mapping[str, Any], timeout_s: float
    ) -> dict[str, Any]:
        """Return its reply; raises CallError."""


class RpcTransport:
    """Calls each agent by its own connection."""

    async def call(
        self, node: Node, name: str, fields: Mapping[str, Any], timeout_s: float
    ) -> dict[str, Any]:
        """Return its reply; raises CallError."""
        return await call(node.address, name, fields, timeout_s=timeout_s)


@dataclass
class NodeRun:
    """What became of a request at one node.

    ``problem`` says why that is not known; ``kind`` and ``told_kind`` are those of a `CallError`.
    """

    node: Node
    traces: list[TraceProgress] = field(default_factory=list)
    problem: str = ""
    hint: str = ""
    kind: str = ""
    told_kind: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is to be expected of it."""
        return bool(self.problem) or all(one.state in ENDED for one in self.traces)

    def fail(self, error: WhystuckError) -> None:
        """Give up on it."""
        self.problem, self.hint = error.message, error.hint
        self.kind = getattr(error, "kind", "")
        self.told_kind = getattr(error, "told_kind", "")


OnChange = Callable[[NodeRun], None]


class FanOut:
    """Asks all nodes the same, side by side.

    Args:
        nodes: Whom to ask.
        transport: How.
        timeout_s: How long each may take for an answer.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        transport: NodeTransport | None = None,
        timeout_s: float = NODE_TIMEOUT_S,
    ) -> None:
        self.nodes = list(nodes)
        self._transport = transport or RpcTransport()
        self._timeout_s = timeout_s
        self._is_prepared = False
        self._failed: dict[Node, WhystuckError] = {}

    async def start(
        self, request: TraceRequest, on_change: OnChange | None = None
    ) -> list[NodeRun]:
        """Ask all nodes for a trace, and do not follow it."""
        return await self._ask_all("whystuck.trace.start", _as_fields(request), on_change)

    async def cancel(self, request_id: str) -> list[NodeRun]:
        """Ask all nodes to give up a trace."""
        return await self._ask_all("whystuck.trace.cancel", {"id": request_id}, None)

    async def trace(
        self, request: TraceRequest, until_s: float, on_change: OnChange | None = None
    ) -> list[NodeRun]:
        """Ask all nodes for a trace and follow it until it has ended at all of them.

        No node waits for another. One that does not answer, or stops to, is told of in its run.

        Args:
            request: What is wanted.
            until_s: When to stop, by ``time.monotonic()``.
            on_change: Gets a node's run whenever something in it has changed.
        """
        fields = _as_fields(request)
        self._prepare()

        async def take(node: Node) -> NodeRun:
            run = await self._ask(node, "whystuck.trace.start", fields, on_change)
            await self._follow(run, request.id, until_s, on_change)
            return run

        return await asyncio.gather(*(take(node) for node in self.nodes))

    async def _ask_all(
        self, name: str, fields: Mapping[str, Any], on_change: OnChange | None
    ) -> list[NodeRun]:
        self._prepare()
        asks = (self._ask(node, name, fields, on_change) for node in self.nodes)
        return await asyncio.gather(*asks)

    async def _ask(
        self, node: Node, name: str, fields: Mapping[str, Any], on_change: OnChange | None
    ) -> NodeRun:
        run = NodeRun(node)
        try:
            if node in self._failed:
                raise self._failed[node]
            reply = await self._transport.call(node, name, fields, self._timeout_s)
            run.traces = _read_progress(reply)
        except WhystuckError as error:
            run.fail(error)
        if on_change:
            on_change(run)
        return run

    async def check_local(self, request: TraceRequest) -> None:
        """Refuse to trace what several agents of this machine serve, each another job.

        Raises:
            CallRefusedError: It names the jobs.
        """
        if len(self.nodes) > 1 and all(one.is_local for one in self.nodes):
            if request.job or request.pids:
                return
            wanted = [one for one in await self._look() if is_wanted(one, request)]
            check_one_job(wanted)

    async def list_processes(self) -> list[tuple[Node, list[ProcessEntry] | WhystuckError]]:
        """Return the processes that each node knows, or why it does not tell."""

        async def ask(node: Node) -> tuple[Node, list[ProcessEntry] | WhystuckError]:
            try:
                if node in self._failed:
                    raise self._failed[node]
                reply = await self._transport.call(node, "whystuck.processes", {}, self._timeout_s)
                return node, _convert(reply.get("processes"), list[ProcessEntry])
            except WhystuckError as error:
                return node, error

        self._prepare()
        return await asyncio.gather(*(ask(node) for node in self.nodes))

    def _prepare(self) -> None:
        """Have a thread for each name to look up: one that a name server is silent on takes 5 s."""
        threads = min(len(self.nodes), _MAX_LOOKUPS)
        if threads > 1 and not self._is_prepared:
            pool = ThreadPoolExecutor(threads, thread_name_prefix="lookup")
            asyncio.get_running_loop().set_default_executor(pool)
            self._is_prepared = True

    async def plan(self, request: TraceRequest) -> TraceRequest:
        """Return the request with a start that ranks of several nodes can keep.

        Iterations get the number of the first one, from the steps that all ranks have made and how
        fast they make them, or a multiple to wait for. Times get a moment ahead.
        """
        has_start = request.start_time_ms or request.start_iteration >= 0 or request.roundup > 1
        hosts = [node for node in self.nodes if not node.is_local]
        if has_start or len(hosts) < 2:  # noqa: PLR2004 - one agent keeps its ranks together
            return request
        if not request.iterations:
            start_ms = int((time.time() + LEAD_S) * 1000)
            return msgspec.structs.replace(request, start_time_ms=start_ms)
        start, roundup = await self._choose_start(request)
        return msgspec.structs.replace(request, start_iteration=start, roundup=roundup)

    async def _choose_start(self, request: TraceRequest) -> tuple[int, int]:
        """Watch the steps of all ranks until each has made one, for some seconds at most."""
        found = await self.list_processes()
        # Who has not answered now is not waited for again.
        self._failed = {node: one for node, one in found if isinstance(one, WhystuckError)}
        first, begin_s = await self._look(), time.monotonic()
        chosen = (-1, ROUNDUP)
        for _ in range(_LOOKS if has_steps(first, request) else 0):
            await asyncio.sleep(_LOOK_APART_S)
            watched_s = time.monotonic() - begin_s
            chosen = choose_start(first, await self._look(), watched_s, request)
            if chosen[0] >= 0:
                break
        return chosen

    async def _look(self) -> list[ProcessEntry]:
        found = await self.list_processes()
        return [one for _, entries in found if isinstance(entries, list) for one in entries]

    async def _follow(
        self, run: NodeRun, request_id: str, until_s: float, on_change: OnChange | None
    ) -> None:
        while not run.has_ended and (left_s := until_s - time.monotonic()) > 0:
            seen = {str(one.pid): str(one.state) for one in run.traces}
            wait_s = min(POLL_S, left_s)
            fields = {"id": request_id, "timeout_s": wait_s, "seen": seen}
            try:
                reply = await self._try(
                    lambda fields=fields, wait_s=wait_s: self._transport.call(  # type: ignore[misc]
                        run.node, "whystuck.trace.progress", fields, wait_s + self._timeout_s
                    )
                )
                traces = _read_progress(reply)
            except WhystuckError as error:
                run.fail(error)
                _tell(on_change, run)
                return
            if traces != run.traces:
                run.traces = traces
                _tell(on_change, run)

    async def _try(self, ask: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Ask again when the network drops a connection, and not when the answer is a refusal."""
        for _ in range(_TRIES - 1):
            try:
                return await ask()
            except CallError as error:
                if error.kind not in {"refused", "closed"}:
                    raise
                await asyncio.sleep(_TRY_PAUSE_S)
        return await ask()


def _as_fields(request: TraceRequest) -> dict[str, Any]:
    """Return what a call takes; who chooses neither a job nor pids wants the only job there is."""
    is_one_job = not request.job and not request.pids
    return {"request": msgspec.to_builtins(request), "is_one_job": is_one_job}


def _tell(on_change: OnChange | None, run: NodeRun) -> None:
    if on_change:
        on_change(run)


def _read_progress(reply: Mapping[str, Any]) -> list[TraceProgress]:
    return _convert(reply.get("progress"), list[TraceProgress])


def _convert(value: object, kind: type[_T]) -> _T:
    try:
        return convert(value, kind)
    except msgspec.ValidationError as error:
        raise CallError(
            f"the answer is not understood: {error}",
            hint="agent and command may be of different versions",
            kind="garbled",
        ) from error
