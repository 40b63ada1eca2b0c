"""OTLP to a real receiver that takes the protobuf apart."""

from __future__ import annotations

import gzip
import http.server
import logging
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from tests.agent.metrics.parts import one

from whystuck.agent.metrics.families import counter, gauge
from whystuck.agent.metrics.sinks.otlp import OtlpSink
from whystuck.evidence.errors import UsageError
from whystuck.evidence.nodes.metrics import Sample

STEPS = counter("test_steps_total", "Steps made.", "job", "rank")
MEMORY = gauge("test_memory_bytes", "Memory.")


class Receiver(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.code = 200
        self.release = threading.Event()
        self.release.set()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/metrics"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        request = ExportMetricsServiceRequest.FromString(body)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.path, headers, request))
        self.server.release.wait(60)
        self.send_response(self.server.code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_request(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    thread = threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield made
    made.release.set()
    made.shutdown()
    made.server_close()


def attributes_of(point: Any) -> dict[str, str]:
    return {one.key: one.value.string_value for one in point.attributes}


def test_a_round_arrives_as_otlp(receiver: Receiver) -> None:
    headers = {"Authorization": "Bearer x"}
    sink = OtlpSink("n1", receiver.url, headers=headers, every_s=0, labels={"cluster": "c"})
    now_ns = time.time_ns()

    sink.write(
        [
            Sample(family=STEPS, value=7, labels=("llm", "3"), time_ns=now_ns),
            Sample(family=STEPS, value=9, labels=("llm", ""), time_ns=now_ns),
            Sample(family=MEMORY, value=0.5, time_ns=now_ns),
        ]
    )
    sink.close()

    [(path, sent, request)] = receiver.requests
    assert path == "/v1/metrics"
    assert sent["authorization"] == "Bearer x"
    [whole] = request.resource_metrics
    about = {one.key: one.value.string_value for one in whole.resource.attributes}
    assert about["host.name"] == about["node"] == "n1"
    assert about["service.name"] == "whystuck-agent"
    assert about["cluster"] == "c"
    steps, memory = whole.scope_metrics[0].metrics
    assert (steps.name, steps.description) == ("whystuck_test_steps", "Steps made.")
    assert steps.sum.is_monotonic
    assert steps.sum.aggregation_temporality == 2  # cumulative
    points = [
        (attributes_of(point), point.as_double or point.as_int) for point in steps.sum.data_points
    ]
    assert points == [({"job": "llm", "rank": "3"}, 7), ({"job": "llm"}, 9)]
    assert steps.sum.data_points[0].time_unix_nano == now_ns
    assert (memory.name, memory.unit) == ("whystuck_test_memory_bytes", "By")
    assert memory.gauge.data_points[0].as_double == 0.5


def test_rounds_in_between_are_not_sent(receiver: Receiver) -> None:
    sink = OtlpSink("n1", receiver.url, every_s=3600)

    for _ in range(5):
        sink.write([one("a")])
    sink.close()

    assert len(receiver.requests) == 1


def test_a_receiver_that_refuses_is_told_and_asked_again(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    sink = OtlpSink("n1", receiver.url, every_s=0)
    receiver.code = 400
    with caplog.at_level(logging.DEBUG), pytest.raises(ConnectionError):
        sink.write([one("a")])
    assert not [record for record in caplog.records if "opentelemetry" in record.name]

    receiver.code = 200
    sink.write([one("a")])
    sink.close()
    assert len(receiver.requests) == 2


def test_a_receiver_that_is_not_there_is_told(receiver: Receiver) -> None:
    url = receiver.url.replace(str(receiver.server_address[1]), "1")
    sink = OtlpSink("n1", url, every_s=0, timeout_s=0.5)

    with pytest.raises(ConnectionError):
        sink.write([one("a")])
    sink.close()


def test_a_receiver_that_never_answers_is_given_up(receiver: Receiver) -> None:
    receiver.release.clear()
    sink = OtlpSink("n1", receiver.url, every_s=0, timeout_s=0.3)

    with pytest.raises(ConnectionError):
        sink.write([one("a")])
    sink.close()


@pytest.mark.parametrize("url", ["", "localhost:4318", "ftp://host/x", "http:///x", "file:///etc"])
def test_a_url_that_cannot_be_is_told(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        OtlpSink("n1", url)

    assert caught.value.hint


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "opentelemetry.exporter.otlp.proto.http.metric_exporter"
    monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(UsageError) as caught:
        OtlpSink("n1", "http://localhost:4318/v1/metrics")

    assert caught.value.hint == "pip install 'whystuck[otlp]'"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://collector:4318/v1/metrics", "Authorization"),
        ("http://10.0.0.3:4318/v1/metrics", "X-Api-Key"),
        ("http://127.0.0.1.example:4318/v1/metrics", "api-token"),
    ],
)
def test_a_secret_goes_nowhere_unencrypted(url: str, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        OtlpSink("n", url, headers={name: "s3cret"})

    assert f"the header {name} would go to" in caught.value.message
    assert "s3cret" not in caught.value.message


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://collector:4318/v1/metrics", "Authorization"),
        ("http://localhost:4318/v1/metrics", "Authorization"),
        ("http://[::1]:4318/v1/metrics", "Authorization"),
        ("http://collector:4318/v1/metrics", "X-Scope-OrgID"),
    ],
)
def test_headers_go_where_nobody_else_listens(url: str, name: str) -> None:
    OtlpSink("n", url, headers={name: "value"}).close()
