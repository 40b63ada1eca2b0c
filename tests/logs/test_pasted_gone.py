"""Processes that NCCL RAS calls dead, and looks at their hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

RAS = """\
$ ncclras -v
Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         8        16        16   RUNNING  INCOMPLETE

Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 77120 on node gn-07 managing GPU 3

#0-0 (a07f55aa01c4e8f2) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 11
""".splitlines()
LOOKS = [
    [
        "$ ssh gn-07 'ls -d /proc/77120'",
        "ls: cannot access '/proc/77120': No such file or directory",
    ],
    ["[me@gn-07 ~]$ cat /proc/77120/status", "cat: /proc/77120/status: No such file or directory"],
    ["[me@gn-07 ~]$ kill -0 77120", "-bash: kill: (77120) - No such process"],
    ["$ kill -0 77120", "kill: 77120: No such process"],
]


@pytest.mark.parametrize("look", LOOKS)
def test_rank_whose_process_is_gone_has_ended(tmp_path: Path, look: list[str]) -> None:
    report = say(tmp_path, *RAS, *look)
    finding = first_of(report)

    assert (finding.code, finding.culprits.ranks) == ("H103", [11])
    assert finding.confidence == "likely"
    assert all(one.code != "H101" for one in report.findings)


@pytest.mark.parametrize(
    "look",
    [
        pytest.param([], id="no look"),
        pytest.param([LOOKS[1][0], "State:\tS (sleeping)"], id="it is there"),
        pytest.param([LOOKS[1][0], "cat: /proc/77120/stack: Permission denied"], id="refused"),
        pytest.param([line.replace("77120", "99") for line in LOOKS[2]], id="other process"),
        pytest.param([line.replace("gn-07", "gn-08") for line in LOOKS[0]], id="other host"),
    ],
)
def test_rank_that_may_be_there_may_hang(tmp_path: Path, look: list[str]) -> None:
    finding = first_of(say(tmp_path, *RAS, *look))

    assert (finding.code, finding.confidence) == ("H101", "possible")


def test_look_without_an_answer_of_ras_tells_nothing(tmp_path: Path) -> None:
    assert say(tmp_path, *LOOKS[0], "step 4 loss 2.0").findings == []
