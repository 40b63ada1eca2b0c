"""Our tables against those of HTA 0.6.1 on the same traces, value by value.

Times of the set ``hta_sampled_2rank`` are whole µs, so that HTA's are exact and ours must equal
them. Those of ``tl_b200_rank0of8`` have ns, and HTA rounds starts up and ends down.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.tracing.data import find_traces, read_real

from whystuck.evidence.table import Table
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.metrics import METRICS
from whystuck.tracing.view import TraceView

WHOLE = "hta_sampled_2rank"
EXACT = "tl_b200_rank0of8"
FILES = {
    (WHOLE, 0): "hta_sampled_2rank/rank-0.json.gz",
    (WHOLE, 1): "hta_sampled_2rank/rank-1.json.gz",
    (EXACT, 0): "tl_b200_rank0of8/eager_trace.json.gz",
}
RANKS = (0, 1)
CLASSES = {"COMMUNICATION": "comm", "COMPUTATION": "compute", "MEMORY": "memory"}
# The figures of HTA are rounded to two places where they are shares.
_PLACES = 2


def read_golden(name: str, file: str) -> list[dict[str, str]]:
    with (find_traces() / "golden" / name / file).open() as stream:
        return list(csv.DictReader(stream))


@cache
def view(name: str, rank: int) -> TraceView:
    return TraceView(read_real(FILES[name, rank]))


def measure(table: str, name: str, rank: int) -> Table:
    (metric,) = (one for one in METRICS if one.name == table)
    return metric.measure(view(name, rank), TraceOptions())


def rows(table: Table) -> list[dict[str, Any]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows()]


def us(text: str) -> int:
    """The whole ns of a golden time in µs."""
    return round(float(text) * 1000)


@pytest.mark.parametrize("rank", RANKS)
def test_temporal_breakdown(rank: int) -> None:
    golden = read_golden(WHOLE, "temporal_breakdown.csv")[rank]

    (row,) = rows(measure("temporal_breakdown", WHOLE, rank))

    assert row["idle_ns"] == us(golden["idle_time(us)"])
    assert row["compute_ns"] == us(golden["compute_time(us)"])
    assert row["busy_ns"] - row["compute_ns"] == us(golden["non_compute_time(us)"])
    assert row["wall_ns"] == us(golden["kernel_time(us)"])
    share = round(100 * row["idle_ns"] / row["wall_ns"], _PLACES)
    assert share == float(golden["idle_time_pctg"])


@pytest.mark.parametrize(("name", "rank"), FILES)
def test_overlap(name: str, rank: int) -> None:
    golden = read_golden(name, "comm_comp_overlap.csv")[rank]

    (row,) = rows(measure("overlap", name, rank))

    assert round(row["overlap_pct"], _PLACES) == float(golden["comp_comm_overlap_pctg"])


def test_kernels() -> None:
    golden = {
        (int(row["rank"]), CLASSES[row["kernel_type"]], row["name"]): row
        for row in read_golden(WHOLE, "gpu_kernel_breakdown_all.1.csv")
    }
    ours = [row for rank in RANKS for row in rows(measure("kernels", WHOLE, rank))]

    assert {(row["rank"], row["class"], row["name"]) for row in ours} == set(golden)
    for row in ours:
        theirs = golden[row["rank"], row["class"], row["name"]]
        assert row["sum_ns"] == us(theirs["sum (us)"])
        assert row["max_ns"] == us(theirs["max (us)"])
        assert row["min_ns"] == us(theirs["min (us)"])
        assert row["mean_ns"] == us(theirs["mean (us)"])
        # HTA writes 0 for the deviation of a single one.
        std = row["std_ns"] if row["count"] > 1 else 0.0
        assert std == pytest.approx(float(theirs["stddev"]) * 1000)


@pytest.mark.parametrize("rank", RANKS)
def test_launches(rank: int) -> None:
    golden = [
        (
            us(row["cpu_duration"]),
            us(row["gpu_duration"]),
            us(row["launch_delay"]),
            int(row["correlation"]),
        )
        for row in read_golden(WHOLE, f"cuda_kernel_launch_stats.rank{rank}.csv")
    ]

    ours = rows(measure("launches", WHOLE, rank))

    keys = ("cpu_ns", "gpu_ns", "delay_ns", "correlation")
    assert sorted(tuple(row[key] for key in keys) for row in ours) == sorted(golden)


@pytest.mark.parametrize("name", [WHOLE, EXACT])
def test_launches_have_the_pairs_of_hta(name: str) -> None:
    golden = {row["correlation"] for row in read_golden(name, "cuda_kernel_launch_stats.rank0.csv")}

    ours = {str(row["correlation"]) for row in rows(measure("launches", name, 0))}

    assert golden <= ours


def test_idle_causes() -> None:
    golden = {
        (row["rank"], row["stream"], row["idle_category"]): us(row["idle_time"])
        for row in read_golden(WHOLE, "idle_time_breakdown.0.csv")
    }

    for row in (row for rank in RANKS for row in rows(measure("idle_causes", WHOLE, rank))):
        for cause in ("host_wait", "kernel_wait", "other"):
            key = (str(row["rank"]), str(row["stream"]), cause)
            assert row[f"{cause}_ns"] == golden.pop(key, 0)
    assert not golden


def test_profiler_steps() -> None:
    golden = json.loads((find_traces() / "golden" / WHOLE / "profiler_steps.json").read_text())

    numbers, starts, _ = view(WHOLE, 0).steps

    assert numbers[starts < (view(WHOLE, 0).cut_ns or 0)].tolist() == golden


@pytest.mark.parametrize("rank", RANKS)
def test_idle_intervals(rank: int) -> None:
    golden = {
        (row["stream"], row["idle_category"]): row
        for row in read_golden(WHOLE, "idle_time_breakdown.1.csv")
        if int(row["rank"]) == rank
    }
    one = view(WHOLE, rank)
    gaps = one.stream_gaps
    is_short = gaps.is_short(TraceOptions().idle_threshold_ns)
    causes = {
        "host_wait": gaps.is_host,
        "kernel_wait": is_short,
        "other": ~gaps.is_host & ~is_short,
    }

    for place, stream in enumerate(one.queues.stream.tolist()):
        for cause, chosen in causes.items():
            mine = gaps.gap_ns[chosen & ~gaps.is_first & (gaps.place == place)] / 1000
            theirs = golden.pop((str(stream), cause), None)
            assert len(mine) == (float(theirs["count"]) if theirs else 0)
            if theirs and len(mine):
                assert describe(mine) == pytest.approx(told(theirs), abs=0.005, nan_ok=True)
    assert not golden


@pytest.mark.parametrize("rank", RANKS)
def test_queue_length_series(rank: int) -> None:
    golden = read_golden(WHOLE, f"queue_length_time_series.rank{rank}.csv")

    ours = rows(measure("queue_series", WHOLE, rank))

    # HTA counts from the first event of all ranks.
    offset = ours[0]["ts_ns"] - us(golden[0]["ts"])
    assert [(row["stream"], row["ts_ns"] - offset, row["length"]) for row in ours] == [
        (int(row["stream"]), us(row["ts"]), int(row["queue_length"])) for row in golden
    ]


def test_queue_length_series_differ_only_where_hta_rounds_two_changes_to_one_time() -> None:
    golden = read_golden(EXACT, "queue_length_time_series.rank0.csv")
    changes = Counter(row["ts"] for row in golden)

    ours = rows(measure("queue_series", EXACT, 0))

    assert len(ours) == len(golden)
    for row, theirs in zip(ours, golden, strict=True):
        is_same = row["length"] == int(theirs["queue_length"])
        assert is_same or changes[theirs["ts"]] > 1


@pytest.mark.parametrize("name", [WHOLE, EXACT])
def test_queue_length_summary(name: str) -> None:
    golden = {
        (int(row[0]), int(row[1])): [float(value) for value in row[2:]]
        for row in read_summary(name, "queue_length_summary.csv")
    }
    ranks = [rank for known, rank in FILES if known == name]

    ours = [row for rank in ranks for row in rows(measure("queue_length", name, rank))]

    columns = ("points", "mean", "std", "min", "p25", "p50", "p75", "max")
    figures = {(row["rank"], row["stream"]): [row[column] for column in columns] for row in ours}
    assert figures.keys() == golden.keys()
    for key, figure in figures.items():
        assert figure == pytest.approx(golden[key], rel=1e-12)


@pytest.mark.parametrize("name", [WHOLE, EXACT])
def test_no_queue_is_full(name: str) -> None:
    assert read_golden(name, "blocked_on_full_queue.csv") == []

    assert not any(row["full_ns"] for row in rows(measure("queue_length", name, 0)))


@pytest.mark.parametrize("rank", RANKS)
def test_memory_bandwidth_series(rank: int) -> None:
    golden = sorted(
        (row["name"], us(row["ts"]), float(row["memory_bw_gbps"]))
        for row in read_golden(WHOLE, f"memory_bw_time_series.rank{rank}.csv")
    )

    ours = sorted(
        (copy_name(row["kind"]), row["ts_ns"], row["gbps"])
        for row in rows(measure("copy_series", WHOLE, rank))
    )

    offset = ours[0][1] - golden[0][1]
    assert [(name, ts - offset) for name, ts, _ in ours] == [one[:2] for one in golden]
    assert [one[2] for one in ours] == pytest.approx([one[2] for one in golden], abs=1e-9)


@pytest.mark.parametrize("name", [WHOLE, EXACT])
def test_memory_bandwidth_summary(name: str) -> None:
    golden = {
        (int(row[0]), row[1]): [float(value or "nan") for value in row[2:]]
        for row in read_summary(name, "memory_bw_summary.csv")
    }

    for rank in (rank for known, rank in FILES if known == name):
        series = measure("copy_series", name, rank)
        for kind in sorted(set(series["kind"])):
            values = series["gbps"][(series["kind"] == kind) & (series["gbps"] > 0)]
            theirs = golden.pop((rank, copy_name(kind)))
            assert describe(values) == pytest.approx(theirs[1:], rel=1e-9, nan_ok=True)
            assert len(values) == theirs[0]
    assert not golden


def test_time_of_classes() -> None:
    golden = {
        tuple(sorted(CLASSES[kind] for kind in row["kernel_type"].split(" overlapping "))): row
        for row in read_golden(WHOLE, "gpu_kernel_breakdown_all.0.csv")
    }
    ours = Counter[tuple[str, ...]]()
    for rank in RANKS:
        for row in rows(measure("kernel_classes", WHOLE, rank)):
            ours[tuple(sorted(row["classes"].split("+")))] += row["sum_ns"]

    assert ours == {key: us(row["sum"]) for key, row in golden.items()}
    total = sum(ours.values())
    assert {key: round(100 * time / total, 1) for key, time in ours.items()} == {
        key: float(row["percentage"]) for key, row in golden.items()
    }


def read_summary(name: str, file: str) -> list[list[str]]:
    """The rows of a summary below its three rows of headings."""
    with (find_traces() / "golden" / name / file).open() as stream:
        return list(csv.reader(stream))[3:]


def copy_name(kind: str) -> str:
    return kind if kind == "Memset" else f"Memcpy {kind}"


def told(row: dict[str, str]) -> list[float]:
    keys = ("mean", "std", "min", "25%", "50%", "75%", "max")
    return [float(row[key] or "nan") for key in keys]


def describe(values: NDArray[np.float64]) -> list[float]:
    """Mean, deviation of a sample, least, quartiles and most."""
    std = values.std(ddof=1) if len(values) > 1 else float("nan")
    return [float(values.mean()), float(std), *np.quantile(values, (0, 0.25, 0.5, 0.75, 1))]
