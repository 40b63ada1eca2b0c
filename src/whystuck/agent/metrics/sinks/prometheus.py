"""The endpoint that Prometheus scrapes.

Tornado reads HTTP/1 (the extra `prometheus`); `Connections` decides who may hold a connection.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from whystuck.agent.connections import ConnectionLimits, Connections, Guest, bind
from whystuck.agent.rpc.auth import RpcAuth
from whystuck.evidence.errors import StartError, UsageError
from whystuck.evidence.nodes.metrics import MetricFamily, Sample

if TYPE_CHECKING:
    from whystuck.agent.metrics.sinks.http_requests import Answer

LIMITS = ConnectionLimits(total=256, per_address=64)
_ADDRESS = "127.0.0.1"
_CLOSE_S = 2.0
_HOME = b"The metrics of this node are at /metrics\n"


class PrometheusSink:
    """Serves the last round at ``/metrics``, from its creation until `close`.

    Args:
        node: The name of this node, which all samples get as a label.
        port: Where to listen; 0 takes a free one, see `port`.
        address: Where to listen; beyond this machine ``auth`` needs a token and TLS.
        auth: What clients must show: its token as ``Authorization: Bearer``.
        labels: More labels of all samples; those of a sample itself go before.
        limits: How many may connect, and for how long.

    Raises:
        UsageError: The address needs a token and TLS, or Tornado is not installed.
        StartError: The port is taken, or the address is not of this machine.
    """

    name = "prometheus"

    def __init__(
        self,
        node: str,
        port: int,
        *,
        address: str = _ADDRESS,
        auth: RpcAuth | None = None,
        labels: Mapping[str, str] | None = None,
        limits: ConnectionLimits = LIMITS,
    ) -> None:
        self._auth = auth or RpcAuth()
        self._auth.check_address(address)
        self._http = _import_http()
        self._exposition = _Exposition({**(labels or {}), "node": node})
        try:
            self._listeners = bind(address, port)
        except (OSError, OverflowError) as error:
            raise StartError(
                f"metrics cannot be served at {address} port {port}: "
                f"{getattr(error, 'strerror', None) or error}",
                hint="choose another port",
            ) from None
        self.port = int(self._listeners[0].getsockname()[1])
        self.connections = Connections(limits)
        self._loop = asyncio.new_event_loop()
        self._is_ended = asyncio.Event()
        self._thread = threading.Thread(target=self._work, name="metrics-http", daemon=True)
        self._thread.start()

    def write(self, samples: Sequence[Sample]) -> None:
        """Serve these from now on."""
        self._exposition.samples = samples

    def close(self) -> None:
        """Stop to listen."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._is_ended.set)
        self._thread.join(_CLOSE_S)

    def _work(self) -> None:
        """Serve in a loop of our own: to render much, or to encrypt it, holds up no job."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve_all())

    async def _serve_all(self) -> None:
        for one in self._listeners:
            self.connections.listen(one, self._serve)
        await self._is_ended.wait()
        await self.connections.close()

    async def _serve(self, guest: Guest) -> None:
        await self._http.serve(guest, self._auth.tls, self._answer)

    def _answer(self, guest: Guest, path: str, authorization: str) -> Answer:
        scheme, _, token = authorization.partition(" ")
        if not self._auth.takes(token if scheme == "Bearer" else None):
            return 401, b"a token is needed\n"
        guest.let_in()
        if path == "/metrics":
            return 200, self._exposition.render()
        return (200, _HOME) if path == "/" else (404, b"there is only /metrics\n")


def _import_http() -> ModuleType:
    try:
        from whystuck.agent.metrics.sinks import http_requests
    except ImportError:
        raise UsageError(
            "metrics cannot be served: Tornado is not installed",
            hint="`pip install 'whystuck[prometheus]'`",
        ) from None
    return http_requests


class _Exposition:
    """The text of the last round, made when somebody asks for it, once for each round.

    It is written here and not by prometheus_client, which takes ten times as long: with 64 ranks
    a node, that would be a quarter of all that the agent may use.
    """

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = labels
        self.samples: Sequence[Sample] = ()
        self._lock = threading.Lock()
        self._rendered: tuple[Sequence[Sample], bytes] = ((), b"")

    def render(self) -> bytes:
        """Return the text of the last round."""
        with self._lock:
            samples = self.samples
            if self._rendered[0] is not samples:
                self._rendered = (samples, render(samples, self._labels))
            return self._rendered[1]


def render(samples: Sequence[Sample], labels: Mapping[str, str]) -> bytes:
    """Return samples in the text format of Prometheus, version 0.0.4.

    ``labels`` are those of all samples; labels of a sample itself go before. An empty label is left
    out, which is the same to Prometheus.
    """
    by_name: dict[str, tuple[MetricFamily, list[Sample]]] = {}
    for sample in samples:
        by_name.setdefault(sample.family.name, (sample.family, []))[1].append(sample)
    lines: list[str] = []
    for name, (family, found) in by_name.items():
        text = family.help.replace("\\", "\\\\").replace("\n", "\\n")
        lines.append(f"# HELP {name} {text}\n# TYPE {name} {family.kind}\n")
        others = {key: value for key, value in labels.items() if key not in family.labels}
        common = [f'{key}="{_escape(value)}"' for key, value in others.items() if value]
        for sample in found:
            own = [
                f'{key}="{_escape(value or labels.get(key, ""))}"'
                for key, value in zip(family.labels, sample.labels, strict=True)
                if value or key in labels
            ]
            lines.append(f"{name}{{{','.join([*common, *own])}}} {sample.value!r}\n")
    return "".join(lines).encode()


def _escape(value: str) -> str:
    if value.isalnum():
        return value
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
