"""dcgm-exporter: a real HTTP server that says what the exporter says."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from whystuck.agent.metrics.gpu import dcgm
from whystuck.agent.metrics.gpu.dcgm import DcgmSource, parse_exposition
from whystuck.agent.metrics.gpu.families import Device, GpuTable
from whystuck.evidence.errors import UsageError

LABELS = 'gpu="{0}",UUID="GPU-{0}",device="nvidia{0}",modelName="NVIDIA A100",Hostname="n1"'
ZERO, ONE = (LABELS.format(i) for i in range(2))
TEXT = f"""\
# HELP DCGM_FI_PROF_SM_OCCUPANCY The fraction of resident warps on a multiprocessor.
# TYPE DCGM_FI_PROF_SM_OCCUPANCY gauge
DCGM_FI_PROF_SM_OCCUPANCY{{{ZERO},container="",namespace="",pod=""}} 0.270000
DCGM_FI_PROF_SM_OCCUPANCY{{{ONE},container="a \\"b\\" \\\\ c",pod="}} y"}} 0.5 1700000000000
DCGM_FI_PROF_DRAM_ACTIVE{{{ZERO}}} 140737488355328
DCGM_FI_PROF_DRAM_ACTIVE{{{ONE}}} NaN
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{ZERO},GPU_I_PROFILE="1g.5gb",GPU_I_ID="13"}} 0.92
DCGM_FI_PROF_PCIE_RX_BYTES{{{ONE}}} 97863601
DCGM_FI_DEV_GPU_UTIL{{{ZERO}}} 92
DCGM_FI_DEV_GPU_UTIL{{{ONE}}} 45
DCGM_FI_DEV_FB_USED{{{ONE}}} 4845
DCGM_FI_DEV_XID_ERRORS{{{ONE}}} 0
DCGM_FI_DEV_SM_CLOCK{{{ONE} 1410
"""


@contextmanager
def serve(body: bytes, code: int = 200) -> Iterator[str]:
    """Run an exporter; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Stay quiet."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/metrics"
        finally:
            server.shutdown()
            thread.join()


def test_figures_of_the_exporter_become_ours() -> None:
    table = GpuTable()
    table.tell({"GPU-0": Device("0", "GPU-0", "nvidia", "job", "4")}, frozenset())

    with serve(TEXT.encode()) as url:
        source = DcgmSource(url, table)
        found = {
            (s.family.name.removeprefix("whystuck_gpu_"), *s.labels): s.value
            for s in source.collect()
        }

    assert source.problem == ""
    zero, one = ("0", "GPU-0", "nvidia", "job", "4"), ("1", "GPU-1", "nvidia", "", "")
    assert found == {
        ("sm_occupancy_ratio", *zero): 0.27,
        ("sm_occupancy_ratio", *one): 0.5,
        ("tensor_active_ratio", "0.i13", "GPU-0/13", "nvidia", "", ""): 0.92,
        ("pcie_rx_bytes_per_second", *one): 97863601,
        # The driver tells it of device 0; device 1 is not shown to us
        ("utilization_ratio", *one): pytest.approx(0.45),
        ("memory_used_bytes", *one): 4845 << 20,
    }


def test_device_that_the_driver_profiles_is_left_to_it() -> None:
    table = GpuTable()
    devices = {f"GPU-{i}": Device(str(i), f"GPU-{i}", "nvidia") for i in range(2)}
    table.tell(devices, frozenset({"GPU-0"}))

    with serve(TEXT.encode()) as url:
        found = [s.labels[1] for s in DcgmSource(url, table).collect()]

    assert found == ["GPU-1"]


@pytest.mark.parametrize(
    ("body", "code", "problem"),
    [
        (b"", 200, "holds no figures of DCGM"),
        (b"\xff\xfe nonsense {", 200, "holds no figures of DCGM"),
        (TEXT.encode(), 500, "it answers with code 500"),
        (b"# x\n" * (3 << 20), 200, "it says more than 8 MiB"),
    ],
)
def test_bad_answer_is_a_problem(body: bytes, code: int, problem: str) -> None:
    with serve(body, code) as url:
        source = DcgmSource(url)

        assert list(source.collect()) == []
        assert problem in source.problem


def test_exporter_that_is_down_is_a_problem_until_it_is_up() -> None:
    with serve(TEXT.encode()) as url:
        pass
    source = DcgmSource(url)

    assert list(source.collect()) == []
    assert "does not answer" in source.problem


def test_silent_exporter_holds_nobody_up_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN one that takes connections and says nothing
    monkeypatch.setattr(dcgm, "_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        source = DcgmSource(f"http://127.0.0.1:{server.getsockname()[1]}")

        assert list(source.collect()) == []

    assert "does not answer" in source.problem


def test_endless_exporter_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN one that sends a byte now and then, for ever
    monkeypatch.setattr(dcgm, "_TIMEOUT_S", 0.3)
    stop = threading.Event()

    def drip(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            while not stop.wait(0.02):
                try:
                    connection.send(b"H")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,))
        thread.start()
        source = DcgmSource(f"http://127.0.0.1:{server.getsockname()[1]}")
        assert list(source.collect()) == []
        stop.set()
        thread.join()

    assert "does not answer" in source.problem


@pytest.mark.parametrize(
    "url", ["", "localhost:9400", "https://h/m", "http://h:99999/", "http:// x"]
)
def test_bad_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="address"):
        DcgmSource(url)


NAMES = ["a_metric", "b:metric", "c"]
VALUES = st.floats(allow_nan=False).map(repr) | st.sampled_from(["+Inf", "-Inf", "1e9", "0"])


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(NAMES),
            st.dictionaries(
                st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True),
                st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=9),
                max_size=3,
            ),
            VALUES,
        ),
        max_size=6,
    )
)
def test_parser_reads_what_prometheus_reads(rows: list[tuple[str, dict[str, str], str]]) -> None:
    lines = []
    for name, labels, value in rows:
        pairs = ",".join(
            f'{key}="{text.replace(chr(92), chr(92) * 2).replace(chr(34), chr(92) + chr(34))}"'
            for key, text in labels.items()
        )
        lines.append(f"{name}{{{pairs}}} {value}" if pairs else f"{name} {value}")
    text = "".join(f"{line}\n" for line in lines)

    ours = [(s.name, s.labels, s.value) for s in parse_exposition(text.encode(), frozenset(NAMES))]

    theirs = [
        (s.name, s.labels, s.value)
        for family in text_string_to_metric_families(text)
        for s in family.samples
    ]
    assert sorted(ours, key=repr) == sorted(theirs, key=repr)


@settings(max_examples=200)
@given(st.binary(max_size=300), st.integers(0, len(TEXT)))
def test_parser_takes_any_bytes(noise: bytes, place: int) -> None:
    data = TEXT.encode()
    list(parse_exposition(data[:place] + noise + data[place:], dcgm._WANTED))
