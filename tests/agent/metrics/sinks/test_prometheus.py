"""The endpoint: what it says, to whom, and that nobody can hold it up."""

from __future__ import annotations

import http.client
import importlib
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector as PrometheusCollector
from tests.agent.metrics.children import child
from tests.agent.metrics.parts import GAUGE, KeepingSink, PlainSource, one

from whystuck.agent.interfaces import Source
from whystuck.agent.metrics.bounds import clean_label
from whystuck.agent.metrics.catalogue import CATALOGUE
from whystuck.agent.metrics.collector import Collector
from whystuck.agent.metrics.families import counter, gauge
from whystuck.agent.metrics.node import host
from whystuck.agent.metrics.node.own import OwnSource
from whystuck.agent.metrics.node.perf import PerfSource
from whystuck.agent.metrics.node.perf_families import SOFTWARE_GROUPS
from whystuck.agent.metrics.node.standard import make_node_sources
from whystuck.agent.metrics.rank.processes import ProcessSource
from whystuck.agent.metrics.rank.progress import RankSource
from whystuck.agent.metrics.sinks.prometheus import PrometheusSink, _Exposition, render
from whystuck.agent.rpc.auth import RpcAuth
from whystuck.evidence.errors import StartError, UsageError
from whystuck.evidence.nodes.metrics import MetricFamily, Sample

STEPS = counter("test_steps_total", "Steps made.", "job", "rank")


@pytest.fixture
def sink() -> Iterator[PrometheusSink]:
    made = PrometheusSink("node-1", 0)
    yield made
    made.close()


