"""A device that is lost in one attempt, and the attempts after it that lack one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say

from whystuck.evidence.finding import Confidence, Report

LAUNCH = "torchrun --nnodes 2 --nproc_per_node 8 --max-restarts 2 --rdzv_id 5 train.py"
STRUCK = [
    (
        "[rank{0}]:[E304 11:05:09.771230918 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID "
        "0(default_pg) Rank {0}] Exception (either an error or timeout) detected by watchdog at "
        "work: 611, last enqueued NCCL work: 611, last completed NCCL work: 610."
    ),
    "[rank{0}]: terminate called after throwing an instance of 'c10::DistBackendError'",
    (
        "[rank{0}]:   what():  [PG ID 0 PG GUID 0(default_pg) Rank {0}] Process group watchdog "
        "thread terminated with exception: CUDA error: {1}"
    ),
]
AGAIN = (
    "I0304 11:05:1{0}.655000 8801 torch/distributed/elastic/agent/server/api.py:900] [default] "
    "Worker group FAILED. {1}/2 attempts left; will restart worker group"
)
LACKS = [
    "[rank{0}]: Traceback (most recent call last):",
    '[rank{0}]:   File "/w/train.py", line 12, in <module>',
    '[rank{0}]:     torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
    "[rank{0}]: RuntimeError: CUDA error: invalid device ordinal",
]
XID = (
    "[Tue Mar  4 11:05:{0:02d} 2025] NVRM: Xid (PCI:0000:9b:00): {1}, pid='<unknown>', "
    "name=<unknown>, {2}"
)
LOST = "GPU has fallen off the bus."
FENCES = ["--- kernel log gpu-07", "=== dmesg -T: gpu-07 ===", "me@gpu-07:~$ dmesg -T | tail"]


def paste(
    *, struck: tuple[int, ...] = (12,), second: int = 6, fence: str = FENCES[0], xid: int = 79
) -> list[str]:
    return [
        LAUNCH,
        *(line.format(rank, "unknown error") for rank in struck for line in STRUCK),
        AGAIN.format(2, 2),
        *(line.format(15) for line in LACKS),
        AGAIN.format(8, 1),
        fence,
        XID.format(second, xid, LOST if xid == 79 else "Ch 00000008"),
    ]


def name_first(report: Report) -> tuple[str, list[int], list[str]]:
    culprits = report.findings[0].culprits
    return report.findings[0].name, culprits.ranks, culprits.nodes


@pytest.mark.parametrize("fence", FENCES)
def test_rank_that_met_an_error_as_a_device_was_lost_is_that_of_the_device(
    tmp_path: Path, fence: str
) -> None:
    report = say(tmp_path, *paste(fence=fence))

    assert name_first(report) == ("hardware-error", [12], ["gpu-07"])
    assert report.findings[0].confidence is Confidence.LIKELY
    assert any("CUDA error" in cite.text for cite in report.findings[0].because)


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(paste(struck=(3, 12)), id="two met one"),
        pytest.param(paste(second=40), id="it came later"),
        pytest.param(paste(struck=()), id="nobody met one"),
        pytest.param([line.replace("CUDA error: unk", "unk") for line in paste()], id="no device"),
    ],
)
def test_rank_that_lacks_a_device_afterwards_is_not_that_of_the_device(
    tmp_path: Path, lines: list[str]
) -> None:
    report = say(tmp_path, *lines)

    assert report.findings[0].name == "hardware-error"
    assert not [one for one in report.findings if one.culprits.ranks]
