"""Splits of all_to_all that do not fit: the pair, both numbers, and who is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.diagnose.op_scenes import Logged
from tests.diagnose.scenes import at

from whystuck.diagnose.engine import diagnose
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent, Logs

WORLD = 4
EVEN = [2] * WORLD


def exchange(
    logged: Logged,
    given: Mapping[int, Sequence[int]],
    taken: Mapping[int, Sequence[int]],
    **more: Any,
) -> Logged:
    """Let all ranks call all_to_all_single at line 30; splits that are not given are even."""
    for rank in range(WORLD):
        mine, theirs = list(given.get(rank, EVEN)), list(taken.get(rank, EVEN))
        logged.op(
            [rank],
            "all_to_all_base",
            line=30,
            **{"in": [[sum(mine), 3]], "out": [[sum(theirs), 3]]},
            in_splits=mine,
            out_splits=theirs,
            **more,
        )
    return logged


def test_sender_that_left_its_habit_is_named() -> None:
    logged = Logged().steps()
    for _ in range(3):
        exchange(logged, {}, {})
    finding = exchange(logged, {1: [2, 2, 3, 2]}, {}, takes_ns=None).finding()

    assert (finding.code, finding.confidence) == ("H108", Confidence.CERTAIN)
    assert finding.culprits.ranks == [1]
    assert finding.where[0].line == 30
    assert finding.details["pair"] == [1, 2]
    assert (finding.details["sent"], finding.details["expected"]) == (9, 6)
    assert [cite.artifact for cite in finding.because] == [
        "n0/rank-1/ops.ring",
        "n0/rank-2/ops.ring",
    ]


def test_receiver_that_left_its_habit_is_named() -> None:
    logged = exchange(Logged().steps(), {}, {})
    finding = exchange(logged, {}, {2: [2, 1, 2, 2]}, takes_ns=None).finding()

    assert finding.culprits.ranks == [2]
    assert finding.details["pair"] == [1, 2]


def test_rank_that_is_in_all_pairs_is_named_without_history() -> None:
    finding = exchange(Logged(), {3: [1, 1, 5, 2]}, {}, takes_ns=None).finding()

    assert finding.culprits.ranks == [3]
    assert finding.details["pairs"] == [[3, 0, 3, 6], [3, 1, 3, 6], [3, 2, 15, 6]]


def test_both_ranks_are_named_where_nothing_tells_who_is_wrong() -> None:
    finding = exchange(Logged(), {1: [2, 2, 3, 2]}, {}, takes_ns=None).finding()

    assert finding.culprits.ranks == [1, 2]
    assert "cannot be told" in finding.summary


def test_splits_that_vary_by_design_and_fit_are_no_mismatch() -> None:
    logged = Logged().steps()
    given = {rank: [1 + (rank + peer) % 3 for peer in range(WORLD)] for rank in range(WORLD)}
    taken = {rank: [given[peer][rank] for peer in range(WORLD)] for rank in range(WORLD)}
    exchange(logged, given, taken)

    assert exchange(logged, given, taken, takes_ns=None).finding().code == "H122"


def test_mismatch_that_all_ranks_came_out_of_is_not_the_cause() -> None:
    logged = exchange(Logged(), {1: [2, 2, 3, 2]}, {})

    assert logged.waits([0, 1, 3]).finding().code == "H101"


def test_even_splits_are_compared_with_those_given() -> None:
    logged = Logged()
    logged.waits(range(3), "all_to_all_base", **{"in": [[8]], "out": [[8]]})
    logged.waits([3], "all_to_all_base", **{"in": [[8]], "out": [[8]]}, in_splits=[2, 2, 1, 3])
    finding = logged.finding()

    assert finding.culprits.ranks == [3]
    # What a rank keeps for itself must fit, too.
    assert finding.details["pairs"] == [[3, 2, 1, 2], [3, 3, 3, 2]]


def test_lists_of_tensors_are_compared_by_their_sizes() -> None:
    logged = Logged(2)
    even = [[2, 3], [2, 3]]
    logged.waits([0], "all_to_all", **{"in": even, "out": even})
    logged.waits([1], "all_to_all", **{"in": [[4, 3], [2, 3]], "out": even})
    finding = logged.finding()

    assert (finding.details["pair"], finding.details["sent"]) == ([1, 0], 12)


def test_splits_count_by_position_in_the_group() -> None:
    logged = Logged(2)
    for rank in (0, 1):
        ring = logged.rings[rank]
        # Position 0 is rank 1: rank 0 gives it 5, and rank 1 expects 5 at position 1.
        splits: dict[str, Any] = {"in_splits": [5, 1], "out_splits": [2, 1]}
        if rank == 1:
            splits = {"in_splits": [4, 2], "out_splits": [4, 5]}
        sizes: dict[str, Any] = {"in": [[6]], "out": [[sum(splits["out_splits"])]]}
        group = ring.group("3", [1, 0])
        ring.op("all_to_all_base", group=group, takes_ns=None, **sizes, **splits)

    assert logged.finding().code == "H122"


@pytest.mark.parametrize("size", [(1 << 61) - 1, 1 << 40])
def test_sizes_of_a_stranger_do_no_harm(size: int) -> None:
    logged = Logged(2)
    for rank in range(2):
        logged.waits(
            [rank],
            "all_to_all_base",
            **{"in": [[size, size]], "out": [[size, size]]},
            in_splits=[size, rank],
            out_splits=[size, size],
        )

    logged.report()


def test_crash_that_follows_from_splits_is_not_the_cause() -> None:
    logged = exchange(Logged(), {}, {})
    exchange(logged, {1: [2, 2, 3, 2]}, {}, takes_ns=None)
    logged.job.of_kind("exit", command_exit=1).ends(2, signal=6)
    logged.job.raises(0, "RuntimeError", "Connection closed by peer", [at("/job/train.py", 30)])

    assert [finding.code for finding in logged.report().findings] == ["H108"]


def test_sizes_that_gloo_complains_of_are_told_once() -> None:
    logged = exchange(Logged(), {}, {})
    exchange(logged, {1: [2, 2, 3, 2]}, {}, takes_ns=None)
    logged.job.of_kind("exit", command_exit=1).ends(2, signal=6)
    text = (
        "what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 36 vs 24. "
        "Received data size doesn't match expected size."
    )
    event = LogEvent("c10d.mismatch", "cause", "H105", "code", "n0/rank-2/log.txt", 5, text)
    evidence = replace(logged.evidence(), logs=Logs(events=(replace(event, rank=2),)))

    assert [finding.code for finding in diagnose(evidence).findings] == ["H108"]
