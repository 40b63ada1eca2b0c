"""Which child of Lightning's main process ended, by the number before its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

END = (
    "Child process with PID {1} terminated with code {2}. Forcefully terminating all other "
    "processes to avoid zombies"
)
FATAL = [
    "Fatal Python error: {0}",
    "",
    "Current thread 0x00007f00c0de1700 (most recent call first):",
    '  File "/opt/py/lib/python3.11/site-packages/av/container.py", line 40 in decode',
    '  File "/app/clips.py", line 77 in load',
    "",
    "Extension modules: numpy.core._multiarray_umath, av._core (total: 12)",
]


def crash(reason: str, end: str) -> list[str]:
    return [FATAL[0].format(reason), *FATAL[1:], end]


@pytest.mark.parametrize("rank", [1, 7])
@pytest.mark.parametrize("prefix", ["[rank: {0}] ", "2025-05-06 10:00:00,123 [rank: {0}] "])
@pytest.mark.parametrize(("code", "reason"), [(-11, "Segmentation fault"), (-7, "Bus error")])
def test_child_that_crashed_is_the_rank(
    tmp_path: Path, rank: int, prefix: str, code: int, reason: str
) -> None:
    end = (prefix + END).format(rank, 4100 + rank, code)
    finding = first_of(say(tmp_path, *crash(reason, end)))

    assert (finding.code, finding.culprits.ranks) == ("C203", [rank])
    assert (finding.where[0].rank, finding.where[0].line) == (rank, 77)


def test_end_without_a_number_is_of_nobody(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, *crash("Segmentation fault", END.format(0, 4107, -11))))

    assert (finding.code, finding.culprits.ranks) == ("C203", [])


def test_child_of_one_of_several_hosts_is_of_no_rank(tmp_path: Path) -> None:
    end = ("[rank: 3] " + END).format(3, 4107, -11)
    lines = [
        "num_nodes=4, world size 32, first failure on node 2",
        *crash("Segmentation fault", end),
    ]
    others = [f"[rank{rank}]: step 40 loss 1.2" for rank in (8, 17, 30)]
    finding = first_of(say(tmp_path, *others, *lines))

    assert (finding.code, finding.culprits.ranks) == ("C203", [])


def test_child_that_ended_for_another_is_not_blamed(tmp_path: Path) -> None:
    lines = [
        "[rank5]: Traceback (most recent call last):",
        '[rank5]:   File "/app/fit.py", line 9, in <module>',
        "[rank5]: ValueError: no such class",
        ("[rank: 2] " + END).format(2, 4102, 1),
    ]
    finding = first_of(say(tmp_path, *lines))

    assert finding.culprits.ranks == [5]
