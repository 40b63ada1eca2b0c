"""A rank that takes another group for its call, and meets a peer there that is well."""

from __future__ import annotations

from typing import Any

from tests.diagnose.op_scenes import Logged
from tests.diagnose.scenes import MODULE, WAITING, at

from whystuck.evidence.finding import Finding

SIZES = "[enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 64 vs 16"


def _play(odd: int | None) -> Finding:
    """Let four ranks reduce in a mesh of two by two, one of them in the wrong dimension at last."""
    logged = Logged(4, capacity=256)
    tp, dp = {}, {}
    for rank, ring in logged.rings.items():
        tp[rank] = ring.group("1", [rank // 2 * 2, rank // 2 * 2 + 1])
        dp[rank] = ring.group("2" if rank % 2 else "3", [rank % 2, rank % 2 + 2])
    for _ in range(6):
        for rank, ring in logged.rings.items():
            ring.op(group=tp[rank], line=11)
            ring.op(group=dp[rank], line=17, **_of(8))
            ring.op(group=dp[rank], line=18, **_of(8))
    for rank, ring in logged.rings.items():
        if rank == odd:
            ring.op(group=dp[rank], line=11, takes_ns=None)
        elif rank == 2:
            ring.op(group=tp[rank], line=11, takes_ns=None)
        else:
            ring.op(group=tp[rank], line=11)
            ring.op(group=dp[rank], line=17, takes_ns=None, **_of(8))
    job = logged.job.of_kind("exit")
    for rank in (0, 1, 2):
        job.stands(rank, (*WAITING, at("/job/train.py", 11 if rank == 2 else 17), MODULE))
    job.raises(3, "RuntimeError", SIZES, (*WAITING, at("/job/train.py", 11), MODULE))
    job.ends(3, code=1)
    return logged.report().findings[0]


def _of(count: int) -> dict[str, Any]:
    return {"in": [[count]], "out": [[count]], "in_bytes": 4 * count, "out_bytes": 4 * count}


def test_rank_in_the_wrong_group_is_named_and_not_the_peer_it_meets() -> None:
    finding = _play(odd=3)

    assert (finding.code, finding.culprits.ranks) == ("H102", [3])
    assert (finding.confidence.value, finding.where[0].line) == ("likely", 11)
