"""What must never give a wrong rank: ranks that are missing, switches, marks of users, clocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.diagnose.context.step_jobs import Steps
from tests.diagnose.context.test_phases import WORLD, make_marks, name
from tests.parse.ops.op_logs import MS

from whystuck.evidence.finding import Report
from whystuck.evidence.ops.marks import BACKWARD, FORWARD, STEP, USER, Marks

SLOW, EXTRA_MS = 1, 30.0
NS_PER_HOUR = 3_600_000_000_000


def train(job: Steps, steps: int = 100, off: range = range(0)) -> None:
    """Train with a rank that is slow; ops of the steps in ``off`` are not recorded."""
    for step in range(steps):
        for rank in range(job.world):
            job.work(rank, 30 + (EXTRA_MS if rank == SLOW else 0))
        if step in off:
            last_ns = max(job.now_ns) + MS
            job.now_ns = [last_ns] * job.world
            continue
        job.meet(step=step)
        job.meet(step=step, is_async=True)
        job.now_ns = [max(job.pending_ns)] * job.world


def list_blamed(report: Report) -> list[int]:
    return [rank for one in report.findings for rank in one.culprits.ranks]


@pytest.mark.parametrize("missing", range(4))
def test_op_log_of_one_rank_is_missing(missing: int) -> None:
    job = Steps()
    train(job)
    job.logged.without(missing)

    assert set(list_blamed(job.report())) <= {SLOW}


@pytest.mark.parametrize("off", [range(40, 60), range(10, 11), range(5, 95), range(50, 100)])
def test_switch_that_is_off_for_some_steps(off: range) -> None:
    job = Steps()
    train(job, off=off)

    assert set(list_blamed(job.report())) <= {SLOW}
    if len(off) <= 50:
        assert list_blamed(job.report()) == [SLOW]


@pytest.mark.parametrize("first", range(4))
def test_rank_that_is_switched_on_a_step_before_the_others(first: int) -> None:
    job = Steps()
    train(job)
    for rank, ring in job.logged.rings.items():
        if rank != first:
            # Its peers have nothing of the first steps.
            for slot in range(3):
                ring.records.pop(slot, None)

    assert set(list_blamed(job.report())) <= {SLOW}


@pytest.mark.parametrize("sign", [-1, 1])
def test_clocks_of_hosts_are_an_hour_apart(sign: int) -> None:
    job = Steps()
    for rank, ring in job.logged.rings.items():
        ring.host, ring.offset_ns = f"n{rank}", ring.offset_ns + sign * rank * NS_PER_HOUR
    train(job)

    assert list_blamed(job.report()) == [SLOW]


def add(marks: Marks, rows: Iterator[tuple[int, int, int, int, int]]) -> Marks:
    """Add marks: rank, kind, step, begin and end."""
    table = np.array(list(rows), dtype=np.int64)
    columns: dict[str, Any] = {
        "rank": table[:, 0], "log": table[:, 0], "kind": table[:, 1], "step": table[:, 2],
        "begin_ns": table[:, 3], "end_ns": table[:, 4], "name": np.zeros(len(table), np.int64),
    }  # fmt: skip
    joined: dict[str, Any] = {
        key: np.concatenate([getattr(marks, key), one]) for key, one in columns.items()
    }
    order = np.lexsort((joined["begin_ns"], joined["rank"]))
    kept: dict[str, Any] = {key: one[order] for key, one in joined.items()}
    return Marks(**kept)


def test_collective_inside_a_mark_of_the_job_moves_no_phase() -> None:
    """The others wait in such a mark for the slow rank, which is in it for the shortest time."""
    marks = make_marks({"forward": 15})
    is_backward = marks.kind == BACKWARD
    spans = zip(
        marks.rank[is_backward].tolist(), marks.step[is_backward].tolist(),
        marks.begin_ns[is_backward].tolist(), marks.end_ns[is_backward].tolist(), strict=True,
    )  # fmt: skip
    with_user = add(marks, ((rank, USER, step, begin, end) for rank, step, begin, end in spans))

    assert name(with_user, 15) == name(marks, 15) == "forward"


@pytest.mark.parametrize("off", [range(10, 20), range(20), range(25, 40)])
def test_marks_that_are_off_for_some_steps_name_no_other_phase(off: range) -> None:
    marks = make_marks({"forward": 15})
    kept = ~np.isin(marks.step, list(off))
    cut = {key: getattr(marks, key)[kept] for key in ("rank", "log", "kind", "name", "step",
                                                      "begin_ns", "end_ns")}  # fmt: skip

    assert name(Marks(**cut), 15) == "forward"


@pytest.mark.parametrize("rank", range(WORLD))
def test_marks_of_one_kind_that_one_rank_has_not_name_no_other_phase(rank: int) -> None:
    marks = make_marks({"forward": 15})
    kept = ~((marks.rank == rank) & (marks.kind == FORWARD) & (marks.step >= 10))
    cut = {key: getattr(marks, key)[kept] for key in ("rank", "log", "kind", "name", "step",
                                                      "begin_ns", "end_ns")}  # fmt: skip

    assert STEP in cut["kind"]
    assert name(Marks(**cut), 15) in {"forward", "unknown"}
