"""Our tables against those of HTA 0.6.1 on the same traces, value by value.

Times of the set ``hta_sampled_2rank`` are whole µs, so that HTA's are exact and ours must equal
them. Those of ``tl_b200_rank0of8`` have ns, and HTA rounds starts up and ends down.
"""

from __future__ import annotations

import csv
import json
from functools import cache
from typing import Any

import pytest
from tests.tracing.data import find_traces, read_real

from whystuck.evidence.table import Table
from whystuck.tracing.metrics import METRICS
from whystuck.tracing.options import TraceOptions
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
