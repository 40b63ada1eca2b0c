"""Pasted logs of a job that is slower on several hosts than on one, and that sends over sockets."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

OFF = "gx1:310:310 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1."
ABSENT = "gx1:310:310 [0] NCCL INFO NET/IB : No device found."
SOCKET = [
    "gx1:310:310 [0] NCCL INFO NET/Socket : Using [0]eno2:10.2.0.7<0>",
    "gx1:310:310 [0] NCCL INFO Using network Socket",
]
IB = ["gx1:310:310 [0] NCCL INFO Using network IB"]
STEP = "  2%|1         | 14/700 [12:50<10:28:02, 55.02s/it]"
COMPARED = [
    "one node alone does 3.9 s/it with the same batch",
    "a single host by itself: 3.9 s/step",
    "two nodes: 55 s/it, one node: 3.9 s/it",
    "1 node gives 8200 tok/s, 2 nodes give 1100 tok/s together",
]


@pytest.mark.parametrize("compared", COMPARED)
@pytest.mark.parametrize("why", [OFF, ABSENT])
def test_job_on_several_hosts_that_sends_over_sockets(
    tmp_path: Path, compared: str, why: str
) -> None:
    found = first_of(say(tmp_path, why, *SOCKET, STEP, compared))

    assert (found.code, found.details["kind"]) == ("N427", "socket")
    assert found.culprits.ranks == []


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([OFF, *SOCKET, STEP], id="nobody compares"),
        pytest.param([*SOCKET, STEP, COMPARED[0]], id="nothing faster is known"),
        pytest.param([OFF.replace("to 1", "to 0"), *SOCKET, STEP, COMPARED[0]], id="not off"),
        pytest.param([OFF, *IB, STEP, COMPARED[0]], id="another network"),
        *(
            pytest.param([OFF, *SOCKET, STEP, text], id=text)
            for text in (
                "a single node with 8 cards, 3.9 s/it",
                "one node, 55 s/it",
                "one node is alone in its rack",
                "2 nodes would be nice, 55 s/it is slow",
            )
        ),
    ],
)
def test_sockets_of_one_host_or_without_a_choice_tell_nothing(
    tmp_path: Path, lines: list[str]
) -> None:
    assert not any(one.code == "N427" for one in say(tmp_path, *lines).findings)


def test_rank_that_failed_by_itself_goes_before(tmp_path: Path) -> None:
    raised = [
        "[rank1]: Traceback (most recent call last):",
        '[rank1]:   File "/x/train.py", line 9, in <module>',
        "[rank1]: ValueError: bad sample",
    ]
    found = first_of(say(tmp_path, OFF, *SOCKET, STEP, COMPARED[0], *raised))

    assert (found.code[0], found.culprits.ranks) == ("C", [1])
