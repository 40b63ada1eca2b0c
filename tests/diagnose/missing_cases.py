"""Jobs of many ranks with one fault each, of which the dumps of some ranks are missing."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.diagnose import queue_cases
from tests.diagnose.queue_cases import _Draft, make_grid
from tests.diagnose.queues import MS, Queues, unroll

from whystuck.evidence.finding import Confidence, Finding, Report
from whystuck.evidence.ranks import parse_ranks
from whystuck.pipeline import diagnose_paths

# Ranks in a tensor group, in a data group, and stages.
Shape = tuple[int, int, int]
LARGE: Shape = (8, 32, 4)
SMALL: Shape = (4, 4, 4)
_STEPS_AFTER = 7
# The tensor group of the first rank: a node holds one such group.
_FIRST_GROUP = "1000"


@dataclass(frozen=True)
class MissingCase:
    """A job that hangs, and the rank that is at fault."""

    job: Queues
    culprit: int
    codes: tuple[str, ...]

    def choose_missing(self, share: float, seed: int, *, spare: bool = False) -> frozenset[int]:
        """Choose the ranks whose dumps are missing: single ones, or whole nodes with odd seeds.

        The culprit is among them, unless it is to be spared.
        """
        if not share:
            return frozenset()
        size = len(self.job.groups[_FIRST_GROUP][1]) if seed % 2 else 1
        nodes = [range(first, first + size) for first in range(0, len(self.job.programs), size)]
        others = [node for node in nodes if self.culprit not in node]
        number = max(1, round(share * len(nodes)))
        chosen = random.Random(seed).sample(others, number if spare else number - 1)
        if not spare:
            chosen.append(next(node for node in nodes if self.culprit in node))
        return frozenset(rank for node in chosen for rank in node)


def leave(draft: _Draft) -> queue_cases.Case | None:
    """Let a rank end its loop some steps before the others."""
    del draft.program[draft.at :]
    return queue_cases.Case(draft.job, frozenset([draft.rank]), ("H103", "H101"))


FAULTS: Mapping[str, Callable[[_Draft], queue_cases.Case | None]] = {
    "H101 host stops": queue_cases.host_stops,
    "H102 extra": queue_cases.extra,
    "H103 left": leave,
    "H104 order": queue_cases.order,
    "H105 other op": queue_cases.wrong_op,
    "H106 other size": queue_cases.wrong_size,
    "H110 no half": queue_cases.half_missing,
    "H123 device hangs": queue_cases.device_hangs,
    "H127 skip": queue_cases.skip,
}


def make_case(kind: str, shape: Shape, seed: int) -> MissingCase:
    """Make the job of a kind and a seed: the first one drawn in which the fault shows."""
    rng = random.Random(f"{kind} {seed}")
    while True:
        groups, steps = make_grid(shape, 1, rng.randint(1, 2))
        groups = {name: groups[name] for name in sorted(groups, key=int)}
        fault_step = rng.randint(1, 4)
        programs = unroll(steps, fault_step + _STEPS_AFTER, rng)
        rank = rng.choice(sorted(programs))
        per_step = len(steps[rank])
        job = Queues(
            groups,
            programs,
            rng,
            ahead=rng.choice([1, 3, per_step, 2 * per_step]),
            streams=rng.random() < 0.4,
            timing=rng.random() < 0.3,
            frames=rng.random() < 0.5,
            active_only=rng.random() < 0.2,
            ring=rng.choice([2000, 2000, 3 * per_step]),
            clocks_ns={one: rng.randrange(-50 * MS, 50 * MS) for one in programs},
        )
        case = FAULTS[kind](_Draft(job, rng, per_step, rank, fault_step * per_step))
        if case is not None and not job.run().is_over and not job.is_issued:
            return MissingCase(job, rank, case.codes)


RIGHT, LISTED, UNSURE, WRONG_UNSURE, WRONG = (
    "right",
    "listed",
    "inconclusive",
    "wrong, unsure",
    "WRONG",
)
OUTCOMES = (RIGHT, LISTED, UNSURE, WRONG_UNSURE, WRONG)


def judge(case: MissingCase, missing: Collection[int], report: Report) -> str:
    """Compare a report with the truth.

    A rank without a dump is unknown: it may be named as possible, and never as certain. Whoever
    has one and is not at fault must not be named at all. ``LISTED`` reports name no rank, and say
    that the evidence of the culprit is to be looked at first.
    """
    named = [item for item in report.findings if item.severity.value != "note"]
    wrong = [item for item in named if _is_wrong(case, missing, item)]
    if wrong:
        is_sure = any(item.confidence is not Confidence.POSSIBLE for item in wrong)
        return WRONG if is_sure else WRONG_UNSURE
    if any(case.culprit in item.culprits.ranks for item in named):
        return RIGHT
    if case.culprit not in missing:
        return UNSURE
    return LISTED if case.culprit in list_first(report) else UNSURE


def _is_wrong(case: MissingCase, missing: Collection[int], item: Finding) -> bool:
    ranks = set(item.culprits.ranks)
    is_ring = item.code == "H104" and "H104" in case.codes
    if is_ring and case.culprit not in missing:
        return False
    if ranks - set(missing) - {case.culprit}:
        return True
    # What only follows from a dump that is missing can be no more than possible.
    return bool(ranks & set(missing)) and item.confidence is not Confidence.POSSIBLE


def list_first(report: Report) -> frozenset[int]:
    """Return the ranks whose evidence is asked for first."""
    listed: set[int] = set()
    for gap in report.gaps:
        if "collect theirs first" in gap.reason:
            listed |= parse_ranks(gap.what.partition("ranks ")[2])
    return frozenset(listed)


def write_case(case: MissingCase, folder: Path) -> dict[int, Path]:
    """Write the dumps of all ranks, and return their files."""
    case.job.write(folder)
    return {rank: folder / f"nccl_trace_rank_{rank}" for rank in case.job.programs}


def diagnose_rest(files: Mapping[int, Path], missing: Collection[int], folder: Path) -> Report:
    """Diagnose the dumps that are there, from links in an empty folder."""
    for rank, path in files.items():
        if rank not in missing:
            (folder / path.name).hardlink_to(path)
    return diagnose_paths([folder])
