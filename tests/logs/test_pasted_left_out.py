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
