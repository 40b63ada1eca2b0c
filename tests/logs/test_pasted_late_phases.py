"""A rank that came too late to an op, and says how long what it did before took."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say
from tests.logs.test_who import WAIT

BARRIER = "[rank0] RuntimeError: [Rank 0]: Ranks 2 failed to pass monitoredBarrier in 45000 ms"
GLOO = (
    "[rank0] RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:84] "
    "Timed out waiting 45000ms for recv operation to complete"
)
DONE = [
    "[rank2] epoch 7 eval done: 9001 samples, {0}s, mAP 0.4",
    "[rank2] validation finished in {0} s",
    "rank 2: saving checkpoint took {0} seconds",
    "[1,2]<stdout>:tokenization of shard 2 took {0}s",
]


@pytest.mark.parametrize("failed", [BARRIER, GLOO], ids=["barrier", "gloo"])
@pytest.mark.parametrize("done", DONE)
def test_limit_that_a_phase_exceeds_is_too_short(tmp_path: Path, done: str, failed: str) -> None:
    finding = first_of(say(tmp_path, failed, done.format(58.2)))

    assert (finding.code, finding.confidence, finding.culprits.ranks) == ("H125", "likely", [])
    assert finding.details["late_ranks"] == [2]


@pytest.mark.parametrize(
    "lines",
    [
        [BARRIER, DONE[0].format(12.5)],
        [DONE[0].format(58.2), BARRIER],
        [BARRIER, DONE[0].format(58.2).replace("rank2", "rank0")],
        [BARRIER, DONE[0].format(58.2).replace("rank2", "rank1")],
        [BARRIER, "[rank2] epoch 7 done: 9001 steps, 58.2s"],
        [BARRIER, "[rank2] eval: 9001 samples, 58.2 samples/s"],
        [BARRIER, "eval done: 9001 samples, 58.2s"],
        [WAIT.format(0), DONE[0].format(58.2)],
    ],
    ids=["short", "before", "waits", "another", "epoch", "rate", "nobody", "half an hour"],
)
def test_other_times_tell_nothing_of_the_limit(tmp_path: Path, lines: list[str]) -> None:
    assert first_of(say(tmp_path, *lines)).code != "H125"
