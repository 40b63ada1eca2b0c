"""Seeded jobs whose hosts run ahead of their devices: nobody innocent is named for sure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.diagnose.context.test_device_waits import ASLEEP, HOSTS
from tests.diagnose.queue_cases import (
    FAULTS,
    RIGHT,
    WRONG,
    WRONG_CODE,
    judge,
    make_case,
    try_case,
)
from tests.diagnose.scenes import Job

from whystuck.diagnose.engine import diagnose
from whystuck.evidence.finding import Confidence, Verdict
from whystuck.pipeline import diagnose_paths, read_evidence

_CASES = 5
_GO_ON = {"slow device", "slow host", "moving", "healthy"}
# Of the cases of these kinds, so many must name the right rank, or rightly none.
_LEAST_RIGHT = {
    "skip": 3,
    "extra": 3,
    "wrong op": 3,
    "wrong size": 3,
    "wrong type": 3,
    "host stops": 5,
    "device stops": 4,
    "device hangs": 4,
    "network": 5,
    "order": 3,
    "half missing": 2,
    "healthy": 5,
}


@pytest.mark.parametrize("kind", FAULTS)
def test_no_innocent_rank_is_named_for_certain_or_likely(kind: str, tmp_path: Path) -> None:
    outcomes = []
    for seed in range(_CASES):
        folder = tmp_path / str(seed)
        folder.mkdir()
        outcomes.append(try_case(kind, seed, folder)[0])

    assert WRONG not in outcomes
    right = sum(outcome in {RIGHT, WRONG_CODE} for outcome in outcomes)
    assert right >= _LEAST_RIGHT.get(kind, 0), outcomes


def test_dumps_of_a_moving_job_are_never_sure(tmp_path: Path) -> None:
    for seed in range(_CASES):
        case = make_case("moving", seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        case.job.write(folder, case.when_ns)
        report = diagnose_paths([folder])

        assert {item.confidence for item in report.findings} <= {Confidence.POSSIBLE}


def test_a_judge_that_cannot_fail_would_be_no_judge(tmp_path: Path) -> None:
    skipped, healthy = make_case("skip", 1), make_case("healthy", 1)
    skipped.job.write(tmp_path)
    report = diagnose_paths([tmp_path])

    assert judge(healthy, report) != RIGHT


@pytest.mark.parametrize("kind", sorted(set(FAULTS) - _GO_ON))
def test_where_hosts_wait_for_their_devices_makes_no_difference(kind: str, tmp_path: Path) -> None:
    hosts = list(HOSTS.values())
    for seed in range(3):
        case = make_case(kind, seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        evidence = read_evidence(case.job.write(folder))
        seen = Job(world=len(case.job.programs)).of_kind("files")
        for rank in case.job.programs:
            is_asleep = kind == "host stops" and rank in case.ranks
            frames = ASLEEP if is_asleep else hosts[(seed + rank) % len(hosts)]
            seen.stands(rank, frames, cpu_share=0.0 if is_asleep else 1.0)
        more = {"stacks": tuple(seen.stacks), "processes": tuple(seen.processes)}
        report = diagnose(replace(evidence, **more))  # type: ignore[arg-type]

        assert judge(case, report) == judge(case, diagnose(evidence))
        assert report.verdict is Verdict.STUCK
