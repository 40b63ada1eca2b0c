"""Ranks that say in words of their own that they are still elsewhere, while others wait."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_pasted_near import blamed_of
from tests.logs.test_told import first_of, say

WAIT = (
    "[rank{0}]:[E1112 08:40:10.221004455 ProcessGroupNCCL.cpp:685] [Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=188, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
    "Timeout(ms)=600000) ran for 600010 milliseconds before timing out."
)
WAITS = [WAIT.format(rank) for rank in (0, 1, 3)]
STEPS = [f"[rank{rank}]: step 9 loss 2.{rank}" for rank in range(4)]


@pytest.mark.parametrize(
    "text",
    [
        "rank 2: still in val loop",
        "[rank2]: still in validation, batch 118/512",
        "[rank2] INFO eval: still evaluating sample 4100",
        "[rank2]: Validating:  23%|##3       | 118/512 [09:50<32:11,  4.9s/it]",
        "[rank2]: Evaluation batch 118/512",
        "[rank2]: generating sample 18/64",
        "INFO trainer: rank 2 is still computing metrics on the host",
    ],
)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_rank_that_is_still_elsewhere_is_the_one_others_wait_for(
    tmp_path: Path, text: str, *, after: bool
) -> None:
    lines = (*WAITS, text) if after else (text, *WAITS)
    finding = first_of(say(tmp_path, *STEPS, *lines))

    assert (finding.code, finding.culprits.ranks) == ("H101", [2])
    assert finding.victims.ranks == "0-1,3"


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([f"[rank{rank}]: still in val loop" for rank in range(4)], id="all say so"),
        pytest.param(["[rank1]: still in val loop"], id="who says so waits"),
        pytest.param(["[rank2]: still in val loop", "[rank2]: step 10 loss 2.2"], id="it goes on"),
        pytest.param(["INFO still in val loop"], id="nobody knows who"),
        pytest.param(["[rank2]: Evaluation batch 512/512"], id="it is over"),
        pytest.param(["[rank2]: the loss is still in range"], id="a sentence"),
    ],
)
def test_words_that_explain_no_wait_blame_nobody(tmp_path: Path, lines: list[str]) -> None:
    report = say(tmp_path, *STEPS, *lines, *WAITS)

    assert first_of(report).code == "C211"
    assert blamed_of(report)[0] == set()


def test_loop_alone_is_no_trouble(tmp_path: Path) -> None:
    assert say(tmp_path, *STEPS, "[rank2]: still in val loop").findings == []
