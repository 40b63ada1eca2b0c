"""Ranks that are missing in a collective, and what they print of it themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report

FRTRACE = """\
Not all ranks joining collective, sequence number: 9602
collective: nccl:all_reduce
missing ranks: {3}
expected ranks: {0, 1, 2, 3, 4, 5, 6, 7}
collective state: scheduled"""
HOROVOD = "[missing ranks: 3]"
DESYNC = (
    "[rank1]: Exception: ranks [3] are the lagging ranks that caused this timeout. They never "
    "joined any collectives"
)
SKIPS = {
    "words": "eval step 1200 | imgs 0 after filter (min_area=4096), nothing to reduce, back",
    "skips": "WARNING no boxes in this shard, skipping all_reduce of metrics",
    "returns": "validate(): empty shard after dedup - returning early",
}


def judge(folder: Path, told: str, *lines: str) -> Report:
    """Diagnose what others tell of rank 3 beside what ranks print."""
    others = [f"[rank{rank}] eval step 1200 | imgs 412 | mIoU 0.44" for rank in (0, 1, 2, 4, 5)]
    return say(folder, *others, *lines, "and what it says of the ranks", told)


@pytest.mark.parametrize("said", SKIPS)
@pytest.mark.parametrize("told", [FRTRACE, HOROVOD, DESYNC], ids=["frtrace", "horovod", "desync"])
def test_rank_that_is_missing_and_left_it_out_skipped_it(
    tmp_path: Path, told: str, said: str
) -> None:
    finding = first_of(judge(tmp_path, told, f"[rank3] {SKIPS[said]}"))

    assert (finding.code, finding.culprits.ranks) == ("H127", [3])


def test_prefix_of_a_launcher_tells_whose_the_line_is(tmp_path: Path) -> None:
    finding = first_of(judge(tmp_path, FRTRACE, f"[default3]:{SKIPS['skips']}"))

    assert (finding.code, finding.culprits.ranks) == ("H127", [3])


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([], id="says nothing"),
        pytest.param(["[rank3] nothing to see, moving on"], id="other words"),
        pytest.param([f"[rank2] {SKIPS['words']}"], id="another rank"),
        pytest.param([f"[rank{rank}] {SKIPS['words']}" for rank in (2, 3)], id="others, too"),
        pytest.param([SKIPS["words"]], id="of nobody"),
        pytest.param(["[rank3] skipping step 12, gradient overflow"], id="a step of a scaler"),
        pytest.param(["[rank3] no data found for plot"], id="nothing left out"),
    ],
)
def test_rank_that_does_not_say_so_never_joined(tmp_path: Path, lines: list[str]) -> None:
    finding = first_of(judge(tmp_path, FRTRACE, *lines))

    assert (finding.code, finding.culprits.ranks) == ("H101", [3])


def test_rank_that_left_something_out_and_is_not_missed_is_well(tmp_path: Path) -> None:
    lines = [f"[rank3] {SKIPS['words']}", *(f"[rank3] step {n} loss 2.{n}" for n in range(9))]

    assert not judge(tmp_path, "is this bad?", *lines).findings


# ------------------------------------------------------- it is in another op at the same number

OLD = (
    "[E ProcessGroupNCCL.cpp:474] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=412, OpType={1}, NumelIn={2}, NumelOut={2}, Timeout(ms)=600000) ran for "
    "600203 milliseconds before timing out."
)
NEW = (
    "[rank{0}]:[E1112 08:20:36.120 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=412, OpType={1}, NumelIn={2}, NumelOut={2}, "
    "Timeout(ms)=600000) ran for 600054 milliseconds before timing out."
)
SAYS = [
    *SKIPS.values(),
    "step 40: no objects in this batch, continue",
    "Empty batch after the filter -> next batch",
    "WARN it 40 | no valid annotations left, continuing",
    "it 40: cannot decode, skipping this batch",
    "skipped backward, all labels are masked",
]


def part(form: str, own: tuple[str, int], ranks: int = 4) -> list[str]:
    rest = [form.format(rank, "ALLREDUCE", 2) for rank in range(ranks - 1)]
    return [*rest, form.format(ranks - 1, *own)]


def judge_parted(folder: Path, *lines: str) -> tuple[str, list[int]]:
    finding = first_of(say(folder, *lines))
    return finding.code, finding.culprits.ranks


@pytest.mark.parametrize("form", [OLD, NEW], ids=["old", "new"])
@pytest.mark.parametrize("own", [("BROADCAST", 1088), ("ALLREDUCE", 77)], ids=["op", "size"])
@pytest.mark.parametrize("said", SAYS)
def test_rank_in_another_op_that_said_it_skips_did_so(
    tmp_path: Path, said: str, own: tuple[str, int], form: str
) -> None:
    steps = [f"[rank{rank}]: step 40 loss 0.9{rank}" for rank in range(3)]
    found = judge_parted(tmp_path, f"[rank3]: {said}", *steps, *part(form, own))

    assert found == ("H127", [3])


def test_of_two_ranks_the_one_that_said_so_skipped(tmp_path: Path) -> None:
    lines = ["[rank0]: step 40 loss 0.9", f"[rank1]: {SAYS[3]}"]
    assert judge_parted(tmp_path, *lines, *part(NEW, ("BROADCAST", 9), 2)) == ("H127", [1])
    assert judge_parted(tmp_path, *part(NEW, ("BROADCAST", 9), 2)) == ("H105", [])


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([], id="says nothing"),
        pytest.param([f"[rank2]: {SAYS[3]}"], id="another one"),
        pytest.param([f"[rank{rank}]: {SAYS[3]}" for rank in (2, 3)], id="one that waits, too"),
        pytest.param(["[rank3]: skipping step 40, gradient overflow"], id="a scaler"),
        pytest.param(["[rank3]: number of skipped iterations: 3"], id="a count"),
        pytest.param(["[rank3]: no data loader has workers, continue"], id="other words"),
        pytest.param(
            [f"[rank3]: {SAYS[3]}", *(f"[rank3]: step {n} loss 0.9" for n in range(41, 70))],
            id="long before",
        ),
    ],
)
def test_rank_in_another_op_that_did_not_skip_is_only_apart(
    tmp_path: Path, lines: list[str]
) -> None:
    assert judge_parted(tmp_path, *lines, *part(NEW, ("BROADCAST", 9))) == ("H105", [3])


def test_first_rank_that_prints_for_all_skipped_nothing_alone(tmp_path: Path) -> None:
    waits = [NEW.format(0, "BROADCAST", 9), *(NEW.format(r, "ALLREDUCE", 2) for r in (1, 2, 3))]

    assert judge_parted(tmp_path, f"[rank0]: {SAYS[3]}", *waits) == ("H105", [0])
