"""Collectives across ranks, on real traces with a rank that was made late."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from tests.tracing.data import find_traces, read_real
from tests.tracing.rank_sets import compare_ranks, copy_rank, read_injected, shift_clocks

from whystuck.tracing.collectives.matched_ops import COLLECTIVES

SECOND = 1_000_000_000


def read_truth(kind: str) -> float:
    path = find_traces() / "injected" / f"{kind}_8rank_r5" / "truth.txt"
    return float(json.loads(path.read_text())["total_delay_us"]) * 1000


@pytest.mark.parametrize("kind", ["host", "gpu"])
@pytest.mark.parametrize("apart_ns", [0, SECOND])
def test_a_rank_that_was_made_late_is_named_with_what_it_cost(kind: str, apart_ns: int) -> None:
    rng = random.Random(3)
    offsets = [rng.randint(-apart_ns, apart_ns) for _ in range(8)]

    summary = compare_ranks(shift_clocks(read_injected(kind), offsets))

    straggler, blame = summary.get("straggler"), summary.get("rank_blame")
    assert straggler["rank"].tolist() == [5]
    assert straggler["cause"].tolist() == [kind]
    truth = read_truth(kind)
    assert blame["wait_caused_ns"][5] == pytest.approx(truth, rel=0.001)
    assert straggler["late_ns"][0] == pytest.approx(truth, rel=0.001)
    assert np.delete(blame["wait_suffered_ns"], 5) == pytest.approx(truth, rel=0.001)
    assert blame["times_last"].tolist() == [0, 0, 0, 0, 0, 10 if kind == "host" else 9, 0, 0]
    # The set itself has clocks that are up to 20 µs apart.
    found = blame["clock_offset_ns"] - blame["clock_offset_ns"][0]
    assert np.abs(found - (np.array(offsets) - offsets[0])).max() < 20_000


@pytest.mark.parametrize("apart_ns", [0, SECOND])
def test_ranks_that_all_do_the_same_name_nobody(apart_ns: int) -> None:
    traces = copy_rank(read_real("hta_sampled_2rank/rank-0.json.gz"), 8)
    rng = random.Random(4)

    summary = compare_ranks(shift_clocks(traces, [rng.randint(0, apart_ns) for _ in traces]))

    assert len(summary.get("straggler")) == 0
    assert summary.get("collectives")["last_rank"].tolist() == [-1] * 10
    assert summary.get("rank_blame")["wait_caused_ns"].tolist() == [0] * 8


def test_two_of_128_ranks_do_not_tell_who_was_last() -> None:
    traces = [read_real(f"hta_sampled_2rank/rank-{rank}.json.gz") for rank in (0, 1)]

    summary = compare_ranks(traces)

    assert len(summary.get("straggler")) == 0
    assert set(summary.get("collectives")["last_rank"].tolist()) == {-1}
    assert summary.get("rank_blame")["wait_caused_ns"].tolist() == [-1, -1]
    reasons = " ".join(summary.get("collective_gaps")["reason"])
    assert "too many members left no trace" in reasons


def test_one_rank_missing_of_eight_changes_nothing() -> None:
    traces = read_injected("host")

    summary = compare_ranks([trace for trace in traces if trace.rank != 2])

    assert summary.get("straggler")["rank"].tolist() == [5]


def test_when_the_late_rank_left_no_trace_nobody_is_named() -> None:
    traces = read_injected("host")

    summary = compare_ranks([trace for trace in traces if trace.rank != 5])

    assert len(summary.get("straggler")) == 0


def test_the_public_columns_come_first() -> None:
    summary = compare_ranks(read_injected("host"))

    assert COLLECTIVES[:10] == (
        *("group", "sequence", "op", "bytes", "ranks", "last_rank"),
        *("skew_ns", "transfer_ns", "algbw_gbps", "busbw_gbps"),
    )
    assert tuple(summary.get("collectives").columns) == COLLECTIVES
    assert tuple(summary.get("rank_blame").columns)[:6] == (
        *("rank", "times_last", "wait_caused_ns", "wait_suffered_ns"),
        *("clock_offset_ns", "clock_error_ns"),
    )


def test_no_traces_give_empty_tables() -> None:
    summary = compare_ranks([])

    assert all(len(table) == 0 and table.columns for table in summary.tables.values())
