"""Lists of hosts with their ranks, beside launchers that tell only the host of what ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

ENDED = (
    "{0}: [2026-01-20 08:12:33,410] [ERROR] [launch.py:320:sigkill_handler] "
    "['/opt/e/bin/python', '-u', 'run.py', '--local_rank=0'] exits with return code = {1}"
)
LISTS = [
    "gn1 -> rank 0, gn2 -> rank 1, gn3 -> rank 2",
    "hosts: gn1=rank 0; gn2=rank 1; gn3=rank 2",
    "gn1: rank 0   gn2: rank 1   gn3: rank 2",
]
TRAP = (
    "Jan 20 08:12:33 gn3 kernel: [81120.5] traps: python[6120] trap invalid opcode ip:7f2c sp:7ffe "
    "error:0 in x.so[7f2c+1000]"
)
SSH = "pdsh@gn1: {0}: ssh exited with exit code {1}"


@pytest.mark.parametrize("listed", LISTS)
def test_end_on_a_host_with_one_rank_is_that_of_the_rank(tmp_path: Path, listed: str) -> None:
    lines = [ENDED.format("gn3", -4), SSH.format("gn3", 252), TRAP, listed]
    finding = first_of(say(tmp_path, *lines))

    assert (finding.name, finding.culprits.ranks) == ("native-crash", [2])


@pytest.mark.parametrize(
    "listed",
    [
        "gn1 -> ranks 0-3, gn2 -> ranks 4-7, gn3 -> ranks 8-11",
        "gn3 -> rank 2",
        "gn1 -> rank 0, gn2 -> rank 1",
        "gpu0 -> rank 0, gpu3 -> rank 2",
        "gn1 -> rank 2, gn3 -> rank 2",
    ],
)
def test_lists_that_do_not_tell_the_rank_of_the_host(tmp_path: Path, listed: str) -> None:
    report = say(tmp_path, ENDED.format("gn3", -4), TRAP, listed)

    assert not {rank for one in report.findings for rank in one.culprits.ranks}


@pytest.mark.parametrize("code", [1, 250, 252])
def test_code_of_a_program_that_ended_is_no_launch_that_failed(tmp_path: Path, code: int) -> None:
    report = say(tmp_path, "starting", SSH.format("gn3", code))

    assert "config-error" not in {one.name for one in report.findings}


@pytest.mark.parametrize("code", [126, 127, 255])
def test_code_of_a_shell_is_a_launch_that_failed(tmp_path: Path, code: int) -> None:
    finding = first_of(say(tmp_path, "starting", SSH.format("gn3", code)))

    assert (finding.name, finding.culprits.nodes) == ("config-error", ["gn3"])
