"""Ranks that wait until a time limit while another one uploads what it saved."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

WAIT = (
    "[rank{0}]:[E ProcessGroupNCCL.cpp:563] [Rank {0}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=881, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) "
    "ran for 600088 milliseconds before timing out."
)
BAR = "{0}:  {1}%|######    | 2.4{1}G/4.92G [{2}<06:02, 3.98MB/s]"
SAID = [
    "(push_to_hub=True after each save)",
    "we use push_to_hub with hub_strategy=checkpoint, accelerate on 4 devices",
    "Upload 9 LFS files:   0%|          | 0/9 [00:00<?, ?it/s]",
    "INFO Pushing the model to the Hub",
    "[rank0]: api.upload_folder(folder_path=out, repo_id=name)",
    "uploading checkpoint to s3://runs/a7",
]
FILES = ["model-00002-of-00009.safetensors", "optimizer.bin"]


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("file", FILES)
def test_bar_that_goes_on_while_ranks_give_up_is_a_slow_upload(
    tmp_path: Path, said: str, file: str
) -> None:
    lines = [said, WAIT.format(1), WAIT.format(3), BAR.format(file, 61, "09:59")]
    finding = next(iter(say(tmp_path, *lines).findings))

    assert (finding.code, finding.culprits.ranks, finding.victims.ranks) == ("H118", [], "1,3")


@pytest.mark.parametrize("said", SAID)
def test_bar_as_long_as_the_limit_is_a_slow_upload(tmp_path: Path, said: str) -> None:
    lines = [said, BAR.format(FILES[0], 61, "09:44"), BAR.format(FILES[1], 100, "00:40")]
    finding = next(iter(say(tmp_path, *lines, WAIT.format(2)).findings))

    assert finding.code == "H118"


def test_share_of_an_upload_in_a_line_of_its_own(tmp_path: Path) -> None:
    lines = ["uploading step_400 to s3://runs/a7: 40%", WAIT.format(2)]
    lines += ["uploading step_400 to s3://runs/a7: 43%"]

    assert next(iter(say(tmp_path, *lines).findings)).code == "H118"


@pytest.mark.parametrize(
    "lines",
    [
        [BAR.format(FILES[0], 61, "09:44"), WAIT.format(2)],
        ["push_to_hub=False", BAR.format(FILES[0], 61, "09:44"), WAIT.format(2)],
        ['"push_to_hub": false', BAR.format(FILES[0], 61, "09:44"), WAIT.format(2)],
        [SAID[0], BAR.format(FILES[0], 61, "00:12"), WAIT.format(2)],
        [
            SAID[0],
            BAR.format(FILES[0], 61, "09:44"),
            BAR.format(FILES[0], 100, "09:58"),
            WAIT.format(2),
        ],
        [SAID[0], WAIT.format(2)],
    ],
    ids=["download", "off", "json", "soon", "done", "no bar"],
)
def test_what_is_no_upload_beside_the_limit(tmp_path: Path, lines: list[str]) -> None:
    assert first_of(say(tmp_path, *lines)).code == "C211"


def test_upload_without_a_time_limit_is_no_finding(tmp_path: Path) -> None:
    lines = [SAID[2], BAR.format(FILES[0], 61, "09:44"), "step 40 loss 2.1", "step 41 loss 2.0"]

    assert list(say(tmp_path, *lines).findings) == []
