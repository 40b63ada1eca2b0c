"""What ranks say in words of their own: that they leave, and that a loss is no number."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Confidence, Verdict

WAIT = (
    "[rank{0}]:[E1112 08:40:10.221004455 ProcessGroupNCCL.cpp:685] [Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=3573, OpType=ALLREDUCE, NumelIn=64, "
    "NumelOut=64, Timeout(ms)=600000) ran for 600010 milliseconds before timing out."
)
WAITS = [WAIT.format(rank) for rank in (0, 1, 2)]
STEPS = [f"[rank{rank}]: step 9 loss 2.{rank}" for rank in range(4)]


@pytest.mark.parametrize(
    "text",
    [
        "[rank3]: data exhausted after 1190 batches",
        "[rank 3] no more batches, leaving the training loop",
        "rank 3 exited early",
        "[rank0]: rank 3 has finished its data",
        "INFO trainer: Rank 3: ran out of samples at step 9",
        "[rank: 3] Received 0 batches from the train dataloader",
    ],
)
def test_rank_that_says_it_leaves_is_the_one_others_wait_for(tmp_path: Path, text: str) -> None:
    finding = first_of(say(tmp_path, *STEPS, text, *WAITS))

    assert (finding.code, finding.culprits.ranks) == ("H103", [3])
    assert finding.victims.ranks == "0-2"
    assert finding.confidence is Confidence.LIKELY


LEAVES = "[rank{0}]: data exhausted after 1190 batches"


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([*map(LEAVES.format, range(4)), *WAITS], id="all say so"),
        pytest.param([LEAVES.format(0), *WAITS], id="who says so waits"),
        pytest.param([LEAVES.format(3), "[rank3]: step 10 loss 2.2", *WAITS], id="it goes on"),
        pytest.param([*WAITS, LEAVES.format(3)], id="it leaves when others gave up"),
        pytest.param(["INFO data exhausted after 9 batches", *WAITS], id="nobody knows who"),
    ],
)
def test_end_of_data_that_explains_no_wait_blames_nobody(tmp_path: Path, lines: list[str]) -> None:
    report = say(tmp_path, *STEPS, *lines)

    assert first_of(report).code == "C211"
    assert all(one.code != "H103" for one in report.findings)


def test_end_of_data_alone_is_no_trouble(tmp_path: Path) -> None:
    assert all(one.code != "H103" for one in say(tmp_path, *STEPS, LEAVES.format(3)).findings)


def test_rank_0_may_speak_for_all(tmp_path: Path) -> None:
    waits = [WAIT.format(rank) for rank in (1, 2, 3)]

    finding = first_of(say(tmp_path, "[rank0]: step 9 loss 2.1", LEAVES.format(0), *waits))

    assert (finding.code, finding.confidence) == ("H103", Confidence.POSSIBLE)


@pytest.mark.parametrize(
    "text",
    [
        "[rank3]: step 10 Loss is nan, stopping training",
        "rank 3: loss became NaN: aborting",
        "[rank3]: loss: nan -> raise",
    ],
)
def test_rank_that_stops_for_a_loss_explains_the_waits(tmp_path: Path, text: str) -> None:
    report = say(tmp_path, *STEPS, text, *WAITS)
    finding = first_of(report)

    assert (finding.code, finding.culprits.ranks) == ("V502", [3])
    assert report.verdict is Verdict.DIVERGED


def test_loss_that_a_rank_raises_for_is_told_once(tmp_path: Path) -> None:
    report = say(
        tmp_path,
        *STEPS,
        "[rank3]: Traceback (most recent call last):",
        '[rank3]:   File "/a/train.py", line 9, in <module>',
        "[rank3]: ValueError: loss is nan, giving up",
        *WAITS,
    )

    assert [(one.code, one.culprits.ranks) for one in report.findings] == [("V502", [3])]


TRAINER = "{{'loss': {0}, 'grad_norm': {1}, 'epoch': 0.{2}}}"


def test_job_whose_loss_stays_no_number_blames_nobody(tmp_path: Path) -> None:
    lines = [TRAINER.format(2.1, 1.8, 1), *(TRAINER.format(0.0, "nan", n) for n in (2, 3, 4))]

    finding = first_of(say(tmp_path, *lines, " 16%|#   | 812/5000 [31:10<2:40:41,  2.30s/it]"))

    assert (finding.code, finding.culprits.ranks) == ("V502", [])
    assert finding.confidence is Confidence.LIKELY


def test_rank_that_prints_the_loss_of_all_is_not_blamed(tmp_path: Path) -> None:
    lines = [f"[rank7]: iteration {n} | lm loss: nan | grad norm: 3.1" for n in (8, 9, 10)]

    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.culprits.ranks) == ("V502", [])


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(
            [*(TRAINER.format(9.1, "inf", n) for n in (1, 2)), TRAINER.format(8.8, 3.1, 3)],
            id="the scale is found",
        ),
        pytest.param([TRAINER.format(2.1, "nan", 1)], id="one line"),
        pytest.param([f"epoch {n}: eval_loss: nan" for n in (1, 2, 3)], id="no samples to check"),
        pytest.param(["step 3 loss: 2.4 number of nan iterations: 0"] * 3, id="none"),
        pytest.param(["assert not loss is nanosecond", "the loss is not nan"], id="words"),
    ],
)
def test_loss_that_is_a_number_again_or_says_nothing_is_no_trouble(
    tmp_path: Path, lines: list[str]
) -> None:
    assert all(one.code != "V502" for one in say(tmp_path, *lines).findings)
