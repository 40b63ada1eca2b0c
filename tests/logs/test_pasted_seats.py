"""Stacks under headings that tell groups of a rank; groups of calls by notes and by source."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report

EP = ("[0, 1]", "[0, 1]", "[2, 3]", "[2, 3]")
DP = ("[0, 2]", "[1, 3]", "[0, 2]", "[1, 3]")
RING = ("ep", "dp", "dp", "ep")
HEADS = {
    "round": "rank {rank} (ep group {ep}, dp group {dp})",
    "fence": "=== rank {rank}: ep={ep} dp={dp} ===",
    "bars": "Rank {rank} | ep_group {ep} | dp_group {dp}",
    "pod": "moe-worker-{rank} (rank {rank}, ep ranks {ep}, dp ranks {dp}):",
    "list": "- rank {rank}, ep {ep}, dp {dp}",
}
# What people write behind a frame.
NOTES = [
    "# {0} group",
    "<- {0}_group",
    "<- group={0}",
    "(group={0}_group)",
    "-- self.{0}_pg",
    "[{0}]",
]
SOURCE = """\
moe.py
40      if self.first == "experts":
41          self.route(x, self.ep_group)
42          self.sync(grads, self.dp_group)
43      else:
44          self.sync(grads, self.dp_group)
45          self.route(x, self.ep_group)"""


def show(rank: int, group: str, head: str, note: str) -> list[str]:
    note = f"     {note.format(group)}" if note else ""
    call = "all_to_all_single" if group == "ep" else "all_reduce"
    return [
        head.format(rank=rank, ep=EP[rank], dp=DP[rank]),
        f"    {call} (torch/distributed/distributed_c10d.py:3890){note}",
        f"    {'route (layers.py:17)' if group == 'ep' else 'sync (opt.py:9)'}",
        f"    step (moe.py:{41 if group == 'ep' else 44})",
        "    <module> (run.py:5)",
    ]


def judge(
    folder: Path, head: str, note: str, *more: str, groups: tuple[str, ...] = RING
) -> tuple[Report, str, list[int]]:
    stacks = [line for rank, one in enumerate(groups) for line in show(rank, one, head, note)]
    report = say(folder, "all four hang in step 0", *stacks, *more)
    codes = {one.code: one.culprits.ranks for one in report.findings}
    return report, "H104" * ("H104" in codes), codes.get("H104", [])


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("note", NOTES)
def test_groups_in_headings_tell_the_ring(tmp_path: Path, head: str, note: str) -> None:
    _, code, ranks = judge(tmp_path, HEADS[head], note)

    assert (code, ranks) == ("H104", [0, 1, 2, 3])


@pytest.mark.parametrize("more", [SOURCE, f"```\n{SOURCE}\n```"])
def test_source_of_the_calls_tells_their_groups(tmp_path: Path, more: str) -> None:
    _, code, ranks = judge(tmp_path, HEADS["round"], "", more)

    assert (code, ranks) == ("H104", [0, 1, 2, 3])


def test_source_of_other_lines_tells_nothing(tmp_path: Path) -> None:
    other = SOURCE.replace("4", "6")
    _, code, _ = judge(tmp_path, HEADS["round"], "", other)

    assert not code


@pytest.mark.parametrize("note", ["<- step <- main", "<- route (layers.py:17)", ""])
def test_callers_are_no_groups(tmp_path: Path, note: str) -> None:
    _, code, _ = judge(tmp_path, HEADS["round"], note)

    assert not code


@pytest.mark.parametrize("groups", [("ep", "ep", "dp", "dp"), ("ep",) * 4])
def test_ranks_that_are_in_one_order_are_no_ring(tmp_path: Path, groups: tuple[str, ...]) -> None:
    _, code, _ = judge(tmp_path, HEADS["round"], NOTES[0], groups=groups)

    assert not code


def test_groups_of_others_make_no_heading(tmp_path: Path) -> None:
    _, code, _ = judge(tmp_path, "rank {rank} waits for ep [4, 5], dp [4, 6]", NOTES[0])

    assert not code


@pytest.mark.parametrize("head", ["rank {rank} (is like rank 7)", "rank {rank} (not rank 9)"])
def test_heading_that_speaks_of_another_rank_is_none(tmp_path: Path, head: str) -> None:
    groups = "ep groups [[0,1],[2,3]], dp groups [[0,2],[1,3]]"
    _, code, _ = judge(tmp_path, head, NOTES[0], groups)

    assert not code


def test_frame_with_a_note_begins_a_stack_below_a_plain_heading(tmp_path: Path) -> None:
    groups = "ep groups [[0,1],[2,3]], dp groups [[0,2],[1,3]]"
    _, code, ranks = judge(tmp_path, "rank {rank}:", NOTES[0], groups)

    assert (code, ranks) == ("H104", [0, 1, 2, 3])


HELD = [
    'Thread 640 (idle): "MainThread"',
    "    acquire (filelock/_api.py:344)",
    "    download_and_prepare (datasets/builder.py:867)",
    "    main (fit.py:31)",
]
OTHERS = [
    'Thread 611 (idle): "MainThread"',
    "    barrier (torch/distributed/distributed_c10d.py:4159)",
    "    main (fit.py:38)",
]


@pytest.mark.parametrize(
    "head",
    [
        "rank 9 (local rank 1):",
        "pystack of rank 9 (cn-b, local rank 1), unchanged since noon:",
        "=== rank 9 / local_rank=1 ===",
        "RANK 9 (pid 640, LOCAL_RANK 1)",
        "Rank 9 on cn-b [local rank 1]:",
    ],
)
def test_heading_of_a_rank_with_its_local_rank_is_of_that_rank(tmp_path: Path, head: str) -> None:
    found = first_of(say(tmp_path, head, *HELD, "rank 0:", *OTHERS))

    assert (found.code, found.culprits.ranks) == ("H115", [9])


@pytest.mark.parametrize(
    "head", ["rank 9 waits, local rank 1:", "the peer of rank 9, not local rank 1:"]
)
def test_local_rank_alone_is_no_rank(tmp_path: Path, head: str) -> None:
    report = say(tmp_path, head, *HELD, "rank 0:", *OTHERS)

    assert not {9, 1} & {rank for one in report.findings for rank in one.culprits.ranks}
