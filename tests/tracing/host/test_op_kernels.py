"""Which op launched which kernel, and what sequences of kernels recur."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tracing.data import make_event, make_trace, read_real
from tests.tracing.measuring import measure_rows

from whystuck.tracing.device import sequences
from whystuck.tracing.device.sequences import number_sequences
from whystuck.tracing.host import op_kernels


def kernel(name: str, start: float, us: float, number: int, **args: Any) -> dict[str, Any]:
    args = {"device": 0, "stream": 7, "correlation": number, "pid": 0, "tid": 7, **args}
    return make_event(args.pop("cat", "kernel"), name, start, us, **args)


def launch(start: float, number: int, **args: Any) -> dict[str, Any]:
    return make_event("cuda_runtime", "cudaLaunchKernel", start, 2, correlation=number, **args)


NESTED = [
    make_event("user_annotation", "forward", 0, 100),
    make_event("cpu_op", "aten::linear", 0, 40),
    make_event("cpu_op", "aten::addmm", 5, 30),
    launch(10, 1),
    kernel("gemm", 20, 10, 1),
    launch(15, 2),
    kernel("split_k", 30, 5, 2),
    make_event("cpu_op", "my::op", 50, 20),
    launch(55, 3),
    kernel("triton_red", 56, 8, 3),
    # Another thread at the same time has nothing to do with it.
    launch(12, 4, tid=2),
    kernel("lonely", 70, 1, 4),
    # No launch in the trace: the op of the same id.
    make_event("cpu_op", "aten::fill_", 80, 5, **{"External id": 42}),
    kernel("Memset (Device)", 90, 1, 99, cat="gpu_memset", **{"External id": 42}),
]


def test_kernels_belong_to_the_deepest_op_of_aten_around_their_launch() -> None:
    rows = measure_rows(op_kernels.METRIC, make_trace(NESTED))

    assert {
        (row["op"], row["outer_op"], row["kernel"]): (row["sum_ns"], row["delay_mean_ns"])
        for row in rows
        if row["kernel"] != "Memset (Device)"
    } == {
        ("aten::addmm", "aten::linear", "gemm"): (10_000, 8_000.0),
        ("aten::addmm", "aten::linear", "split_k"): (5_000, 13_000.0),
        ("my::op", "my::op", "triton_red"): (8_000, 0.0),
        ("", "", "lonely"): (1_000, 56_000.0),
    }
    (fill,) = [row for row in rows if row["kernel"] == "Memset (Device)"]
    assert (fill["op"], fill["class"], fill["delay_max_ns"]) == ("aten::fill_", "memory", -1)
    assert np.isnan(fill["delay_mean_ns"])


def test_kernels_of_one_call_are_a_sequence() -> None:
    rows = measure_rows(op_kernels.LAUNCHES, make_trace(NESTED))

    assert [tuple(row.values())[1:] for row in rows if row["op"] == "aten::addmm"] == [
        ("aten::addmm", "gemm | split_k", 1, 5_000.0, 10_000.0, 15_000)
    ]


def test_every_work_of_a_real_trace_is_counted_once() -> None:
    trace = read_real("tl_b200_rank0of8/eager_trace.json.gz")

    rows = measure_rows(op_kernels.METRIC, trace)

    assert sum(row["count"] for row in rows) == 929
    by_op: dict[str, int] = {}
    for row in rows:
        by_op[row["op"]] = by_op.get(row["op"], 0) + row["count"]
    assert by_op["aten::addmm"] == 108
    assert by_op["symm_mem::multimem_all_reduce_"] == 73
    assert by_op[""] == 2


def test_sequences_under_an_operator_are_counted() -> None:
    events = []
    for turn in range(4):
        start = turn * 100
        events += [
            make_event("cpu_op", "aten::linear", start, 50),
            make_event("cpu_op", "aten::linear", start + 5, 30),
            launch(start + 10, turn * 10 + 1),
            launch(start + 15, turn * 10 + 2),
            kernel("a", start + 20, 4, turn * 10 + 1),
            kernel("b" if turn else "c", start + 30, 4, turn * 10 + 2),
        ]
    trace = make_trace(events)

    rows = measure_rows(sequences.METRIC, trace, sequence_operator="linear", sequence_length=2)

    assert [tuple(row.values())[1:] for row in rows] == [
        ("aten::linear", "a | b", 3, 24_000, 150_000, 2),
        ("aten::linear", "a | c", 1, 8_000, 50_000, 2),
    ]
    assert measure_rows(sequences.METRIC, trace, sequence_operator="linear") == []
    assert measure_rows(sequences.METRIC, trace) == []


_SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=20)


@given(_SEQUENCES)
@settings(deadline=None)
def test_equal_sequences_have_one_number(given_sequences: list[list[int]]) -> None:
    lengths = [len(one) for one in given_sequences]
    first = np.cumsum([0, *lengths])[:-1].astype(np.int64)
    values = np.array([value for one in given_sequences for value in one], dtype=np.int64)

    numbers = number_sequences(values, first).tolist()

    pairs = {(tuple(one), number) for one, number in zip(given_sequences, numbers, strict=True)}
    assert len(pairs) == len({one for one, _ in pairs}) == len({number for _, number in pairs})
