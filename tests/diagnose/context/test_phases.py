"""In which phase ranks are late, from marks of their steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from whystuck.diagnose.algorithms.ops.groups import GroupOps
from whystuck.diagnose.algorithms.times.lateness import Late
from whystuck.diagnose.algorithms.times.phases import measure_phases, name_phase
from whystuck.diagnose.context.phase_facts import StepMarks
from whystuck.evidence.ops.collectives import Collectives
from whystuck.evidence.ops.marks import (
    BACKWARD,
    DATALOADER,
    DEVICE,
    FORWARD,
    OPTIMIZER,
    STEP,
    USER,
    Marks,
)

MS = 1_000_000
NS_PER_HOUR = 3_600_000_000_000
WORLD = 4


def make_marks(
    extra_ms: dict[str, float],
    *,
    rank: int = 2,
    steps: int = 40,
    skews_ns: tuple[int, ...] = (0,) * WORLD,
    kinds: tuple[int, ...] = (DATALOADER, FORWARD, BACKWARD, OPTIMIZER),
) -> Marks:
    """Make the marks of ranks that wait for each other at the end of their backward passes."""
    rows = []
    draw = np.random.default_rng(3)
    for step in range(steps):
        noise = draw.uniform(0, 1, (WORLD, 4))
        mine = [
            [
                base + noise[one, place] + (extra_ms.get(name, 0) if one == rank else 0)
                for place, (name, base) in enumerate(
                    [("dataloader", 10), ("host", 2), ("forward", 20), ("backward", 30)]
                )
            ]
            for one in range(WORLD)
        ]
        length = max(map(sum, mine)) + 3
        for one in range(WORLD):
            begin = step * (60 + max(extra_ms.values(), default=0) + 20) * MS
            begin += 24 * NS_PER_HOUR + skews_ns[one]
            load, host, forward, _ = mine[one]
            marks = {
                DATALOADER: (0, load),
                FORWARD: (load + host, load + host + forward),
                BACKWARD: (load + host + forward, length - 3),
                OPTIMIZER: (length - 3, length),
                STEP: (0, length),
            }
            rows += [
                (one, kind, step, begin + int(first * MS), begin + int(last * MS))
                for kind, (first, last) in marks.items()
                if kind in (*kinds, STEP)
            ]
    rows.sort(key=lambda row: (row[0], row[3]))
    table = np.array(rows, dtype=np.int64)
    return Marks(
        rank=table[:, 0], log=table[:, 0], kind=table[:, 1], name=np.zeros_like(table[:, 0]),
        step=table[:, 2], begin_ns=table[:, 3], end_ns=table[:, 4],
    )  # fmt: skip


def name(marks: Marks, lost_ms: float, rank: int = 2) -> str:
    phases = measure_phases(marks, range(WORLD))
    assert phases is not None
    return name_phase(phases, [rank], lost_ms * MS)


@pytest.mark.parametrize("phase", ["dataloader", "forward", "backward", "host"])
@pytest.mark.parametrize("rank", range(WORLD))
def test_phase_that_is_longer_than_that_of_peers_is_named(phase: str, rank: int) -> None:
    assert name(make_marks({phase: 15}, rank=rank), 15, rank) == phase


def test_phase_of_what_a_rank_does_in_every_third_step_is_named_by_its_mean() -> None:
    """Late by 90 ms in each third step, which is 30 ms a step; the ops tell of the 90 ms."""
    marks = make_marks({"host": 30})
    group = GroupOps("0", "", frozenset(range(WORLD)), {})
    length_ms = 62 + 30 + 3
    late = Late(
        (2,), group, 0.9, 90 * MS, 30 / length_ms, 0.0, is_sure=True, row=0, count=13, first_row=-1
    )
    table = Collectives(step=np.zeros(1, dtype=np.int64))

    assert StepMarks(marks, table, frozenset(range(WORLD))).name_phase(late) == "host"


def test_clocks_that_are_an_hour_apart_change_nothing() -> None:
    skews = (0, NS_PER_HOUR, -NS_PER_HOUR, 5 * NS_PER_HOUR)

    assert name(make_marks({"forward": 15}, skews_ns=skews), 15) == "forward"


def test_delay_that_is_spread_over_phases_has_no_name() -> None:
    marks = make_marks({"dataloader": 5, "forward": 5, "host": 5})

    assert name(marks, 15) == "unknown"


def test_phase_that_nobody_marks_is_not_guessed() -> None:
    assert name(make_marks({"backward": 15}, kinds=(DATALOADER,)), 15) == "unknown"
    assert name(make_marks({"dataloader": 15}, kinds=(DATALOADER,)), 15) == "dataloader"


def test_rank_without_marks_gives_no_phases() -> None:
    marks = make_marks({"forward": 15})

    assert measure_phases(marks, range(WORLD + 1)) is None
    assert measure_phases(make_marks({}, steps=5), range(WORLD)) is None


def test_step_that_is_not_over_counts_nowhere() -> None:
    marks = make_marks({"backward": 15})
    end_ns = marks.end_ns.copy()
    end_ns[(marks.step == marks.step.max()) & (marks.rank == 0)] = 0
    phases = measure_phases(
        Marks(
            rank=marks.rank, log=marks.log, kind=marks.kind, name=marks.name, step=marks.step,
            begin_ns=marks.begin_ns, end_ns=end_ns,
        ),
        range(WORLD),
    )  # fmt: skip

    assert phases is not None
    assert (phases.length_ns > 0).all()
    assert name_phase(phases, [2], 15.0 * MS) == "backward"


@pytest.mark.parametrize("kind", [USER, DEVICE])
def test_ranges_of_the_job_that_reach_over_steps_change_nothing(kind: int) -> None:
    marks = make_marks({"forward": 15})
    step_ns = (marks.kind == STEP) & (marks.rank == 1)
    begin, end = marks.begin_ns[step_ns], marks.end_ns[step_ns]
    count = len(begin)
    rows = {
        "rank": np.full(count, 1), "log": np.full(count, 1), "kind": np.full(count, kind),
        "name": np.zeros(count, dtype=np.int64), "step": marks.step[step_ns],
        "begin_ns": begin, "end_ns": np.append(end[7:], np.full(7, end[-1])),
    }  # fmt: skip
    joined = {name: np.concatenate([getattr(marks, name), rows[name]]) for name in rows}
    order = np.lexsort((joined["begin_ns"], joined["rank"]))
    columns: dict[str, Any] = {key: column[order] for key, column in joined.items()}

    assert name(Marks(**columns), 15) == "forward"
