"""Sends that did harm at the end alone: who broke its habit far before it is named."""

from __future__ import annotations

from collections.abc import Sequence

from tests.diagnose.op_scenes import Logged
from tests.diagnose.scenes import MODULE, at

from whystuck.evidence.finding import Finding

CUT = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4000"
SITE = (at("/job/train.py", 10), MODULE)


def _send(odd: Sequence[int] = (1, 2), steps: int = 20, at_step: int = 8) -> Logged:
    """Let rank 0 send to both others in each step, and as given in one of them."""
    logged = Logged(3, capacity=256)
    for step in range(steps):
        for peer in odd if step == at_step else (1, 2):
            logged.op([0], "send", peer=peer, line=10)
    return logged


def _end(logged: Logged, received: int) -> Finding:
    for _ in range(received):
        logged.op([1], "recv", peer=0, line=13)
    logged.job.of_kind("exit").ends(1, code=0)
    logged.job.raises(0, "RuntimeError", CUT, SITE).ends(0, code=1)
    logged.job.raises(2, "RuntimeError", CUT, SITE).ends(2, code=1)
    return logged.report().findings[0]


def test_send_to_the_wrong_peer_names_its_sender() -> None:
    logged = _send(odd=(1, 1))
    for _ in range(19):
        logged.op([2], "recv", peer=0, line=13)
    logged.waits([2], "recv", peer=0, line=13).waits([0], "send", peer=1, line=10)
    finding = _end(logged, 21)

    assert (finding.code, finding.culprits.ranks) == ("H110", [0])
    assert (finding.confidence.value, finding.details["departure"]) == ("likely", "peer")
    assert finding.where[0].line == 10


def test_send_too_many_names_its_sender() -> None:
    logged = _send(odd=(1, 1, 2))
    for _ in range(20):
        logged.op([2], "recv", peer=0, line=13)
    logged.waits([2], "recv", peer=0, line=13).waits([0], "send", peer=1, line=10)
    finding = _end(logged, 21)

    assert (finding.code, finding.culprits.ranks) == ("H110", [0])
    assert finding.details["departure"] == "too many"


def test_rank_that_ended_a_step_early_has_left() -> None:
    logged = _send()
    for _ in range(20):
        logged.op([2], "recv", peer=0, line=13)
    logged.waits([2], "recv", peer=0, line=13).waits([0], "send", peer=1, line=10)
    finding = _end(logged, 20)

    assert (finding.code, finding.culprits.ranks) == ("H103", [1])
    assert finding.confidence.value == "likely"
