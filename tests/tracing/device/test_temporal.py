"""How devices spent their time, against figures that others measured on the same traces."""

from __future__ import annotations

import json

import pytest
from tests.tracing.data import find_traces, make_event, make_trace, read_real

from whystuck.evidence.table import Table
from whystuck.evidence.traces.events import Trace
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.device.temporal import METRIC
from whystuck.tracing.view import TraceView


def measure(trace: Trace, *, all_steps: bool = False) -> Table:
    chosen = TraceOptions(all_steps=all_steps)
    return METRIC.measure(TraceView(trace, chosen), chosen)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("hta_sampled_2rank/rank-0.json.gz", ("hta_sampled_2rank", "0")),
        ("hta_sampled_2rank/rank-1.json.gz", ("hta_sampled_2rank", "1")),
        ("hta_cuda_sync_alexnet/t.json.gz", ("hta_cuda_sync_alexnet", "0")),
        ("hta_mi250_minitoy/t.json.gz", ("hta_mi250_minitoy", "0")),
    ],
)
@pytest.mark.parametrize("all_steps", [False, True])
def test_real_traces_give_the_exact_figures(
    name: str, key: tuple[str, str], *, all_steps: bool
) -> None:
    golden = json.loads((find_traces() / "golden" / "exact_metrics.json").read_text())
    kind = "exact_ns_gpu_cats_all_steps" if all_steps else "exact_ns_gpu_cats_only"
    exact = golden[key[0]][key[1]][kind]

    table = measure(read_real(name), all_steps=all_steps)

    (row,) = (dict(zip(table.columns, row, strict=True)) for row in table.rows())
    # The golden figures are sums of floats, some ns off.
    assert row["idle_ns"] == pytest.approx(exact["idle"] * 1000, abs=4)
    assert row["compute_ns"] == pytest.approx(exact["compute"] * 1000, abs=4)
    assert row["wall_ns"] == pytest.approx(exact["kernel"] * 1000, abs=4)
    assert row["comm_ns"] == pytest.approx(exact["comm_union"] * 1000, abs=4)
    assert row["comm_ns"] - row["exposed_comm_ns"] == pytest.approx(exact["overlap"] * 1000, abs=4)


def test_memory_work_is_exposed_only_where_nothing_else_runs() -> None:
    trace = make_trace(
        [
            make_event("kernel", "gemm", 0, 10, device=0, stream=7),
            make_event("kernel", "ncclDevKernel_AllReduce", 5, 10, device=0, stream=8),
            make_event("gpu_memcpy", "Memcpy DtoH", 12, 8, device=0, stream=9),
        ],
        distributedInfo={"rank": 3},
    )

    (row,) = measure(trace).rows()

    assert row == (3, 0, 20_000, 20_000, 0, 10_000, 10_000, 5_000, 8_000, 5_000)


def test_no_device_work_gives_no_rows() -> None:
    table = measure(make_trace([make_event("cpu_op", "aten::add", 0, 1)]))

    assert len(table) == 0
    assert tuple(table.columns) == METRIC.columns
