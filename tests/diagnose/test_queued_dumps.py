"""Dumps of hosts that run ahead of their devices: what the queue hides must blame nobody."""

from __future__ import annotations

import random
from pathlib import Path

from tests.diagnose.dumps import DONE, SCHEDULED, Dumps


def test_sizes_that_may_differ_are_no_call_site_where_there_are_no_frames(tmp_path: Path) -> None:
    job = Dumps(world=4)
    rng = random.Random(2)
    for step in range(6):
        for rank in range(4 if step < 4 else 3):
            size = [[rng.choice([3, 4]), 8]]
            state = DONE if step < 4 else SCHEDULED
            job.op([rank], "all_to_all", input_sizes=size, output_sizes=size, state=state)

    findings = job.report(tmp_path).findings

    assert [(item.code, item.culprits.ranks) for item in findings] == [("H101", [3])]


def test_a_transfer_whose_other_half_is_queued_is_not_missing(tmp_path: Path) -> None:
    job = Dumps(world=2).op(range(2), "all_reduce", times=3).move(0, 1)
    job.send(0, 1, state=SCHEDULED).op([0], "all_reduce", state=SCHEDULED)
    job.op([1], "all_reduce", state=SCHEDULED).recv(1, 0, state=SCHEDULED)

    findings = job.report(tmp_path).findings

    assert not [item for item in findings if item.code == "H110"]


def test_a_ring_that_holds_only_pending_ops_does_not_tell_that_older_ones_are_over(
    tmp_path: Path,
) -> None:
    job = Dumps(world=3, groups={"1": ("pair", [0, 1])}, ring=1)
    job.op(range(3), "all_reduce", times=3).op(range(2), "all_reduce", group="1", times=3)
    job.op(range(2), "all_reduce", state=SCHEDULED)
    job.op([0], "all_reduce", group="1", state=SCHEDULED, times=2)
    job.op([1], "all_reduce", group="1", state=SCHEDULED)

    findings = job.report(tmp_path).findings

    assert not [item for item in findings if item.code == "H123"]
