"""Dumps of many ranks of which some are missing, the culprit's among them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.diagnose.missing_cases import (
    FAULTS,
    LISTED,
    RIGHT,
    UNSURE,
    diagnose_rest,
    judge,
    list_first,
    make_case,
    write_case,
)
from tests.diagnose.scenes import MODULE, WAITING, Job, at

from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.engine import diagnose
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.evidence.finding import Confidence, Finding, Verdict
from whystuck.evidence.live import FatalStack, ThreadStack

SHAPE = (2, 4, 2)


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("share", [0.01, 0.2, 0.5])
def test_nobody_present_is_blamed_for_a_missing_rank(
    tmp_path: Path, kind: str, share: float
) -> None:
    case = make_case(kind, SHAPE, 0)
    missing = case.choose_missing(share, 0)
    (tmp_path / "all").mkdir()
    (tmp_path / "rest").mkdir()
    files = write_case(case, tmp_path / "all")

    report = diagnose_rest(files, missing, tmp_path / "rest")

    assert judge(case, missing, report) in {RIGHT, LISTED, UNSURE}
    assert all(item.confidence is Confidence.POSSIBLE for item in report.findings)
    assert report.verdict is not Verdict.HEALTHY


@pytest.mark.parametrize("seed", range(3))
def test_ranks_that_wait_for_each_other_need_no_missing_one(tmp_path: Path, seed: int) -> None:
    # GIVEN a rank that uses two groups in another order, and dumps that others did not leave
    case = make_case("H104 order", SHAPE, seed)
    missing = case.choose_missing(0.2, seed, spare=True)
    (tmp_path / "all").mkdir()
    (tmp_path / "rest").mkdir()

    report = diagnose_rest(write_case(case, tmp_path / "all"), missing, tmp_path / "rest")

    (finding,) = report.findings
    assert (finding.code, finding.confidence) == ("H104", Confidence.POSSIBLE)
    assert case.culprit in finding.culprits.ranks
    assert missing.isdisjoint(finding.culprits.ranks)


def test_the_ranks_to_look_at_first_are_few(tmp_path: Path) -> None:
    case = make_case("H101 host stops", (4, 4, 4), 0)
    missing = case.choose_missing(0.1, 0)
    (tmp_path / "all").mkdir()
    (tmp_path / "rest").mkdir()

    report = diagnose_rest(write_case(case, tmp_path / "all"), missing, tmp_path / "rest")

    first = list_first(report)
    assert case.culprit in first
    assert first < missing


def abort(*recorded: int) -> Job:
    """Let rank 1 abort in a collective, and some ranks leave a dump."""
    made = Job().of_kind("exit", command_exit=1)
    made.ops(recorded, "all_reduce", [at("/job/train.py", 10), MODULE], times=5)
    stack = ThreadStack(1, "", (*WAITING, at("/job/train.py", 10), MODULE), is_main=True)
    made.fatals.append(FatalStack(1, "Aborted", (stack,)))
    return made.ends(1, signal=6)


def test_abort_in_a_collective_is_certain_where_all_ops_are_known() -> None:
    finding = abort(0, 1, 2, 3).finding()

    assert (finding.code, finding.confidence) == ("C203", Confidence.CERTAIN)
    assert finding.culprits.ranks == [1]


def test_abort_in_a_collective_blames_nobody_where_a_peer_is_missing() -> None:
    finding = abort(0, 1, 3).finding()

    assert (finding.code, finding.confidence) == ("C203", Confidence.POSSIBLE)
    assert finding.culprits.ranks == []
    assert finding.summary.endswith("; what rank 2 called is not known, and may not fit")


def test_code_that_only_the_launcher_tells_is_possible() -> None:
    made = Job().of_kind("exit", command_exit=1).steps()
    made.raises(0, "RuntimeError", "Connection closed by peer [10.0.0.1]:1").ends(0, code=1)
    for rank in (2, 3):
        made.ends(rank, signal=15, after_launcher_kill=True)
    made.ends(1, code=1, source="launcher log")

    finding = made.finding()

    assert (finding.code, finding.culprits.ranks) == ("C204", [1])
    assert finding.confidence is Confidence.POSSIBLE


def test_rank_without_evidence_is_never_more_than_possible() -> None:
    # GIVEN a rule that is sure of a rank nobody knows anything of
    class Sure(Rule):
        code, name, remedies = "H199", "sure", ("look",)

        def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
            for rank in (2, 3):
                yield self.make_finding("it was it", Confidence.CERTAIN, Blame(ranks=[rank]))

    evidence = Job().ops([0, 1, 3], "barrier", [MODULE], times=3).evidence()

    found = diagnose(evidence, rules=[Sure]).findings

    assert {item.culprits.ranks[0]: item.confidence for item in found} == {
        2: Confidence.POSSIBLE,
        3: Confidence.CERTAIN,
    }
