"""What EFA tells of a peer that does not answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Confidence

HEAD = "ip-10-1-4-9:310:339 [3] "
NEW = (
    "{head}nccl_net_ofi_rdma.cpp:1012 NCCL WARN NET/OFI Request 0x7f6c completed with error. "
    "RC: 113. Error: {code} ({words}) My EFA addr: fi_addr_efa://[fe80::1]:0:15 My host id: i-0a94 "
    "Peer EFA addr: fi_addr_efa://[fe80::2]:0:68 Peer host id: i-07f8). Completed length: 0"
)
OLD = (
    "{head}process_cq:2 NCCL WARN NET/OFI Request 0x7f completed with error. RC: 113. "
    "Error: {code} ({words})"
)
NEVER = "Unreachable remote (never received a response)"
BEFORE = "Unresponsive remote (was previously responsive)"


@pytest.mark.parametrize("form", [NEW, OLD])
@pytest.mark.parametrize(
    ("words", "confidence"), [(NEVER, Confidence.LIKELY), (BEFORE, Confidence.POSSIBLE)]
)
def test_peer_that_did_not_answer_is_a_transfer_that_stalled(
    tmp_path: Path, words: str, confidence: Confidence, form: str
) -> None:
    finding = first_of(say(tmp_path, form.format(head=HEAD, code=4, words=words)))

    assert (finding.code, finding.confidence) == ("H122", confidence)
    assert any("security group" in one for one in finding.remedies) == (words == NEVER)


def test_rank_that_failed_before_explains_that_it_does_not_answer(tmp_path: Path) -> None:
    raised = [
        "[rank5]: Traceback (most recent call last):",
        '[rank5]:   File "/w/train.py", line 9, in <module>',
        "[rank5]: KeyError: 'lr'",
    ]
    finding = first_of(say(tmp_path, *raised, NEW.format(head=HEAD, code=4, words=NEVER)))

    assert (finding.code, finding.culprits.ranks) == ("C204", [5])


def test_other_errors_of_a_transfer_only_lost_a_peer(tmp_path: Path) -> None:
    line = NEW.format(head=HEAD, code=9, words="Local error: aborted")

    assert first_of(say(tmp_path, line)).code == "C209"
