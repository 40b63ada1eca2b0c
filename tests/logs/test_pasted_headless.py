"""Lists of processes without a heading: their columns stand in the command."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say

LOST = (
    "[81.7] Lustre: fs1-OST0007-osc-ffff9d1a: Connection to fs1-OST0007 (at 10.1.0.4@o2ib) was "
    "lost; in progress operations using this service will wait for recovery to complete"
)
WAITING = [f" 4120{k} Dl   cl_sync_io_wait           00:00:21" for k in range(3)]
LOOPS = [
    "$ for p in $(pgrep -f pretrain_x); do ps -o pid,stat,wchan:24,time -p $p --no-headers; done",
    "$ ps -o pid=,state=,wchan=,time= --no-headers -p $(pgrep -d, -f jobs/train_seg.py)",
]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("rest", [[], [LOST]])
def test_rows_are_read_by_the_columns_of_the_command(
    tmp_path: Path, loop: str, rest: list[str]
) -> None:
    found = say(tmp_path, loop, *WAITING, *rest).findings[0]

    assert (found.code, found.culprits.ranks) == ("H116", [])
    assert len(found.because) > len(rest)


@pytest.mark.parametrize(
    "loop",
    [
        "$ for p in $(pgrep -f postgres); do ps -o pid,stat,wchan:24 -p $p --no-headers; done",
        "$ ps -o lstart,pid,stat --no-headers -p $(pgrep -f train.py)",
        "$ ps -o pid,time --no-headers -p $(pgrep -f train.py)",
        "$ echo --no-headers of ps",
    ],
)
def test_rows_of_other_programs_and_columns_tell_nothing(tmp_path: Path, loop: str) -> None:
    assert not say(tmp_path, loop, *WAITING).findings
