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

BATCHES = {
    "skipping": "WARN no usable volume in tile_7.fits (all masked), skipping batch",
    "this": "all targets are ignore_index, skipping this micro-batch",
    "skipped": "collate gave None, batch skipped",
    "numbered": "0 tokens after the filter -> skipped batch 1841",
}


def judge(folder: Path, told: str, *lines: str) -> Report:
    """Diagnose what others tell of rank 3 beside what ranks print."""
    others = [f"[rank{rank}] eval step 1200 | imgs 412 | mIoU 0.44" for rank in (0, 1, 2, 4, 5)]
    return say(folder, *others, *lines, "and what it says of the ranks", told)


@pytest.mark.parametrize("said", SKIPS | BATCHES)
@pytest.mark.parametrize("told", [FRTRACE, HOROVOD, DESYNC], ids=["frtrace", "horovod", "desync"])
def test_rank_that_is_missing_and_left_it_out_skipped_it(
    tmp_path: Path, told: str, said: str
) -> None:
    finding = first_of(judge(tmp_path, told, f"[rank3] {(SKIPS | BATCHES)[said]}"))

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


TABLE = [
    (
        "[1,0]<stderr>:[2026-02-19 02:44:51.318822: W stall_inspector.cc:107] One or more tensors "
        "were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting "
        "for remainder of ranks for more than 60 seconds."
    ),
    "[1,0]<stderr>:Missing ranks:",
    "[1,0]<stderr>:3: [allreduce.decoder.up1.bias, allreduce.decoder.up1.weight ...]",
]


@pytest.mark.parametrize("prefix", ["[1,3]<stdout>:", "[1,3]<stderr>:rank 3 ", "rank 3: "])
@pytest.mark.parametrize("said", BATCHES)
def test_rank_that_left_a_batch_out_is_the_one_that_horovod_misses(
    tmp_path: Path, said: str, prefix: str
) -> None:
    finding = first_of(say(tmp_path, prefix + BATCHES[said], *TABLE))

    assert (finding.code, finding.culprits.ranks) == ("H127", [3])


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(["[1,2]<stdout>:{0}"], id="another rank"),
        pytest.param(["[1,1]<stdout>:{0}", "[1,3]<stdout>:{0}"], id="others, too"),
        pytest.param(["[1,3]<stdout>:{0}", "[1,3]<stdout>:step 41 loss 2.1"], id="goes on"),
        pytest.param(["[1,3]<stdout>:resuming, skipping batch 7"], id="resumes"),
        pytest.param(["[1,3]<stdout>:skipping batches that were trained on"], id="many"),
        pytest.param(["[1,3]<stdout>:    if x is None: continue  # skip the batch"], id="code"),
        pytest.param(["[1,3]<stdout>:skip_batch=False"], id="a setting"),
        pytest.param(["[1,3]<stdout>:not skipping anything in this batch"], id="not"),
    ],
)
def test_rank_that_left_no_batch_out_now_is_only_missing(tmp_path: Path, lines: list[str]) -> None:
    said = [line.format(BATCHES["skipping"]) for line in lines]
    finding = first_of(say(tmp_path, *said, *TABLE))

    assert (finding.code, finding.culprits.ranks) == ("H101", [3])


def test_batch_that_is_left_out_where_nobody_waits_is_nothing(tmp_path: Path) -> None:
    steps = [f"[rank{rank}] step {n} loss 2.1" for n in range(5) for rank in range(4)]

    assert not say(tmp_path, f"[rank3] {BATCHES['skipping']}", *steps).findings
