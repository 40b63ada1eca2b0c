"""Sizes of the shards of a distributed checkpoint, beside ranks that waited until a time limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say

from whystuck.evidence.finding import Finding, Report

BEGUN = "[rank0]:[titan] 2026-05-08 23:10:40,118 - root - INFO - Saving the checkpoint."
WAIT = (
    "[rank{0}]:[E508 23:15:52.003198114 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=90122, OpType=ALLGATHER, NumelIn=1, NumelOut=8, "
    "Timeout(ms)=300000) ran for 300018 milliseconds before timing out."
)
WHOLE = 12_884_901_888
# How a size is shown: with a time, by `ls -l` and by `ls -lh`.
FORMS = {
    "awk": ("$ ls -l step-90 | awk '{{print $5,$8,$9}}'", "{0} 23:1{2} {1}"),
    "date": ("$ ls -l step-90 | cut -d' ' -f5-", "{0} May  8 23:1{2} {1}"),
    "iso": ("$ ls -l --time-style=long-iso s90", "{0} 2026-05-08 23:1{2} {1}"),
    "ls": ("$ ls -l step-90", "-rw-r--r-- 1 ml ml {0} May  8 23:1{2} {1}"),
    "stat": ("$ stat -c '%s %n' step-90/*", "{0} step-90/{1}"),
}


def first_of(report: Report) -> Finding:
    """Return the first finding; a job that waits for a save is no error."""
    return report.findings[0]


def look(form: str, sizes: dict[int, int], minute: int = 5) -> list[str]:
    head, row = FORMS[form]
    names = {rank: f"__{rank}_0.distcp" for rank in sizes}
    rows = [row.format(size, names[rank], minute) for rank, size in sizes.items()]
    return [head.format(), *rows]


def paste(form: str, first: dict[int, int], second: dict[int, int]) -> list[str]:
    return [BEGUN, WAIT.format(5), *look(form, first), "", *look(form, second, 7)]


ALL = dict.fromkeys((0, 1, 3, 4), WHOLE)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("prefix", ["", "> "])
def test_rank_whose_shard_still_grows_is_slow(tmp_path: Path, form: str, prefix: str) -> None:
    lines = paste(form, {**ALL, 2: 4_000_000_000}, {2: 5_100_000_000})
    finding = first_of(say(tmp_path, *(f"{prefix}{line}" for line in lines)))

    assert (finding.code, finding.culprits.ranks) == ("H118", [2])
    assert finding.victims.ranks == "5"


@pytest.mark.parametrize(
    ("first", "second"),
    {
        "still": ({**ALL, 2: 4_000_000_000}, {2: 4_000_000_000}),
        "one look": ({**ALL, 2: 4_000_000_000}, {}),
        "other step": ({**ALL, 2: 4_000_000_000}, {2: 4_000_000_090}),
        "all grow": (
            {rank: 3_000_000_000 + rank for rank in range(5)},
            {rank: 4_000_000_000 + rank for rank in range(5)},
        ),
        "nearly done": ({**ALL, 2: 11_000_000_000}, {2: 12_000_000_000}),
        "uneven": ({0: WHOLE, 1: WHOLE // 3, 3: WHOLE, 2: WHOLE // 6}, {2: WHOLE // 5}),
        "who waits": ({**ALL, 5: 4_000_000_000}, {5: 5_100_000_000}),
        "one whole": ({0: WHOLE, 2: 4_000_000_000}, {2: 5_100_000_000}),
    }.values(),
)
def test_shards_that_blame_nobody(
    tmp_path: Path, first: dict[int, int], second: dict[int, int]
) -> None:
    finding = first_of(say(tmp_path, *paste("awk", first, second)))

    # The rank that says that a checkpoint is saved writes one shard of several.
    assert finding.culprits.ranks == []


@pytest.mark.parametrize(
    "text", ["Saving the checkpoint (or staging if async is enabled).", "Saving sharded checkpoint"]
)
def test_rank_that_speaks_for_all_is_not_who_saves(tmp_path: Path, text: str) -> None:
    finding = first_of(say(tmp_path, f"[rank0]: {text}", WAIT.format(5)))

    assert (finding.code, finding.culprits.ranks, finding.victims.ranks) == ("H118", [], "5")


def test_rank_that_saves_a_full_checkpoint_is_who_others_wait_for(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, "[rank0]: Saving model checkpoint to /o/90", WAIT.format(5)))

    assert (finding.code, finding.culprits.ranks) == ("H118", [0])


def test_growing_shard_without_ranks_that_waited_is_a_save_under_way(tmp_path: Path) -> None:
    lines = paste("awk", {**ALL, 2: 4_000_000_000}, {2: 5_100_000_000})
    lines = [line for line in lines if "Watchdog" not in line]

    assert say(tmp_path, *lines).findings == []
