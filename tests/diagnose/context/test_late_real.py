"""Steps of real jobs: two of the traces that ByteDance publishes with StragglerAnalysis."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet
from tests.diagnose.test_real_dumps import find_data

from whystuck.diagnose.algorithms.ops.groups import GroupOps
from whystuck.diagnose.algorithms.times.lateness import Late, find_late_steps
from whystuck.diagnose.algorithms.times.own_times import Rounds

NS_PER_S = 1e9


def find_traces() -> Path:
    folder = find_data().parent / "straggler"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    return folder


def judge_stages(name: str) -> list[Late]:
    """Compare the computation of the data-parallel ranks of each stage, step by step."""
    columns = parquet.read_table(find_traces() / f"trace-{name}.parquet").to_pydict()
    computes = np.array([op.endswith("-compute") for op in columns["optype"]])
    step, stage, rank, seconds = (
        np.array(columns[key])[computes] for key in ("step", "stage", "dp_rank", "duration")
    )
    steps, line = np.unique(step, return_inverse=True)
    found = []
    for one in np.unique(stage):
        here = stage == one
        own_ns = np.zeros((len(steps), int(rank.max()) + 1))
        np.add.at(own_ns, (line[here], rank[here]), seconds[here] * NS_PER_S)
        late = find_late_steps(make_rounds(str(one), own_ns))
        found += [late] if late is not None else []
    return found


def make_rounds(name: str, own_ns: np.ndarray) -> Rounds:
    lines, ranks = own_ns.shape
    group = GroupOps(name, "", frozenset(range(ranks)), {})
    return Rounds(
        group=group,
        ranks=tuple(range(ranks)),
        rows=np.zeros((lines, ranks), dtype=np.int64),
        own_ns=own_ns,
        steps=np.arange(lines),
        is_known=np.ones(lines, dtype=np.bool_),
        offsets_ns=np.zeros(ranks),
        is_sure=True,
        length_ns=own_ns.max(axis=1),
        is_carried=np.zeros(lines, dtype=np.bool_),
    )


def test_the_slow_worker_is_named_in_its_stage_only() -> None:
    (late,) = judge_stages("AR")

    assert (late.group.name, late.rank) == ("0", 0)
    assert late.share_last == 1
    assert late.lost_share == pytest.approx(0.57, abs=0.02)


def test_sequences_of_uneven_length_make_no_rank_slow() -> None:
    assert judge_stages("SE") == []
