"""The corpus gets the right cause, rank and line, plain and padded; nobody innocent is named."""

from __future__ import annotations

import pytest
from tests.logs.cases import REPORTS, Case, all_cases
from tests.logs.pad import Size
from tests.logs.scoring import FULL, QUICK, Score, count, score_case

CASES = all_cases()
NAMES = [case.name for case in CASES]
LEAST_RIGHT = 0.9
MOST_DECOYS = 0.05


def explain(scores: list[Score]) -> str:
    return "\n".join(
        f"{score.name} ({score.size or 'plain'}): want {score.wanted}, got {score.got}"
        for score in scores
        if not score.is_right or score.is_wrong_rank
    )


def check_bars(scores: list[Score]) -> None:
    total = count(scores)

    assert total["right"] >= LEAST_RIGHT * total["cases"], explain(scores)
    assert total["decoy"] <= MOST_DECOYS * total["cases"], explain(scores)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_cause_of_a_case_is_found(case: Case) -> None:
    score = score_case(case)

    assert score.is_right, explain([score])
    assert not score.is_wrong_rank
    assert score.is_cited is not False, score.got


def test_causes_of_what_people_report_are_found() -> None:
    scores = [score_case(case) for case in all_cases(REPORTS)]
    total = count(scores)

    check_bars(scores)
    assert total["wrong rank"] == 0, explain(scores)
    assert total["cited"] >= LEAST_RIGHT * total["cases"]


@pytest.mark.parametrize("size", QUICK, ids=lambda size: f"{size.ranks}")
def test_causes_of_padded_cases_are_found(size: Size) -> None:
    # Every fourth case, others for each size.
    chosen = CASES[size.seed % 4 :: 4]

    check_bars([score_case(case, size) for case in chosen])


@pytest.mark.slow
@pytest.mark.parametrize("size", [*QUICK, *FULL], ids=lambda size: f"{size.ranks}-{size.seed}")
def test_causes_of_the_whole_padded_corpus_are_found(size: Size) -> None:
    check_bars([score_case(case, size) for case in CASES])
