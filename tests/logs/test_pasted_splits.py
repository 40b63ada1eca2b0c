"""What a rank raises whose splits do not fit, programs that lack a device, and look-alikes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_pasted_machine import WAIT
from tests.logs.test_told import first_of, say

ERRORS = [
    "RuntimeError: Split sizes doesn't match total dim 0 size",
    "RuntimeError: Split sizes does not match total dim 0 size",
    "RuntimeError: Number of tensor splits not equal to group size",
    "ValueError: Tensor's dim 0 does not divide equally across group size",
]
LABELS = ["[rank{0}]: ", "[default{0}]:", "{0}: "]
XID_79 = "Oct 02 22:58:14 gn07 kernel: NVRM: Xid (PCI:0000:c8:00): 79, GPU has fallen off the bus."


def raise_in(rank: int, message: str, label: str = LABELS[0]) -> list[str]:
    lines = [
        "Traceback (most recent call last):",
        '  File "/w/moe.py", line 88, in dispatch',
        "    dist.all_to_all_single(out, x, recv, send)",
        message,
    ]
    return [label.format(rank) + line for line in lines]


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("message", ERRORS)
def test_rank_that_raises_that_its_splits_do_not_fit_is_named(
    tmp_path: Path, message: str, label: str
) -> None:
    waits = [WAIT.format(rank) for rank in (0, 1, 3)]
    finding = first_of(say(tmp_path, *raise_in(2, message, label), *waits))

    assert (finding.code, finding.culprits.ranks) == ("H108", [2])


def test_splits_that_fit_on_no_rank_are_nobodys_alone(tmp_path: Path) -> None:
    lines = [line for rank in range(4) for line in raise_in(rank, ERRORS[0])]
    report = say(tmp_path, *lines)

    assert all(not one.culprits.ranks for one in report.findings)


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: split_with_sizes expects split_sizes to sum exactly to 7",
        "KeyError: 'Split sizes'",
    ],
)
def test_splits_of_other_calls_are_plain_exceptions(tmp_path: Path, message: str) -> None:
    waits = [WAIT.format(rank) for rank in (0, 1, 3)]

    assert first_of(say(tmp_path, *raise_in(2, message), *waits)).code == "C204"


CUT = '  File "/w/a.py", line 3, in f'
LACKS = [
    "lightning.fabric.utilities.exceptions.MisconfigurationException: You requested gpu: [0, 1, 2]",
    "RuntimeError: No CUDA GPUs are available",
    "ValueError: 8 devices requested, but only 7 found",
]


@pytest.mark.parametrize("end", [[], ["srun: error: gn07: tasks 0-7: Exited with exit code 1"]])
@pytest.mark.parametrize("message", LACKS)
def test_device_that_is_gone_explains_an_error_whose_traceback_was_cut(
    tmp_path: Path, message: str, end: list[str]
) -> None:
    finding = first_of(say(tmp_path, CUT, message, *end, XID_79))

    assert (finding.code, finding.culprits.nodes) == ("C208", ["gn07"])


def test_device_that_is_gone_explains_no_other_error_whose_traceback_was_cut(
    tmp_path: Path,
) -> None:
    report = say(tmp_path, CUT, "KeyError: 'devices'", XID_79)
    sure = [one.code for one in report.findings if one.confidence != "possible"]

    assert "C208" not in sure
