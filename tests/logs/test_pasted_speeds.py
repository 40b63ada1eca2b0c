"""What ethtool prints on several hosts: which of them is slower than the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say


def ask(host: str, mbit: int, form: str = "{0}$ ethtool eno1 | egrep 'Speed|Duplex'") -> list[str]:
    return [form.format(host), f"\tSpeed: {mbit}Mb/s", "\tDuplex: Full", "\tLink detected: yes"]


FORMS = [
    "{0}$ ethtool eno1 | egrep 'Speed|Duplex'",
    "[root@{0} ~]# ethtool eno1",
    "$ ssh {0} ethtool eno1",
]


@pytest.mark.parametrize("form", FORMS)
def test_host_whose_interface_agreed_on_less_is_named(tmp_path: Path, form: str) -> None:
    told = [
        *ask("worker-1", 10000, form),
        *ask("worker-2", 10000, form),
        *ask("worker-3", 1000, form),
    ]
    finding = first_of(say(tmp_path, "[r0] step 51 fwd 0.2 sync 6.7", *told))

    assert (finding.code, finding.culprits.nodes) == ("S303", ["worker-3"])
    assert finding.culprits.ranks == []
    assert finding.details["interface"] == "eno1"


@pytest.mark.parametrize(
    "told",
    [
        ask("worker-1", 10000),
        [*ask("worker-1", 10000), *ask("worker-2", 10000)],
        [*ask("worker-1", 1000), *ask("worker-2", 1000), *ask("worker-3", 10000)],
        ["INFO Speed: 1000Mb/s", "INFO Speed: 10000Mb/s"],
    ],
    ids=["one", "alike", "most are slow", "of nobody"],
)
def test_speeds_that_show_no_odd_host_are_nothing(tmp_path: Path, told: list[str]) -> None:
    assert all(one.code != "S303" for one in say(tmp_path, *told).findings)
