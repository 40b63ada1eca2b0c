"""What containers printed before they were started again, above what they do now."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

FAILED = [
    "[rank2]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, unha",
    "[rank2]: socketStartConnect: Connect to 10.3.2.8<45301> failed : Software caused connection",
]
RAISED = [
    "[rank2]: Traceback (most recent call last):",
    '[rank2]:   File "/srv/train.py", line 88, in <module>',
    "[rank2]: ValueError: bad sample 81",
]
NOW = [
    "$ kubectl -n ml logs vit-master-0 --tail 6 --timestamps",
    "2025-02-11T01:20:01.100200Z Resuming from /ckpt/e41.pt",
    "2025-02-11T07:00:40.001100Z epoch 55 [1100/1251] loss 2.811 img/s 9120 data 0.004",
    "2025-02-11T07:01:08.300100Z epoch 55 [1150/1251] loss 2.790 img/s 9124 data 0.004",
]
COMMANDS = [
    "$ kubectl -n ml logs vit-worker-1 --previous | tail -4",
    "$ kubectl logs -p vit-worker-1",
    "me@login:~$ oc logs vit-worker-1 -c pytorch --previous --tail=20",
]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("lines", [FAILED, RAISED], ids=["lines", "traceback"])
def test_failure_before_the_last_start_of_a_job_that_runs_is_none(
    tmp_path: Path, command: str, lines: list[str]
) -> None:
    assert say(tmp_path, command, *lines, *NOW).findings == []


@pytest.mark.parametrize("command", COMMANDS)
def test_failure_before_the_last_start_of_a_job_of_which_no_more_is_told_is_one(
    tmp_path: Path, command: str
) -> None:
    assert first_of(say(tmp_path, command, *RAISED)).culprits.ranks == [2]
    assert first_of(say(tmp_path, *NOW, command, *RAISED)).culprits.ranks == [2]


def test_failure_of_the_container_that_runs_is_one(tmp_path: Path) -> None:
    lines = ["$ kubectl logs vit-worker-1 | tail -4", *RAISED, *NOW]

    assert first_of(say(tmp_path, *lines)).culprits.ranks == [2]


def test_container_that_fails_again_is_told(tmp_path: Path) -> None:
    lines = [COMMANDS[0], *FAILED, *NOW, "$ kubectl logs vit-worker-1", *RAISED]

    assert first_of(say(tmp_path, *lines)).code == "C204"
