"""Collectives added up over the measured steps."""

from __future__ import annotations

import json

from tests.diagnose.traces.cases import hidden_comm
from tests.tracing.build import run_job, to_json

from whystuck.evidence.table import Table
from whystuck.evidence.traces.options import TraceOptions
from whystuck.evidence.traces.tables import RankTables
from whystuck.parse.traces.reader import read_trace
from whystuck.tracing.collectives.op_costs import METRIC
from whystuck.tracing.reduce import measure_rank, reduce_ranks


def test_calls_of_the_last_step_are_counted_apart() -> None:
    options = TraceOptions()
    ranks = [
        measure_rank(read_trace([json.dumps(to_json(rank)).encode()], f"{rank.rank}"), options)
        for rank in run_job(hidden_comm, 2)
    ]

    table = reduce_ranks(ranks, options).get("comm_ops")

    for rank, row in enumerate(table.rows()):
        number, group, op, count, spent, exposed, every, desc = row
        assert (number, group, op, count, every) == (rank, "0", "all_reduce", 5, 6)
        assert desc == "default_pg"
        assert 5 * 6_000_000 <= spent < 5 * 6_100_000
        assert exposed == 0


def test_without_calls_the_table_has_its_columns() -> None:
    made = METRIC.measure([RankTables(tables={"steps": Table()})], TraceOptions())

    assert tuple(made["comm_ops"].columns) == (
        "rank", "group", "op", "count", "sum_ns", "exposed_ns", "all_count", "group_desc"
    )  # fmt: skip
    assert len(made["comm_ops"]) == 0
