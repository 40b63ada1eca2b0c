"""Costs of ops from their shapes, against torch's own counter, and the speed that follows."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tracing.data import make_event, make_trace, read_real
from tests.tracing.measuring import measure_rows
from tests.tracing.profiled import count_operations, run_jobs, trace_training

from whystuck.read.traces.files import read_trace_file
from whystuck.tracing.device import roofline
from whystuck.tracing.host.op_costs import FORMULAS, cost_attention, cost_op
from whystuck.tracing.host.op_shapes import parse_call


def test_operations_equal_those_that_torch_counts() -> None:
    counted = count_operations()

    rows = measure_rows(roofline.METRIC, read_trace_file(run_jobs() / "counted.json"))

    def total(kind: str, phase: str = "") -> int:
        return sum(
            row["flops"] * row["count"]
            for row in rows
            if row["class"] == kind and phase in ("", row["phase"])
        )

    assert total("convolution", "forward") == counted["aten.convolution"]
    assert total("convolution", "backward") == counted["aten.convolution_backward"]
    gemms = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm")
    assert total("gemm") == sum(counted[op] for op in gemms)
    assert total("attention", "forward") == counted["attention"]
    assert total("attention", "backward") == counted["attention backward"]
    assert all(row["dtype"] == "float" and row["time_ns"] > 0 for row in rows)


def test_speed_is_that_of_the_kernels_under_the_op() -> None:
    shapes = {"Input Dims": [[64, 128], [128, 32]], "Input type": ["c10::BFloat16"] * 2}
    trace = make_trace(
        [
            make_event("cpu_op", "aten::mm", 0, 10, **shapes),
            make_event("cuda_runtime", "cudaLaunchKernel", 2, 3, correlation=1),
            make_event("kernel", "gemm", 20, 2, device=0, stream=7, correlation=1, pid=0, tid=7),
            make_event("cpu_op", "aten::mm", 30, 10, **shapes),  # its kernel is not in the trace
        ]
    )

    (row,) = measure_rows(roofline.METRIC, trace)

    flops, moved = 2 * 64 * 128 * 32, 2 * (64 * 128 + 128 * 32 + 64 * 32)
    assert (row["count"], row["flops"], row["bytes"], row["time_ns"]) == (2, flops, moved, 2_000)
    assert row["tflops"] == pytest.approx(flops / 2e-6 / 1e12)
    assert row["gbps"] == pytest.approx(moved / 2e-6 / 1e9)
    assert row["flop_per_byte"] == pytest.approx(flops / moved)
    assert row["shapes"] == "64x128 128x32"


@pytest.mark.parametrize(
    ("name", "shapes", "types", "values"),
    [
        ("aten::mm", "[[3, 4], [5, 6]]", '["float", "float"]', ""),
        ("aten::mm", "[[3, 4]]", '["float"]', ""),
        ("aten::mm", "nonsense", "", ""),
        ("aten::mm", "[[1e999, 4], [4, 6]]", "[]", ""),
        ("aten::mm", "[[-3, 4], [4, 6]]", "[]", ""),
        ("aten::mm", "[[9007199254740992, 9007199254740992], [9007199254740992, 6]]", "[]", ""),
        ("aten::convolution", "[[2, 3, 8, 8], [4, 3, 3, 3]]", '["float"]', "[]"),
        (
            "aten::convolution",
            "[[2, 3, 8, 8], [4, 3, 3, 3]]",
            '["float"]',
            '["", "", "", "[0, 0]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]',
        ),
        ("aten::convolution_backward", "[[2, 4], [2, 3], [4, 3]]", '["float"]', "[]"),
        ("aten::_flash_attention_forward", "[[10, 4, 8], [10, 4, 8], [10, 4, 8]]", "[]", ""),
    ],
)
def test_costs_that_do_not_follow_are_unknown(
    name: str, shapes: str, types: str, values: str
) -> None:
    cost = cost_op(name, parse_call(shapes, types, values))

    assert (cost.operations, cost.elements) == (-1, -1)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(sorted(FORMULAS)), _JSON, _JSON, _JSON)
@settings(deadline=None)
def test_hostile_arguments_never_raise(name: str, shapes: Any, types: Any, values: Any) -> None:
    call = parse_call(*(json.dumps(one) for one in (shapes, types, values)))

    cost = cost_op(name, call)

    assert -1 <= cost.operations < 2**63
    assert -1 <= cost.elements < 2**63


def test_keys_and_values_shared_by_heads_count_for_each_head() -> None:
    shared = cost_attention((2, 8, 16, 4), (2, 2, 16, 4), (2, 2, 16, 4), is_backward=False)

    assert shared.operations == 2 * 2 * 8 * 16 * 16 * (4 + 4)


def test_ops_of_a_real_training_have_shapes_and_speed() -> None:
    rows = measure_rows(roofline.METRIC, trace_training())

    assert {row["class"] for row in rows} == {"gemm", "convolution", "attention", "norm"}
    assert {row["phase"] for row in rows} == {"forward", "backward"}
    (conv,) = [row for row in rows if row["op"] == "aten::convolution"]
    assert (conv["count"], conv["flops"]) == (3, 2 * 8 * 14 * 14 * 8 * 3 * 3 * 3)
    norms = [row for row in rows if row["class"] == "norm"]
    assert all(row["flops"] == -1 and math.isnan(row["tflops"]) for row in norms)
    assert all(row["gbps"] > 0 for row in norms)


def test_real_products_on_a_b200_are_of_bfloat16() -> None:
    rows = measure_rows(roofline.METRIC, read_real("tl_b200_rank0of8/eager_trace.json.gz"))

    assert [(row["op"], row["shapes"], row["count"]) for row in rows][:2] == [
        ("aten::linear", "888x2880 640x2880 640", 36),
        ("aten::linear", "888x2880 128x2880 128", 36),
    ]
    assert rows[0]["tflops"] == pytest.approx(2 * 888 * 2880 * 640 * 36 / 287423 / 1e3)
    assert all(0 < row["tflops"] < 2_500 and 0 < row["gbps"] < 8_000 for row in rows)
