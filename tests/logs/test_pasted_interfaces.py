"""Gloo finds no address of its interface, and a tool shows on which host that is down."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

GLOO = (
    "RuntimeError: [enforce fail at {1}/third_party/gloo/gloo/transport/tcp/device.cc:{2}] "
    "ifa != nullptr. Unable to find address for: {0}"
)
FORMS = tuple(GLOO.format("{0}", *where) for where in (("..", 84), ("/pytorch", 91)))
PDSH = (
    "$ pdsh -w gx-3,gx-4 ip -br addr show ib1",
    "gx-3: ib1        UP             10.9.0.3/16 ",
    "gx-4: ib1        DOWN           ",
)
SSH = (
    "$ ssh gx-3 ip -br a",
    "lo               UNKNOWN        127.0.0.1/8 ::1/128",
    "ib1              UP             10.9.0.3/16",
    "$ ssh gx-4 ip -br a",
    "lo               UNKNOWN        127.0.0.1/8 ::1/128",
    "ib1              DOWN",
)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shown", [PDSH, SSH], ids=["pdsh", "ssh"])
def test_host_whose_interface_is_down_is_named(
    tmp_path: Path, form: str, shown: tuple[str, ...]
) -> None:
    told = form.format("ib1")
    end = "srun: error: gx-4: tasks 4-7: Exited with exit code 1"
    found = first_of(say(tmp_path, f" 4: {told}", f" 7: {told}", end, *shown))

    assert (found.code, found.culprits.nodes) == ("N408", ["gx-4"])
    assert "ib1" in found.summary


@pytest.mark.parametrize(
    "shown",
    [
        (),
        # another interface is down
        (PDSH[0], *(row.replace("ib1", "eno2") for row in PDSH[1:])),
        # it has no carrier, and an address
        (*PDSH[:2], "gx-4: ib1        DOWN           10.9.0.4/16"),
        # no such tool was asked
        ("my notes", *PDSH[1:]),
    ],
    ids=["none", "other", "addressed", "notes"],
)
def test_where_no_host_shows_it_to_be_down_it_is_a_setting(
    tmp_path: Path, shown: tuple[str, ...]
) -> None:
    found = first_of(say(tmp_path, f"[rank4]: {FORMS[0].format('ib1')}", *shown))

    assert found.code == "C210"
    assert not found.culprits.ranks


def test_interface_that_nothing_asks_for_may_be_down(tmp_path: Path) -> None:
    assert not any(one.code == "N408" for one in say(tmp_path, *PDSH).findings)
