"""A rendezvous that failed, told from what the processes were started with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.diagnose.logs.test_crashed import ended
from tests.diagnose.scenes import MODULE, at

from whystuck.diagnose.engine import diagnose
from whystuck.diagnose.logs.cases.network.rendezvous_lines import select_claims
from whystuck.evidence.finding import Confidence, Finding
from whystuck.evidence.nodes.resources import RankClaim

STORE_ERROR = "torch.distributed.DistStoreError"


def _claim(rank: int, pid: int, **changes: str) -> RankClaim:
    variables = {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "RANK": str(rank),
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
    }
    environment = dict(sorted((variables | changes).items()))
    return RankClaim(
        rank=rank,
        pid=pid,
        world_size=4,
        environment=environment,
        artifact="n0/ranks.json",
        row=pid,
    )


def _find(claims: list[RankClaim], waited: str = "3") -> Finding:
    job = ended()
    for rank in sorted({claim.rank for claim in claims}):
        message = f"wait timeout after 15000ms, keys: /default_pg/0//cpu//0/{waited}"
        job.raises(rank, STORE_ERROR, message, [at("/job/train.py", 3), MODULE]).ends(rank, code=1)
    return diagnose(replace(job.evidence(), claims=tuple(claims))).findings[0]


def _details(finding: Finding) -> dict[str, Any]:
    return dict(finding.details)


def test_two_processes_with_one_rank() -> None:
    finding = _find([_claim(0, 10), _claim(1, 11), _claim(2, 12), _claim(2, 13)])
    assert (finding.code, finding.culprits.ranks) == ("H121", [2])
    assert _details(finding)["kind"] == "duplicate-rank"
    assert _details(finding)["missing"] == [3]
    cited = {cite.row for cite in finding.because if cite.artifact == "n0/ranks.json"}
    assert cited == {12, 13}


def test_one_process_with_another_world_size() -> None:
    claims = [_claim(rank, 10 + rank) for rank in range(3)] + [_claim(3, 13, WORLD_SIZE="5")]
    finding = _find(claims, waited="4")
    assert (finding.code, finding.culprits.ranks) == ("H121", [3])
    assert _details(finding)["world_sizes"] == ["4", "5"]
    assert finding.confidence is Confidence.CERTAIN


def test_one_process_with_another_address() -> None:
    claims = [_claim(0, 10), _claim(1, 11, MASTER_ADDR="10.9.9.9"), _claim(2, 12), _claim(3, 13)]
    finding = _find(claims, waited="1")
    assert (finding.code, finding.culprits.ranks) == ("H121", [1])
    assert _details(finding)["kind"] == "endpoint"


def test_rank_that_was_not_started() -> None:
    finding = _find([_claim(0, 10), _claim(1, 11), _claim(2, 12)])
    assert (finding.code, finding.culprits.ranks) == ("H121", [3])
    assert _details(finding)["kind"] == "missing-rank"


def test_first_rank_that_was_not_started_is_missing_rather_than_unreachable() -> None:
    job = ended()
    claims = [_claim(rank, 10 + rank, MASTER_ADDR="127.0.0.1") for rank in (1, 2, 3)]
    refused = (
        "The client socket has timed out after 15000ms while trying to connect to "
        "(127.0.0.1, 29500)."
    )
    for rank in (1, 2, 3):
        kind = "torch.distributed.DistNetworkError"
        job.raises(rank, kind, refused, [at("/job/train.py", 3), MODULE]).ends(rank, code=1)
    finding = diagnose(replace(job.evidence(), claims=tuple(claims))).findings[0]
    assert (finding.code, finding.culprits.ranks) == ("H121", [0])
    assert _details(finding)["kind"] == "missing-rank"


def test_port_that_a_twin_has_is_not_that_of_a_stranger() -> None:
    job = ended()
    claims = [_claim(0, 10), _claim(0, 11), _claim(2, 12), _claim(3, 13)]
    in_use = (
        "The server socket has failed to listen on any local network address. port: 29500, "
        "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
    )
    place = [at("/job/train.py", 3), MODULE]
    job.raises(0, "torch.distributed.DistNetworkError", in_use, place).ends(0, code=1)
    for rank in (2, 3):
        waits = "wait timeout after 15000ms, keys: /default_pg/0//cpu//0/1"
        job.raises(rank, STORE_ERROR, waits, place).ends(rank, code=1)
    findings = diagnose(replace(job.evidence(), claims=tuple(claims))).findings
    assert [(one.code, one.culprits.ranks) for one in findings] == [("H121", [0])]
    assert _details(findings[0])["missing"] == [1]


def test_program_that_starts_a_rank_is_no_twin() -> None:
    wrapper, rank = _claim(1, 11), replace(_claim(1, 21), parent_pid=11)
    assert select_claims([wrapper, rank]) == [rank]
    member = replace(_claim(1, 31), is_member=True)
    assert select_claims([_claim(1, 11), member]) == [member]


def test_attempts_before_the_last_are_no_twins() -> None:
    first, second = _claim(1, 11), replace(_claim(1, 12), attempt=1)
    assert select_claims([first, second]) == [second]
    assert select_claims([]) == []
