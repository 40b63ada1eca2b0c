"""Pasted logs of a job that stands still once NCCL is up, and that runs without direct access."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say

from whystuck.evidence.finding import Report

WAYS = [
    "box:{pid} [{rank}] NCCL INFO Channel 00/0 : {rank}[{rank}] -> {peer}[{peer}] via P2P/CUMEM",
    "box:{pid} [{rank}] NCCL INFO Channel 00/0 : {rank}[{rank}] -> {peer}[{peer}] via P2P/IPC",
]
UP = "box:{pid} [{rank}] NCCL INFO comm 0x55a{rank} rank {rank} nranks 2 - Init COMPLETE"


def set_up(way: str = WAYS[0]) -> list[str]:
    pairs = ((0, 1), (1, 0))
    return [
        text.format(rank=rank, peer=peer, pid=f"710{rank}:720{rank}")
        for text in (way, UP)
        for rank, peer in pairs
    ]


STOPPED = {
    "hangs": "# hangs in the very first all_reduce, 100 % on both",
    "nothing": "and then nothing for half an hour",
    "stuck": "it is stuck here",
    "no output": "no output after this line",
}
STEPS = ["epoch 0 loss 3.41", "epoch 1 loss 2.98"]
BAR = ["  1%|  | 3/300 [00:04<07:20, 1.48s/it]", "  2%|  | 6/300 [00:08<07:15, 1.48s/it]"]
WENT = {
    "command": ["$ NCCL_P2P_DISABLE=1 torchrun --nproc_per_node 2 t.py", *STEPS],
    "prompt": ["me@box:~/t$ NCCL_P2P_DISABLE=1 NCCL_DEBUG=WARN python -m t.main", *BAR],
    "export": ["$ export NCCL_P2P_DISABLE=1", "$ accelerate launch t.py", *STEPS],
    "with": ["with NCCL_P2P_DISABLE=1 it runs through"],
    "set": ["NCCL_P2P_DISABLE=1 set: works, no hang"],
    "fixes": ["(NCCL_P2P_DISABLE=1 fixes it, 2x A6000)"],
}


def has_trial(report: Report) -> bool:
    return any(one.code == "N422" for one in report.findings)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("went", WENT)
@pytest.mark.parametrize("stopped", STOPPED)
def test_job_that_runs_without_direct_access_is_held_up_by_it(
    tmp_path: Path, way: str, went: str, stopped: str
) -> None:
    found = say(tmp_path, *set_up(way), STOPPED[stopped], *WENT[went]).findings[0]

    assert (found.code, found.culprits.ranks) == ("N422", [])


SHM = [text.replace("P2P/CUMEM", "SHM/direct/direct") for text in set_up()]
RAISED = [
    "[rank1]: Traceback (most recent call last):",
    '[rank1]:   File "/x/train.py", line 9, in <module>',
    "[rank1]:     main()",
    "[rank1]: ValueError: bad sample",
]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([*set_up(), *WENT["command"]], id="nobody says that it hung"),
        pytest.param([*set_up(), STOPPED["hangs"], WENT["command"][0]], id="nothing behind"),
        pytest.param([*set_up(), STOPPED["hangs"], *WENT["command"][:2]], id="one step"),
        pytest.param([*set_up(), *STEPS, STOPPED["hangs"], *WENT["command"]], id="it moved before"),
        pytest.param([*SHM, STOPPED["hangs"], *WENT["command"]], id="another way"),
        pytest.param([*set_up()[:2], STOPPED["hangs"], *WENT["command"]], id="not up"),
        pytest.param(
            [*set_up(), STOPPED["hangs"], WENT["command"][0], *set_up(), *STEPS], id="same way"
        ),
        pytest.param(
            [*set_up(), STOPPED["hangs"], *WENT["command"], "# and hangs here again"],
            id="hangs later",
        ),
        pytest.param(
            [*set_up(), STOPPED["hangs"], *WENT["with"], "it hangs after 20 min with it, too"],
            id="hangs later in words",
        ),
        pytest.param(
            [*set_up(), STOPPED["hangs"], *WENT["command"], "then it stops at epoch 2 as before"],
            id="stops later",
        ),
        pytest.param(
            [*set_up(), STOPPED["hangs"], WENT["command"][0] + "  # the same", *STEPS], id="note"
        ),
        pytest.param(
            [*set_up(), STOPPED["hangs"], "$ NCCL_P2P_DISABLE=0 torchrun t.py", *STEPS], id="zero"
        ),
        pytest.param(
            [*set_up(), STOPPED["hangs"], "$ NCCL_IB_DISABLE=1 torchrun t.py", *STEPS], id="other"
        ),
        pytest.param(
            [*set_up(), STOPPED["hangs"], "$ grep -r NCCL_P2P_DISABLE=1 run.sh", *STEPS], id="grep"
        ),
        *(
            pytest.param([*set_up(), STOPPED["hangs"], text], id=text[:40])
            for text in (
                "NCCL_P2P_DISABLE=1 does not help",
                "with NCCL_P2P_DISABLE=1 it still hangs",
                "hangs with NCCL_P2P_DISABLE=1 as well",
                "without NCCL_P2P_DISABLE=1 it runs through",
                "with NCCL_P2P_DISABLE=1 it runs 40 steps, then hangs",
                "should I try whether it works with NCCL_P2P_DISABLE=1?",
                "the docs say that NCCL_P2P_DISABLE=1 works",
                "on the other box it works with NCCL_P2P_DISABLE=1",
                "it worked with NCCL_P2P_DISABLE=1 last month",
                "export NCCL_P2P_DISABLE=1  # works around a bug of the old driver",
                "env: NCCL_P2P_DISABLE=1 NCCL_DEBUG=INFO",
                "the same with NCCL_P2P_DISABLE=1, which only runs slower",
            )
        ),
    ],
)
def test_trial_that_shows_nothing_is_none(tmp_path: Path, lines: list[str]) -> None:
    assert not has_trial(say(tmp_path, *lines))


def test_rank_that_failed_by_itself_goes_before(tmp_path: Path) -> None:
    report = say(tmp_path, *set_up(), STOPPED["hangs"], *WENT["with"], *RAISED)

    assert (report.findings[0].code, report.findings[0].culprits.ranks) != ("N422", [])
    assert report.findings[0].culprits.ranks == [1]


CHECKED = [
    "Enabling peer access between GPU0 and GPU1...",
    "cudaMemcpyPeer / cudaMemcpy between GPU0 and GPU1: 6.02GB/s",
    "Run kernel on GPU1, taking source data from GPU0 and writing to GPU1...",
    "Verification error @ element 1: val = {0}, ref = 4.000000",
    "Verification error @ element 2: val = {0}, ref = 8.000000",
    "Test failed!",
]


@pytest.mark.parametrize("value", ["0.000000", "nan", "-12.5", "1.2e+09"])
@pytest.mark.parametrize("kept", [slice(0, 6), slice(1, 4), slice(2, 5)])
def test_direct_access_that_reads_wrong_data_is_told(
    tmp_path: Path, value: str, kept: slice
) -> None:
    lines = [line.format(value) for line in CHECKED[kept]]
    found = say(tmp_path, "loss is nan with two devices", "$ ./simpleP2P", *lines).findings[0]

    assert (found.code, found.confidence, found.culprits.ranks) == ("N422", "likely", [])


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([*CHECKED[:3], "Test passed"], id="passed"),
        pytest.param(["$ ./vectorAdd", CHECKED[3].format("0.0"), "Test failed!"], id="one device"),
        pytest.param([CHECKED[3].format("0.0"), *CHECKED[:3], "Test passed"], id="before it"),
        pytest.param([*CHECKED[:3], "no Verification error @ element seen"], id="none"),
    ],
)
def test_tests_that_tell_nothing_of_direct_access(tmp_path: Path, lines: list[str]) -> None:
    assert not has_trial(say(tmp_path, *lines))
