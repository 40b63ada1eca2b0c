"""Counters and clocks of several hosts or containers in one text: the one that is held up."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

SHOW = "$ kubectl exec {0} -- cat /sys/fs/cgroup/cpu.stat"


def stat(name: str, periods: int | None, throttled: int) -> list[str]:
    told = [] if periods is None else [f"nr_periods {periods}"]
    return [SHOW.format(name), "usage_usec 41", *told, f"nr_throttled {throttled}"]


@pytest.mark.parametrize("other", [None, 41000], ids=["throttled alone", "both"])
@pytest.mark.parametrize("is_first", [False, True])
def test_each_container_is_counted_by_itself(
    tmp_path: Path, other: int | None, *, is_first: bool
) -> None:
    held, free = stat("slow-master-0", 27110, 26904), stat("fast-master-0", other, 0)
    finding = first_of(say(tmp_path, *(held + free if is_first else free + held)))

    assert finding.code == "S306"
    assert "99 %" in finding.summary


def test_counters_of_two_containers_are_no_pair(tmp_path: Path) -> None:
    lines = [*stat("a-0", 27110, 0), "some words", "more words", *stat("b-0", None, 26904)]

    assert say(tmp_path, *lines).findings == []