def ask(port: int, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def wait_until(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def promtool(text: str) -> None:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed; Debian's package `prometheus` has it")
    done = subprocess.run(
        [found, "check", "metrics"], input=text, text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


def test_samples_are_served_with_node_and_labels(sink: PrometheusSink) -> None:
    sink.write(
        [
            Sample(family=STEPS, value=7, labels=("llm", "3")),
            one('with "quotes", \\ and line\nbreak', 0.5),
            Sample(family=STEPS, value=8, labels=("llm", "")),
        ]
    )

    code, text = ask(sink.port)

    assert code == 200
    assert text.count("# TYPE whystuck_test_steps_total counter") == 1
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    node = ("node", "node-1")
    assert found == {
        ("whystuck_test_steps_total", ("job", "llm"), node, ("rank", "3")): 7,
        ("whystuck_test_steps_total", ("job", "llm"), node): 8,
        ("whystuck_test_ratio", node, ("part", 'with "quotes", \\ and line\nbreak')): 0.5,
    }


def test_prometheus_is_told_the_format(sink: PrometheusSink) -> None:
    url = f"http://127.0.0.1:{sink.port}/metrics"

    with urllib.request.urlopen(url) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_series_that_ended_are_served_no_more(sink: PrometheusSink) -> None:
    sink.write([one("a"), one("b")])
    assert 'part="a"' in ask(sink.port)[1]

    sink.write([one("b")])

    assert 'part="a"' not in ask(sink.port)[1]


def test_a_round_is_rendered_once(sink: PrometheusSink) -> None:
    samples = [one("a")]
    sink.write(samples)

    assert sink._exposition.render() is sink._exposition.render()


def test_labels_of_the_node_are_added() -> None:
    exposition = _Exposition({"cluster": "c1", "part": "of the node", "node": "n", "empty": ""})
    exposition.samples = [one("a"), one("")]

    lines = exposition.render().decode().splitlines()
    assert lines[2:] == [
        'whystuck_test_ratio{cluster="c1",node="n",part="a"} 1.0',
        'whystuck_test_ratio{cluster="c1",node="n",part="of the node"} 1.0',
    ]


def test_the_text_is_what_the_library_of_prometheus_writes() -> None:
    odd = gauge("test_odd_bytes", "With \\ and\nlines.", "path")
    samples = [
        Sample(family=odd, value=value, labels=(f'/a"b\\c {value}',)) for value in VALUE_LIST
    ]
    samples += [Sample(family=STEPS, value=2**60, labels=("größe", "0"))]

    ours = render(samples, {"node": "n"}).decode()

    metrics = []
    for family in (odd, STEPS):
        metric = Metric(family.name.removesuffix("_total"), family.help, str(family.kind))
        for sample in samples:
            if sample.family is family:
                labels = dict(zip(family.labels, sample.labels, strict=True))
                metric.add_sample(family.name, {"node": "n", **labels}, sample.value)
        metrics.append(metric)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Fixed(metrics))
    theirs = generate_latest(registry).decode()
    assert points_of(ours) == points_of(theirs)
    heads = [line for line in theirs.splitlines() if line.startswith("#")]
    assert [line for line in ours.splitlines() if line.startswith("#")] == heads


def points_of(text: str) -> list[tuple[str, dict[str, str], float]]:
    families = text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples]
    return [(sample.name, sample.labels, float(sample.value)) for sample in samples]


VALUE_LIST = [0, 1, -1, 0.1, 1e300, 5e-324, 123456789012345678, 1e16, -0.0]


class Fixed(PrometheusCollector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


@pytest.mark.parametrize(
    ("path", "method", "code"),
    [
        *[("/", "GET", 200), ("/metrics?x=1", "GET", 200), ("/other", "GET", 404)],
        *[("/metrics", "HEAD", 200), ("/metrics", "POST", 501), ("/../etc/passwd", "GET", 404)],
    ],
)
def test_what_else_may_be_asked(sink: PrometheusSink, path: str, method: str, code: int) -> None:
    assert ask(sink.port, path, method)[0] == code


def test_a_token_is_asked_for() -> None:
    sink = PrometheusSink("n", 0, auth=RpcAuth(token="s3cret"))
    try:
        assert ask(sink.port)[0] == 401
        assert ask(sink.port, Authorization="Bearer wrong")[0] == 401
        assert ask(sink.port, Authorization="Bearer grün")[0] == 401
        assert ask(sink.port, Authorization="Bearer s3cret")[0] == 200
    finally:
        sink.close()


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.1", "some-host"])
def test_beyond_this_machine_a_token_is_needed(address: str) -> None:
    with pytest.raises(UsageError) as caught:
        PrometheusSink("n", 0, address=address)

    assert "needs a token and TLS" in caught.value.message
    assert caught.value.hint


def test_a_taken_port_is_told(sink: PrometheusSink) -> None:
    with pytest.raises(StartError) as caught:
        PrometheusSink("n", sink.port)

    assert str(sink.port) in caught.value.message


def test_the_port_is_free_again_after_close() -> None:
    first = PrometheusSink("n", 0)
    ask(first.port)
    first.close()

    second = PrometheusSink("n", first.port)

    assert ask(second.port)[0] == 200
    second.close()


@pytest.mark.parametrize(
    "data",
    [
        *[b"", b"\0" * 1000, b"GET\n\n", b"GET /metrics HTTP/9.9\r\n\r\n", b"A" * 200_000],
        b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
    ],
    ids=["nothing", "zeros", "short", "version", "long", "headers"],
)
def test_garbage_costs_only_its_sender(sink: PrometheusSink, data: bytes) -> None:
    with closing(socket.create_connection(("127.0.0.1", sink.port), timeout=60)) as client:
        try:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536):
                pass
        except OSError:
            pass  # the endpoint has closed the connection already

    assert ask(sink.port)[0] == 200


VALUES = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=20), VALUES), max_size=5))
def test_any_label_and_value_can_be_read_back(pairs: list[tuple[str, float]]) -> None:
    exposition = _Exposition({"node": "n"})
    wanted = {clean_label(label): value for label, value in pairs}
    exposition.samples = [one(label, value) for label, value in wanted.items()]

    text = exposition.render().decode()

    found = {
        sample.labels.get("part", ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found == wanted


def test_promtool_accepts_what_a_real_node_says(sink: PrometheusSink) -> None:
    keeping = KeepingSink()
    with child() as busy:
        list_ranks = lambda: [busy.as_rank(0)]  # noqa: E731
        sources: list[Source] = [
            *make_node_sources(list_ranks, is_per_core=True),
            ProcessSource(list_ranks, is_pss=True),
            RankSource(list_ranks),
            PerfSource(list_ranks, groups=SOFTWARE_GROUPS),
            own_source := OwnSource(lambda: {("fabric", "requests"): 7}),
        ]
        for source in sources:
            source.every_s = 0.1
        collector = Collector(sources, [sink, keeping], round_s=0.1)
        own_source.watch(collector)
        collector.start()
        keeping.wait_for(lambda rounds: len(rounds) > 1 and has_all(rounds[-1]))
        text, problems = ask(sink.port)[1], collector.problems()
        collector.stop()

    promtool(text)
    assert "whystuck_agent_source_up" in text
    assert 'whystuck_agent_events_total{node="node-1",part="fabric",event="requests"} 7\n' in text
    # Beside this test others mount file systems that do not answer.
    assert problems.keys() <= {"filesystems"}


def has_all(samples: Sequence[Sample]) -> bool:
    found = {sample.family.name for sample in samples}
    wanted = ("load1", "rank_info", "rank_threads", "perf_page_faults_total", "agent_sink_up")
    return {f"whystuck_{name}" for name in wanted} <= found


def test_promtool_accepts_all_metrics_there_can_be() -> None:
    exposition = _Exposition({"node": "n"})
    families = [family for group in CATALOGUE.values() for family in group]
    exposition.samples = [
        Sample(family=family, value=1.0, labels=tuple(f"l{i}" for i in range(len(family.labels))))
        for family in families
    ]

    promtool(exposition.render().decode())


def test_names_are_ours_and_told_once() -> None:
    families = [family for group in CATALOGUE.values() for family in group]

    assert len({family.name for family in families}) == len(families)
    for family in families:
        assert family.name.startswith("whystuck_")
        assert family.name.endswith("_total") == (family.kind == "counter")
        assert family.help
        assert "node" not in family.labels
        assert len(set(family.labels)) == len(family.labels)


def test_the_catalogue_has_all_that_sources_may_give() -> None:
    known = {family.name: family for group in CATALOGUE.values() for family in group}
    folder = Path(host.__file__).parents[1]
    found = set()
    for path in folder.glob("**/*.py"):
        name = ".".join(path.relative_to(folder).with_suffix("").parts)
        module = importlib.import_module(f"whystuck.agent.metrics.{name}")
        for value in vars(module).values():
            if isinstance(value, MetricFamily):
                found.add(value)
            elif isinstance(families := getattr(value, "families", None), tuple):
                found |= set(families)
    found |= {family for source in make_node_sources() for family in source.families}
    found |= {family for source in (RankSource(list), PerfSource()) for family in source.families}

    assert len(found) > 100
    assert {family.name for family in found if known.get(family.name) != family} == set()


def test_own_figures_are_those_of_this_process() -> None:
    source = OwnSource()
    collector = Collector([PlainSource("bad", list), source], [KeepingSink()])
    source.watch(collector)

    found = {(one.family.name, *one.labels): one.value for one in source.collect()}

    assert found["whystuck_agent_resident_memory_bytes",] > 10e6
    assert found["whystuck_agent_cpu_seconds_total",] > 0
    assert found["whystuck_agent_threads",] >= 1
    assert found["whystuck_agent_source_up", "bad"] == 1
    assert GAUGE.name not in {key[0] for key in found}
