"""A write that is refused, and a kernel that made a file system with errors read-only."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

RAISED = [
    "[rank5]: Traceback (most recent call last):",
    '[rank5]:   File "/srv/save.py", line 61, in put',
    "[rank5]:     with open(path, 'wb') as file:",
    "[rank5]: OSError: [Errno 30] Read-only file system: '/scratch/c/5.pt'",
]
KERNEL = [
    "[Sat May  3 10:11:14 2025] {0}",
    "[Sat May  3 10:11:14 2025] EXT4-fs (nvme1n1): Remounting filesystem read-only",
]
SIGNS = [
    "nvme nvme1: Device not ready; aborting reset, CSTS=0x1",
    "nvme nvme1: I/O 411 QID 22 timeout, reset controller",
    "EXT4-fs error (device nvme1n1): ext4_journal_check_start:84: Detected aborted journal",
]


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("raised", [RAISED, RAISED[3:]], ids=["whole", "cut"])
def test_write_that_is_refused_follows_from_the_disk(
    tmp_path: Path, sign: str, raised: list[str]
) -> None:
    kernel = [line.format(sign) for line in KERNEL]
    found = first_of(say(tmp_path, *raised, "$ ssh box-2 dmesg -T | tail -2", *kernel))

    assert (found.code, found.culprits.nodes, found.culprits.ranks) == ("C208", ["box-2"], [])


@pytest.mark.parametrize(
    "lines",
    [
        RAISED,
        # nothing was made read-only
        [*RAISED, "$ ssh box-2 dmesg -T | tail -1", KERNEL[0].format("usb 1-1: new device")],
    ],
    ids=["alone", "usb"],
)
def test_write_that_is_refused_without_such_a_line_is_an_exception(
    tmp_path: Path, lines: list[str]
) -> None:
    found = first_of(say(tmp_path, *lines))

    assert (found.code, found.culprits.ranks) == ("C204", [5])


def test_another_error_of_a_rank_does_not_follow_from_the_disk(tmp_path: Path) -> None:
    other = [*RAISED[:3], "[rank5]: KeyError: 'lr'"]
    kernel = [line.format(SIGNS[0]) for line in KERNEL]
    report = say(tmp_path, *other, "$ ssh box-2 dmesg -T | tail -2", *kernel)

    assert first_of(report).code == "C204"
