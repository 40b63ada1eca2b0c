"""Counter tracks are added to a trace, and the rest of it stays as it is."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.tracing.data import find_traces, make_event, make_trace
from tests.tracing.diff.jobs import profile_job

from whystuck.cli import main
from whystuck.tracing.device.counters_trace import list_counter_events
from whystuck.tracing.view import TraceView

Json = dict[str, Any]


def tracks(events: list[Json]) -> dict[tuple[int, str], list[tuple[float, float]]]:
    found: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "C":
            point = (event["ts"], event["args"]["value"])
            found.setdefault((event["pid"], event["name"]), []).append(point)
    return found


def test_the_tracks_are_those_of_the_work() -> None:
    copy = {"device": 0, "stream": 9, "bytes": 20_000, "pid": 0, "tid": 9}
    kernel = {"device": 0, "stream": 7, "pid": 0, "tid": 7}
    trace = make_trace(
        [
            make_event("cuda_runtime", "cudaLaunchKernel", 0, 2, correlation=1),
            make_event("cuda_runtime", "cudaLaunchKernel", 5, 2, correlation=2),
            make_event("kernel", "gemm", 10, 100, correlation=1, **kernel),
            make_event("kernel", "gemm", 110, 90, correlation=2, **kernel),
            make_event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 300, 10, **copy),
            {
                "ph": "i",
                "cat": "cpu_instant_event",
                "name": "[memory]",
                "pid": 1,
                "tid": 1,
                "ts": 4,
                "s": "t",
                "args": {
                    "Total Allocated": 512,
                    "Device Type": 1,
                    "Device Id": 0,
                    "Bytes": 512,
                    "Addr": 1,
                },
            },
        ],
        baseTimeNanoseconds=10**18,
    )

    found = tracks(list(list_counter_events(TraceView(trace), trace.base_ns)))

    assert found[0, "queue length (stream 7)"] == [
        (0, 1), (5_000, 2), (10_000, 1), (110_000, 0),
    ]  # fmt: skip
    assert found[0, "memory bandwidth HtoD (GB/s)"] == [(300_000, 2.0), (310_000, 0.0)]
    busy = found[0, "device busy (share)"]
    assert busy == [(10_000, 1.0), (110_000, 0.9), (210_000, 0.1), (310_000, 0.0)]
    assert found[1, "allocated memory cuda:0 (bytes)"] == [(4_000, 512)]


@pytest.mark.parametrize(
    "name", ["hta_sampled_2rank/rank-0.json.gz", "tl_b200_rank0of8/eager_trace.json.gz"]
)
def test_a_real_trace_keeps_all_its_events(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = find_traces() / name, tmp_path / "out.json.gz"

    assert main(["trace", "analyze", str(path), "--counters", str(out), "--fail-on", "never"]) in (
        0, 3,
    )  # fmt: skip

    capsys.readouterr()
    before = json.loads(gzip.decompress(path.read_bytes()))
    after = json.loads(gzip.decompress(out.read_bytes()))
    made = [event for event in after["traceEvents"] if event["ph"] == "C"]
    assert [one for one in after["traceEvents"] if one["ph"] != "C"] == before["traceEvents"]
    assert {key: after[key] for key in after if key != "traceEvents"} == {
        key: before[key] for key in before if key != "traceEvents"
    }
    kinds = {event["name"].split(" (")[0].rsplit(" ", 1)[0] for event in made}
    assert {"queue", "device"} <= {kind.split()[0] for kind in kinds}
    times = [event["ts"] for event in before["traceEvents"] if event.get("cat") == "kernel"]
    assert min(times) - 1e7 <= min(event["ts"] for event in made)
    assert max(event["ts"] for event in made) <= max(times) + 1e7
    for points in tracks(made).values():
        assert [one[0] for one in points] == sorted(one[0] for one in points)


def test_the_memory_of_a_real_job_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "def step(number):\n    torch.ones(1000, 1000).sum()"
    path = profile_job(tmp_path / "job.json", source, 3, 1, options="{'profile_memory': True}")
    out = tmp_path / "out.json"

    main(["trace", "analyze", str(path), "--counters", str(out), "--all-steps"])

    capsys.readouterr()
    found = tracks(json.loads(out.read_text())["traceEvents"])
    (points,) = [value for (_, name), value in found.items() if "allocated memory cpu" in name]
    assert max(value for _, value in points) - min(value for _, value in points) >= 4_000_000


def test_several_traces_end_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        event = {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
        trace = {"schemaVersion": 1, "distributedInfo": {"rank": rank}, "traceEvents": [event]}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(trace))

    code = main(["trace", "analyze", str(tmp_path), "--counters", str(tmp_path / "out.json")])

    assert code == 2
    assert "hint: give the file of one rank" in capsys.readouterr().err
