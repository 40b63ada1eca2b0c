"""Metrics of traces that have nothing of what their rows are made of, and tables that are held."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.read.traces.test_engine import as_bytes, force_pool
from tests.tracing.data import make_event, make_trace

from whystuck.evidence.table import Table
from whystuck.evidence.traces.events import Trace
from whystuck.evidence.traces.options import TraceOptions
from whystuck.read.traces.inputs import find_inputs
from whystuck.read.traces.plan import ReadPlan
from whystuck.read.traces.reading import read_traces
from whystuck.tracing.metric import Metric
from whystuck.tracing.metrics import METRICS
from whystuck.tracing.reduce import measure_rank
from whystuck.tracing.view import TraceView

OPTIONS = TraceOptions()
HOST = [
    make_event("cpu_op", "aten::mm", 0, 9),
    make_event("cpu_op", "aten::item", 10, 9),
    make_event("cuda_runtime", "cudaLaunchKernel", 1, 2, correlation=7),
    make_event("overhead", "x", 30, 2),
]
DEVICE = [
    *HOST,
    make_event("kernel", "k", 5, 2, device=0, stream=7, correlation=7, pid=0, tid=7),
]
MARKED = [make_event("user_annotation", "forward", 0, 20), *HOST[:1]]
FRAMES = [make_event("python_function", "a.py(1): f", 0, 20), *HOST[:2]]


def as_types(table: Table) -> dict[str, str]:
    return {name: column.dtype.str for name, column in table.columns.items()}


@pytest.mark.parametrize("metric", [one for one in METRICS if one.of], ids=lambda one: one.name)
@pytest.mark.parametrize("events", [[], HOST, DEVICE, MARKED, FRAMES])
def test_what_is_not_measured_has_no_rows(metric: Metric, events: list[dict[str, Any]]) -> None:
    trace = make_trace(events) if events else Trace()
    assert metric.of is not None
    has_any = len(metric.of(TraceView(trace))) > 0
    measured = metric.measure(TraceView(trace), OPTIONS)

    made = measure_rank(trace, OPTIONS).tables[metric.name]

    assert has_any or not len(measured)
    assert len(made) == len(measured)
    assert as_types(made) == as_types(measured)


def test_tables_of_small_traces_are_those_of_their_partials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(6):
        text = json.dumps({"traceEvents": [HOST, DEVICE, MARKED][rank % 3]})
        (tmp_path / f"rank{rank}.pt.trace.json").write_text(text)
    inputs, _ = find_inputs([str(tmp_path)])
    plan = ReadPlan()

    held = read_traces(inputs, plan)
    kept = read_traces(inputs, replace(plan, partials=str(tmp_path / "partials")))
    force_pool(monkeypatch)
    pooled = read_traces(inputs, plan)

    assert [header.rank for header in held.summary.ranks] == list(range(6))
    assert as_bytes(held.summary) == as_bytes(kept.summary) == as_bytes(pooled.summary)
    assert held.summary.ranks == pooled.summary.ranks
    assert len(list((tmp_path / "partials").iterdir())) == 6
