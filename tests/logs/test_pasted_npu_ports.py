"""Ports that HCCL cannot listen on, as another job of the host has them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

HEAD = "[ERROR] HCCL(7710,python):2025-02-11-03:20:09.771.{0:03} [hccl_socket.cc:87] [7710]"
LISTEN = (
    HEAD.format(12) + "[HcclSocket][Listen] socket type[1], listen on ip[10.3.0.6] and "
    "specific port[{0}] fail. Please check the port status and whether the port is being used"
)
CODE = (
    "[rank{0}]: RuntimeError: createHCCLComm:torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:1990 "
    "HCCL function error: HcclGetRootInfo(&hcclID), error code is 19"
)
BOUND = (
    "EI0019: [PID: 7710] 2025-02-11-03:20:09.771.201 The IP address [10.3.0.6] and port "
    "[60000] have been bound already."
)
BIND = (
    "EJ0003: 2025-02-11-03:20:09.771.201 Failed to bind the IP port. Reason: The IP address and "
    "port have been bound already."
)


@pytest.mark.parametrize(
    ("text", "port"),
    [(LISTEN.format(16666), "16666"), (LISTEN.format(61000), "61000"), (BOUND, "60000")],
)
@pytest.mark.parametrize("prefix", ["", "[rank2]: ", "> "])
def test_port_of_another_job_is_the_cause(
    tmp_path: Path, text: str, port: str, prefix: str
) -> None:
    report = say(tmp_path, "cards 4-7 are ours", prefix + text, CODE.format(2))
    finding = first_of(report)

    assert (finding.code, finding.culprits.ranks) == ("C210", [])
    assert port in finding.summary


def test_port_without_a_number_is_the_cause(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, BIND, CODE.format(0)))

    assert finding.code == "C210"
    assert "HCCL" in finding.summary


def test_port_that_was_free_explains_nothing(tmp_path: Path) -> None:
    free = LISTEN.format(16666).replace(" fail. Please", " success. Please")
    report = say(tmp_path, free, CODE.format(1))

    assert all(one.code != "C210" for one in report.findings)
