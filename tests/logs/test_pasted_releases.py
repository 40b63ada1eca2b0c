"""Releases of NCCL that differ, where the messages by which it finds its peers do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

TOLD = {
    "NCCL": (
        "n1:80:80 [0] NCCL INFO NCCL version 2.19.3+cuda12.1",
        "n2:91:91 [0] NCCL INFO NCCL version 2.22.3+cuda12.5",
    ),
    "RCCL": ("RCCL version 2.18.6+hip6.0 HEAD:7e4eb15", "RCCL version : 2.22.3-HEAD:1a2b3c4"),
    "torch": (
        "torch.cuda.nccl.version() -> (2, 19, 3)",
        "host b: torch.cuda.nccl.version() (2, 22, 3)",
    ),
}
CUT = "n2:91:130 [0] {file} NCCL WARN Message truncated : received 72 bytes instead of 64"
CUTS = {
    "received": CUT,
    "receiving": "n2:91:130 [0] {file} NCCL WARN socketProgress: Message truncated : receiving 148 "
    "bytes instead of 120. If you believe your socket network is in healthy state",
}
LOST = (
    "[rank1]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/"
    "ProcessGroupNCCL.cpp:2251, {why}"
)
WHY = {
    "internal": "internal error - please report this issue to the NCCL developers",
    "remote": "remote process exited or there was a network error",
}


@pytest.mark.parametrize("told", TOLD)
@pytest.mark.parametrize("why", WHY)
@pytest.mark.parametrize("file", ["bootstrap.cc:130", "misc/socket.cc:512"])
@pytest.mark.parametrize("cut", CUTS)
def test_releases_that_differ_are_why_peers_were_lost(
    tmp_path: Path, told: str, why: str, file: str, cut: str
) -> None:
    lines = *TOLD[told], CUTS[cut].format(file=file), LOST.format(why=WHY[why])
    report = say(tmp_path, *lines)
    finding = first_of(report)

    assert (finding.code, finding.severity.value, finding.culprits.ranks) == ("N417", "error", [])
    assert "C209" not in {one.code for one in report.findings}


def test_one_release_leaves_open_who_sent_it(tmp_path: Path) -> None:
    report = say(
        tmp_path, TOLD["NCCL"][0], CUT.format(file="b.cc:1"), LOST.format(why=WHY["remote"])
    )
    told = {one.code: one.confidence for one in report.findings}

    assert (told["N417"], "C209" in told) == ("possible", True)


def test_releases_that_differ_do_not_explain_a_later_loss(tmp_path: Path) -> None:
    report = say(tmp_path, *TOLD["NCCL"], LOST.format(why=WHY["remote"]))

    assert first_of(report).code == "C209"


def test_sizes_of_a_transfer_are_no_releases(tmp_path: Path) -> None:
    line = (
        "c2:500:610 [0] transport/net_socket.cc:521 NCCL WARN NET/Socket : peer 10.0.0.5<41110> "
        "message truncated : receiving 4194304 bytes instead of 1048576."
    )
    assert first_of(say(tmp_path, *TOLD["NCCL"], line)).code != "N417"


@pytest.mark.parametrize(
    "line", ["INFO message truncated: 4096 characters of 9000", "NCCL INFO version checked"]
)
def test_other_words_are_no_releases(tmp_path: Path, line: str) -> None:
    assert "N417" not in {one.code for one in say(tmp_path, line, TOLD["NCCL"][0]).findings}
