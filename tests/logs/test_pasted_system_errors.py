"""NCCL's general word for a call that failed, which is no word of a peer."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

GENERAL = [
    (
        "{0}RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1191, "
        "unhandled system error, NCCL version 2.19.3"
    ),
    (
        "{0}ncclSystemError: System call (e.g. socket, malloc) or external library call failed or "
        "device error. "
    ),
    "{0}Last error:",
]
REASONS = [
    "{0}socketProgressOpt: Call to recv from 10.0.0.4<4410> failed : Connection reset by peer",
    "n1:44:71 [0] NCCL WARN socketProgress: Connection closed by remote peer n2<33120>",
]


@pytest.mark.parametrize("prefix", ["", "[rank1]: "])
@pytest.mark.parametrize("lines", [GENERAL, GENERAL[:2], GENERAL[:1]])
def test_general_error_alone_leaves_the_cause_open(
    tmp_path: Path, lines: list[str], prefix: str
) -> None:
    report = say(tmp_path, *(line.format(prefix) for line in lines))
    finding = first_of(report)

    assert (finding.name, finding.confidence) == ("peer-lost", "possible")
    assert "lost the connection" not in finding.summary
    assert report.verdict == "inconclusive"


@pytest.mark.parametrize("reason", REASONS)
def test_error_with_a_word_of_a_peer_is_a_lost_peer(tmp_path: Path, reason: str) -> None:
    lines = [*(line.format("") for line in GENERAL), reason.format("")]
    finding = first_of(say(tmp_path, *lines))

    assert (finding.name, finding.confidence) == ("peer-lost", "likely")
