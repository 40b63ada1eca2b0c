"""The endpoint that Prometheus scrapes."""

from __future__ import annotations

import hmac
import http.server
import ipaddress
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from whystuck.evidence.errors import StartError, UsageError
from whystuck.evidence.metrics import MetricFamily, Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ADDRESS = "127.0.0.1"
_MAX_CLIENTS = 8
_CLIENT_TIMEOUT_S = 10.0
_CLOSE_S = 0.5
_RETRY_S = 0.2
_HOME = b"The metrics of this node are at /metrics\n"


class PrometheusSink:
    """Serves the last round at ``/metrics``, from its creation until `close`.

    Args:
        node: The name of this node, which all samples get as a label.
        port: Where to listen; 0 takes a free one, see `port`.
        address: Where to listen; beyond this machine a token is needed, or ``is_open``.
        token: What clients must send as ``Authorization: Bearer``; empty for none.
        is_open: Whether anybody may read who can reach the address, as in a pod.
        labels: More labels of all samples; those of a sample itself go before.

    Raises:
        UsageError: The address needs a token.
        StartError: The port is taken, or the address is not of this machine.
    """

    name = "prometheus"

    def __init__(
        self,
        node: str,
        port: int,
        *,
        address: str = _ADDRESS,
        token: str = "",
        is_open: bool = False,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        if not token and not is_open and not _is_loopback(address):
            raise UsageError(
                f"metrics may not be served at {address} without a token",
                hint="give a token, or listen at 127.0.0.1",
            )
        self._exposition = _Exposition({**(labels or {}), "node": node})
        try:
            self._server = _Server(address, port, self._exposition, token)
        except OSError as error:
            raise StartError(
                f"metrics cannot be served at {address} port {port}: {error.strerror}",
                hint="choose another port",
            ) from None
        self._thread = threading.Thread(target=self._server.serve, name="metrics-http", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def write(self, samples: Sequence[Sample]) -> None:
        """Serve these from now on."""
        self._exposition.samples = samples

    def close(self) -> None:
        """Stop to listen."""
        self._server.end()
        self._thread.join(_CLOSE_S)


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


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


class _Server(http.server.ThreadingHTTPServer):
    """Serves few clients at a time, and none for long."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(self, address: str, port: int, exposition: _Exposition, token: str) -> None:
        self.exposition = exposition
        self.token = token
        self._is_ended = threading.Event()
        self._slots = threading.BoundedSemaphore(_MAX_CLIENTS)
        if ":" in address:
            self.address_family = socket.AF_INET6
        super().__init__((address, port), _Handler)

    def serve(self) -> None:
        """Serve until `end`, without waking up for nothing."""
        while not self._is_ended.is_set():
            self.handle_request()
        self.server_close()

    def end(self) -> None:
        """End `serve`: a listening socket that is shut down wakes up whoever waits for it."""
        self._is_ended.set()
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def server_bind(self) -> None:
        """Bind; the name of the host is not looked up, which may take long."""
        http.server.socketserver.TCPServer.server_bind(self)  # type: ignore[attr-defined]
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a client; while there are no free descriptors, do not try all the time."""
        try:
            return super().get_request()
        except OSError:
            self._is_ended.wait(_RETRY_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Take a client, or close its connection when there are too many."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Serve a client in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Say nothing: a client that went away is no trouble of ours."""


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = _CLIENT_TIMEOUT_S
    server: _Server
    server_version = "whystuck"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def _answer(self, *, has_body: bool) -> None:
        if not self._is_allowed():
            self._send(401, b"a token is needed\n", has_body=has_body)
            return
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._send(200, self.server.exposition.render(), has_body=has_body)
        elif path == "/":
            self._send(200, _HOME, has_body=has_body)
        else:
            self._send(404, b"there is only /metrics\n", has_body=has_body)

    def _is_allowed(self) -> bool:
        if not self.server.token:
            return True
        given = self.headers.get("Authorization", "")
        wanted = f"Bearer {self.server.token}"
        return hmac.compare_digest(given.encode(), wanted.encode())

    def _send(self, code: int, body: bytes, *, has_body: bool) -> None:
        self.send_response(code)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        if code == 401:  # noqa: PLR2004
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        if has_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Log nothing: each scrape is one request."""
