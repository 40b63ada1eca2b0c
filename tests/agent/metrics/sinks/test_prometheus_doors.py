"""The endpoint for Prometheus answers who may ask, whatever others do with their connections."""

from __future__ import annotations

import http.client
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.metrics.parts import one
from tests.agent.rpc.parts import make_certificate

from whystuck.agent.metrics.sinks import http_requests
from whystuck.agent.metrics.sinks.prometheus import LIMITS, PrometheusSink
from whystuck.agent.rpc.auth import RpcAuth, make_server_tls
from whystuck.evidence.errors import UsageError

TOKEN = "0123456789abcdef"
GET = f"GET /metrics HTTP/1.1\r\nHost: n\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
PATIENT = replace(LIMITS, stranger_s=3600.0)
LOOPBACKS = [f"127.0.0.{number}" for number in range(1, 9)]
WAIT_S = 60


@contextmanager
def serving(**options: object) -> Iterator[PrometheusSink]:
    sink = PrometheusSink("n", 0, **{"auth": RpcAuth(token=TOKEN), **options})  # type: ignore[arg-type]
    sink.write([one("a")])
    try:
        yield sink
    finally:
        sink.close()


def scrape(port: int, tls: ssl.SSLContext | None = None) -> int:
    if tls:
        made: http.client.HTTPConnection = http.client.HTTPSConnection(
            "localhost", port, timeout=WAIT_S, context=tls
        )
    else:
        made = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    with closing(made) as connection:
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
        answer = connection.getresponse()
        assert b"whystuck_test_ratio" in answer.read()
        return answer.status


def connect(port: int, data: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), WAIT_S, source_address=(source, 0))
    client.sendall(data)
    return client


def is_closed(client: socket.socket) -> bool:
    """Whether the other side ends it, with or without an answer."""
    try:
        while client.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def wait_until(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.01)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET /met",
        b"GET /metrics HTTP/1.1\r\nX: y\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n",
    ],
    ids=["silent", "line", "headers", "body"],
)
@pytest.mark.parametrize("sources", [LOOPBACKS[:1], LOOPBACKS], ids=["one address", "some"])
def test_200_slow_clients_hold_up_no_scrape(data: bytes, sources: list[str]) -> None:
    with serving(limits=PATIENT) as sink, ExitStack() as stack:
        for number in range(200):
            source = sources[number % len(sources)]
            stack.enter_context(closing(connect(sink.port, data, source)))

        assert [scrape(sink.port) for _ in range(8)] == [200] * 8


def test_200_clients_without_the_right_token_hold_up_no_scrape() -> None:
    wrong = GET.replace(TOKEN.encode(), b"wrong")
    with serving(limits=PATIENT) as sink, ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(closing(connect(sink.port, wrong)))

        assert [scrape(sink.port) for _ in range(8)] == [200] * 8


def test_200_clients_that_never_finish_tls_hold_up_no_scrape(tmp_path: Path) -> None:
    cert = make_certificate(tmp_path)
    auth = RpcAuth(token=TOKEN, tls=make_server_tls(cert, cert.with_suffix(".key")))
    trusting = ssl.create_default_context(cafile=str(cert))
    with serving(auth=auth, limits=PATIENT) as sink, ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(closing(connect(sink.port, b"\x16\x03\x01\x02\x00\x01")))

        assert [scrape(sink.port, trusting) for _ in range(8)] == [200] * 8


@pytest.mark.parametrize("has_tls", [False, True])
def test_single_bytes_do_not_renew_the_time_of_a_stranger(tmp_path: Path, has_tls: bool) -> None:
    cert = make_certificate(tmp_path)
    tls = make_server_tls(cert, cert.with_suffix(".key")) if has_tls else None
    auth = RpcAuth(token=TOKEN, tls=tls)
    limits = replace(LIMITS, stranger_s=0.3)
    with serving(auth=auth, limits=limits) as sink, closing(connect(sink.port)) as client:
        # GIVEN a client that sends a byte more often than any deadline of silence
        until_s = time.monotonic() + WAIT_S
        letters = (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\1" * 400 if has_tls else GET * 1000
        )
        with suppress(ConnectionError):
            for letter in letters:
                assert time.monotonic() < until_s
                client.sendall(bytes([letter]))
                time.sleep(0.01)
        assert sink.connections.counts.timed_out == 1


def test_who_was_let_in_and_does_not_read_is_closed_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_requests, "ANSWER_S", 0.3)
    with serving() as sink:
        sink.write([one("x" * 200 + str(number)) for number in range(100_000)])
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(WAIT_S)
        client.connect(("127.0.0.1", sink.port))
        client.sendall(GET)
        wait_until(lambda: is_reset(client))
        wait_until(lambda: sink.connections.counts.open == 0)
        client.close()
        sink.write([one("a")])

        assert scrape(sink.port) == 200


def is_reset(client: socket.socket) -> bool:
    """Whether the other side has dropped what it could not send."""
    established = 1
    return client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != established


def test_slow_readers_do_not_keep_a_scrape_out() -> None:
    with serving() as sink, ExitStack() as stack:
        sink.write([one("x" * 200 + str(number)) for number in range(20_000)])
        for _ in range(40):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", sink.port))
            client.sendall(GET)

        assert [scrape(sink.port) for _ in range(8)] == [200] * 8


def test_of_pipelined_requests_the_first_is_answered() -> None:
    with serving() as sink, closing(connect(sink.port, GET * 3)) as client:
        got = b""
        while more := client.recv(1 << 16):
            got += more

    assert got.count(b"HTTP/1.1 200 OK") == 1
    assert b"Connection: close" in got


@pytest.mark.parametrize(
    "data",
    [
        b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 100_000,
        b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 20_000,
        b"GET /" + b"m" * 100_000,
        b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"1000\r\n" + b"x" * 4096 + b"\r\n1000\r\n",
        b"GET /metrics HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
    ids=["header", "headers", "path", "body", "chunks", "two lengths"],
)
def test_what_is_too_large_is_closed_without_waiting_for_the_end(data: bytes) -> None:
    with serving(limits=PATIENT) as sink, closing(connect(sink.port)) as client:
        try:
            client.sendall(data)
        except OSError:
            return  # closed before all of it was sent
        assert is_closed(client)


@pytest.mark.parametrize("given", [TOKEN, f"Basic {TOKEN}", f"Bearer  {TOKEN}", f"bearer{TOKEN}"])
def test_the_token_has_one_form(given: str) -> None:
    with serving() as sink, closing(http.client.HTTPConnection("127.0.0.1", sink.port)) as client:
        client.request("GET", "/metrics", headers={"Authorization": given})
        assert client.getresponse().status == 401


def test_a_token_alone_is_not_enough_where_others_can_listen() -> None:
    with pytest.raises(UsageError) as caught:
        PrometheusSink("n", 0, address="0.0.0.0", auth=RpcAuth(token=TOKEN))

    assert "needs a token and TLS" in caught.value.message


def test_without_tornado_the_endpoint_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['tornado'] = None\n"
        "import whystuck.agent.daemon, whystuck.agent.measuring\n"
        "from whystuck.agent.metrics.sinks.prometheus import PrometheusSink\n"
        "from whystuck.evidence.errors import UsageError\n"
        "try: PrometheusSink('n', 0)\n"
        "except UsageError as error: print(error.message, error.hint, sep='|')\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == (
        "metrics cannot be served: Tornado is not installed|`pip install 'whystuck[prometheus]'`"
    )
