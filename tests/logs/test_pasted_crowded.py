"""Processes that all stand on one device in what nvidia-smi prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Confidence

FULL = "| N/A   41C    P0   112W / 400W |  79871MiB / 81920MiB |    100%      Default |"
UNUSED = "| N/A   29C    P0    58W / 400W |      4MiB / 81920MiB |      0%      Default |"
OOM = (
    "{rank}: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 0 "
    "has a total capacity of 79.15 GiB of which 43.25 MiB is free."
)
ROWS = {
    "new": "|    {device}   N/A  N/A    99120{pid}      C   {name}                 9981MiB |",
    "old": "|    {device}    N/A  N/A     9120{pid}      C   {name}     9981MiB |",
}
PYTHON = "...envs/ft/bin/python"


def list_processes(form: str, *devices: int, name: str = PYTHON) -> list[str]:
    return [
        ROWS[form].format(device=device, pid=pid, name=name) for pid, device in enumerate(devices)
    ]


@pytest.mark.parametrize("form", ROWS)
def test_processes_that_are_all_on_one_of_several_devices(tmp_path: Path, form: str) -> None:
    shown = [FULL, UNUSED, *list_processes(form, 0, 0, 0, 0)]
    finding = first_of(say(tmp_path, *shown, OOM.format(rank=3), OOM.format(rank=1)))

    assert (finding.code, finding.confidence) == ("H126", Confidence.LIKELY)
    assert not finding.culprits.ranks
    assert "all 4 processes are on device 0" in finding.summary


OTHERS = {
    "one each": [FULL, UNUSED, *list_processes("new", 0, 1, 2, 3)],
    "contexts on the first": [FULL, UNUSED, *list_processes("new", 0, 0, 0, 0, 1, 2, 3)],
    "no other device": [FULL, *list_processes("new", 0, 0, 0, 0)],
    "two": [FULL, UNUSED, *list_processes("new", 0, 0)],
    "a desktop": [FULL, UNUSED, *list_processes("new", 0, 0, 0, name="/opt/app/viewer")],
    "a loss": [f"loss 4MiB / 81920MiB | {number}" for number in range(4)],
}


@pytest.mark.parametrize("shown", OTHERS.values(), ids=OTHERS)
def test_other_tables_of_devices_tell_nothing_of_that(tmp_path: Path, shown: list[str]) -> None:
    finding = first_of(say(tmp_path, *shown, OOM.format(rank=3), OOM.format(rank=1)))

    assert finding.code == "C206"
