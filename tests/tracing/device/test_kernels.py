"""Kernels by class and name."""

from __future__ import annotations

import math
import statistics

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.tracing.data import make_event, make_trace

from whystuck.evidence.table import Table
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.device.kernels import METRIC, OTHERS, fold_kernels
from whystuck.tracing.view import TraceView

KERNELS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", "d", "ncclDevKernel_X"]), st.integers(0, 50)),
    min_size=1,
    max_size=20,
)


def measure(kernels: list[tuple[str, int]], rank: int = 0) -> Table:
    events = [
        make_event("kernel", name, 100 * number, us, device=0, stream=7)
        for number, (name, us) in enumerate(kernels)
    ]
    trace = make_trace(events, distributedInfo={"rank": rank})
    return METRIC.measure(TraceView(trace), TraceOptions())


def test_figures_of_a_name() -> None:
    table = measure([("gemm", 10), ("gemm", 20), ("gemm", 60), ("relu", 5)], rank=3)

    gemm, relu = table.rows()

    assert gemm[:6] == (3, "compute", "gemm", 3, 90_000, 30_000)
    assert gemm[6] == statistics.stdev([10_000, 20_000, 60_000])
    assert gemm[7:] == (10_000, 20_000, 56_000, 60_000)
    assert math.isnan(relu[6])


def test_a_name_may_be_of_two_classes() -> None:
    events = [
        make_event("kernel", "odd", 0, 10, device=0, stream=7),
        make_event("kernel", "odd", 20, 10, device=0, stream=7, **{"Collective name": "x"}),
    ]

    table = METRIC.measure(TraceView(make_trace(events)), TraceOptions())

    assert [(row[1], row[3]) for row in table.rows()] == [("compute", 1), ("comm", 1)]


@given(KERNELS)
def test_quantiles_and_deviations_are_those_of_numpy(kernels: list[tuple[str, int]]) -> None:
    for row in measure(kernels).rows():
        times = [1000 * us for name, us in kernels if name == row[2]]
        assert row[3:5] == (len(times), sum(times))
        assert row[8] == round(np.quantile(times, 0.5))
        assert abs(row[9] - np.quantile(times, 0.95)) <= 0.5 + 1e-6
        if len(times) > 1:
            assert math.isclose(row[6], statistics.stdev(times), abs_tol=1e-6)


@given(KERNELS, st.integers(0, 4))
def test_others_have_the_figures_of_all_their_work(
    kernels: list[tuple[str, int]], top: int
) -> None:
    table = measure(kernels)

    folded = fold_kernels(table, top)

    for kind in ("compute", "comm"):
        mine = [row for row in table.rows() if row[1] == kind]
        kept, rest = mine[:top], {row[2] for row in mine[top:]}
        names = [row[2] for row in folded.rows() if row[1] == kind]
        assert names == [row[2] for row in kept] + [OTHERS] * bool(rest)
        if not rest:
            continue
        (others,) = (row for row in folded.rows() if row[1:3] == (kind, OTHERS))
        times = [1000 * us for name, us in kernels if name in rest]
        assert others[3:5] == (len(times), sum(times))
        assert (others[7], others[10]) == (min(times), max(times))
        assert others[5] == round(sum(times) / len(times))
        if len(times) > 1:
            assert math.isclose(others[6], statistics.stdev(times), rel_tol=1e-9, abs_tol=1e-3)
        else:
            assert math.isnan(others[6])


def test_no_device_work_gives_no_rows() -> None:
    assert len(measure([])) == 0
    assert len(fold_kernels(measure([]), 3)) == 0
