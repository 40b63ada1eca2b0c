"""A rank whose device is taken by another process."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_pasted_near import blamed_of
from tests.logs.test_told import first_of, say

BUSY = "[rank{0}]: RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"
QUERY = "$ nvidia-smi --query-gpu=index,{0}memory.used --format=csv,noheader"
MODES = ["", "compute_mode,"]


def ask(columns: str, *used: int) -> list[str]:
    """Write a query of devices, and its answer."""
    mode = "Exclusive_Process, " if columns else ""
    rows = [f"{index}, {mode}{mib} MiB" for index, mib in enumerate(used)]
    return [QUERY.format(columns), *rows]


@pytest.mark.parametrize("columns", MODES)
def test_rank_is_named_where_one_device_is_in_use_and_others_are_not(
    tmp_path: Path, columns: str
) -> None:
    report = say(tmp_path, BUSY.format(3), *ask(columns, 3, 3, 3, 41877))

    assert (first_of(report).code, first_of(report).culprits.ranks) == ("C210", [3])


@pytest.mark.parametrize("columns", MODES)
@pytest.mark.parametrize("used", [(3, 3, 3, 3), (40100, 41000, 40900, 41877), (3, 3, 40100, 41877)])
def test_devices_that_tell_nothing_of_the_rank_blame_nobody(
    tmp_path: Path, used: tuple[int, ...], columns: str
) -> None:
    report = say(tmp_path, BUSY.format(3), *ask(columns, *used))

    assert (first_of(report).code, blamed_of(report)[0]) == ("C210", set())


def test_memory_of_devices_alone_is_well(tmp_path: Path) -> None:
    steps = [f"step {step} loss 2.{step}" for step in range(30)]

    assert not say(tmp_path, *steps, *ask("", 3, 41877, 41880, 41870)).findings


def test_rank_is_named_where_others_got_past_it(tmp_path: Path) -> None:
    head = "[rank{0}]: Traceback (most recent call last):"
    other = (
        head + '\n[rank{0}]:   File "/w/a.py", line 9, in f\n[rank{0}]: RuntimeError: Connection '
    )
    lines = [f"{other}reset by peer".format(rank) for rank in (0, 1, 2)]
    report = say(tmp_path, f"{head}\n{BUSY}".format(3), *lines)

    assert (first_of(report).code, first_of(report).culprits.ranks) == ("C210", [3])
    everybody = say(tmp_path, *map(BUSY.format, range(4)))
    assert (first_of(everybody).code, blamed_of(everybody)[0]) == ("C210", set())
