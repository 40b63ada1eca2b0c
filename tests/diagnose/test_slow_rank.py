"""Ranks that come last, on hosts whose clocks differ."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.diagnose.dumps import GLOO, NCCL, Dumps
from tests.diagnose.scenes import MODULE, at

from whystuck.evidence.finding import Confidence, Report, Severity, Verdict

LOSS = (at("/job/train.py", 22), MODULE)
METRIC = (at("/job/train.py", 23), MODULE)
MS = 1_000_000
STEP_NS = 200 * MS
START_NS = 1_790_000_000_000_000_000

Work = Callable[[int, int], int]


def train(
    world: int,
    extra_ns: Work,
    *,
    offsets_ns: Sequence[int] = (),
    ops: int = 2,
    steps: int = 30,
    form: str = GLOO,
    has_starts: bool = False,
    sites: Callable[[int], Sequence[object]] = lambda _: LOSS,
) -> Dumps:
    """Let ranks compute, each with its own extra work, and meet in ``ops`` collectives a step.

    ``extra_ns`` gives the extra work of a rank in a step.
    """
    dumps = Dumps(world, form=form)
    offsets = list(offsets_ns) or [0] * world
    now_ns = START_NS
    for step in range(steps):
        ready_ns = {rank: now_ns + STEP_NS + extra_ns(rank, step) for rank in range(world)}
        for index in range(ops):
            over_ns = max(ready_ns.values()) + 500_000
            for rank in range(world):
                dumps.op(
                    [rank],
                    "all_reduce",
                    METRIC if index else sites(rank),  # type: ignore[arg-type]
                    time_created_ns=ready_ns[rank] + offsets[rank],
                    time_discovered_started_ns=(
                        ready_ns[rank] + offsets[rank] if has_starts else None
                    ),
                    time_discovered_completed_ns=None if form == GLOO else over_ns + offsets[rank],
                )
                ready_ns[rank] = over_ns + 100_000 * (1 + rank)
            now_ns = over_ns
    return dumps


def slow(culprit: int, by_ms: int) -> Work:
    draw = random.Random(1)
    return lambda rank, _step: int(draw.random() * 3 * MS) + (by_ms * MS if rank == culprit else 0)


def jitter(seed: int, most_ms: int) -> Work:
    draw = random.Random(seed)
    return lambda _rank, _step: int(draw.random() * most_ms * MS)


def named(report: Report) -> list[tuple[str, list[int]]]:
    return [(item.code, item.culprits.ranks) for item in report.findings]


@pytest.mark.parametrize("form", [NCCL, GLOO])
@pytest.mark.parametrize("offset_ms", [0, 40, -3000])
def test_slow_rank_is_found_whatever_its_clock_says(
    form: str, offset_ms: int, tmp_path: Path
) -> None:
    dumps = train(4, slow(2, 30), offsets_ns=[0, 7 * MS, offset_ms * MS, 1 * MS], form=form)
    report = dumps.report(tmp_path)
    (finding,) = report.findings

    assert named(report) == [("S301", [2])]
    assert report.verdict is Verdict.SLOW
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert 24 <= finding.measures["lost_ms"] <= 32
    assert 0.08 <= finding.measures["lost_share"] <= 0.15


@pytest.mark.parametrize("form", [NCCL, GLOO])
@pytest.mark.parametrize("offset_ms", [30, -30, 5000])
def test_clock_that_is_off_is_no_slow_rank(form: str, offset_ms: int, tmp_path: Path) -> None:
    dumps = train(4, slow(9, 0), offsets_ns=[0, 0, offset_ms * MS, 0], form=form)

    assert named(dumps.report(tmp_path)) == []


def test_without_anything_to_compare_clocks_by_the_rank_is_only_possible(tmp_path: Path) -> None:
    (finding,) = train(4, slow(1, 40), ops=1).report(tmp_path).findings

    assert (finding.code, finding.culprits.ranks) == ("S301", [1])
    assert finding.confidence is Confidence.POSSIBLE
    assert "if the clocks of the ranks agree" in finding.summary


def test_clock_that_is_off_by_more_than_a_step_is_no_slow_rank(tmp_path: Path) -> None:
    dumps = train(4, slow(9, 0), ops=1, offsets_ns=[0, 0, 5000 * MS, 0])

    assert named(dumps.report(tmp_path)) == []


def test_jitter_that_moves_over_ranks_accuses_nobody(tmp_path: Path) -> None:
    draw = random.Random(2)
    dumps = train(4, lambda _rank, _step: int(draw.random() * 30 * MS))

    assert named(dumps.report(tmp_path)) == []


def test_one_slow_step_accuses_nobody(tmp_path: Path) -> None:
    dumps = train(4, lambda rank, step: 900 * MS if (rank, step) == (3, 7) else rank * 10_000)

    assert named(dumps.report(tmp_path)) == []


def test_ranks_of_other_roles_are_not_compared(tmp_path: Path) -> None:
    def site(rank: int) -> Sequence[object]:
        return (at("/job/stage.py", 10 + rank // 2), MODULE)

    dumps = train(4, lambda rank, _step: 50 * MS if rank == 3 else rank * 10_000, sites=site)

    assert named(dumps.report(tmp_path)) == []


@pytest.mark.parametrize("has_starts", [True, False])
def test_device_that_becomes_slow_lately_is_found(has_starts: bool, tmp_path: Path) -> None:
    always = slow(2, 60)
    work: Work = lambda rank, step: always(rank, step) if step >= 210 else always(9, step)  # noqa: E731
    dumps = train(4, work, form=NCCL, steps=260, has_starts=has_starts)
    (finding,) = dumps.report(tmp_path).findings

    assert (finding.code, finding.culprits.ranks) == ("S301", [2])
    assert 50 <= finding.measures["lost_ms"] <= 65


def test_devices_whose_jitter_moves_accuse_nobody(tmp_path: Path) -> None:
    for seed in range(6):
        folder = tmp_path / str(seed)
        folder.mkdir()
        dumps = train(4, jitter(seed, 60), form=NCCL, steps=260, has_starts=True)

        assert named(dumps.report(folder)) == []
