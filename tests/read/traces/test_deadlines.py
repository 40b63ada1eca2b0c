"""The deadline of an analysis where traces are merged, and where a cluster reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.parse.traces.test_merge import merge, rank_trace, write
from tests.read.traces.test_engine import dask_cluster

from whystuck.read import budget
from whystuck.read.budget import Deadline
from whystuck.read.traces.cluster import DaskEngine
from whystuck.read.traces.inputs import TraceInput, find_inputs
from whystuck.read.traces.local import set_deadline
from whystuck.read.traces.plan import ReadPlan
from whystuck.read.traces.reading import read_traces

LEFT_OUT = "were not read: it takes too long to read all"


class Spent(Deadline):
    """Is over when it was asked so many times."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    @property
    def is_over(self) -> bool:
        self.left -= 1
        return self.left < 0


def test_a_merge_past_the_deadline_has_what_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "traces", [rank_trace(rank) for rank in range(4)])
    monkeypatch.setattr("whystuck.read.traces.merging.set_deadline", lambda _: Spent(2))

    merged, said = merge(capsys, str(folder), "-o", str(tmp_path / "merged.json"))

    assert [one["rank"] for one in merged["whystuck"]["merged"]] == [0, 1]
    assert f"note: trace: 2 more {LEFT_OUT}" in said
    assert "note: clocks: 2 more were not compared" in said
    assert {one["clock"] for one in merged["whystuck"]["merged"]} == {"host"}


def test_what_lies_elsewhere_counts_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_BASE_S", 1.0)
    far = [TraceInput("memory://traces/0.json", size_bytes=5_000_000)] * 2

    deadline = set_deadline(far)

    deadline.add(30.0)
    assert not deadline.is_over
    deadline.add(30.0)
    assert deadline.is_over


@pytest.mark.slow
def test_a_cluster_reads_no_more_past_the_deadline(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(8):
        (folder / f"rank{rank}.pt.trace.json").write_text(json.dumps(rank_trace(rank)))
    inputs, _ = find_inputs([str(folder)])

    with dask_cluster(tmp_path) as address:
        plan = ReadPlan(engine=DaskEngine(address, deadline=Spent(2)))
        read = read_traces(inputs, plan)

    assert read.is_partial
    assert len(read.summary.ranks) == 3
    assert [gap.reason for gap in read.gaps if LEFT_OUT in gap.reason] == [f"5 more {LEFT_OUT}"]
