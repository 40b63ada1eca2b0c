"""Sums that ranks print of a tensor, step by step, which they should share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

FORMS = [
    "[{0}] step {1}  sum(head.w)= {2:8.4f}  sum(head.b)=0.0000",
    "[rank{0}]: step {1} head.w.sum()={2:.4f}",
    "rank {0} | iter {1} | mean(head.w): {2:.4f} | loss 1.9",
]
BEGUN = [0.8113, -2.0714, 1.4402, -0.3391]


def write(form: str, *changes: Sequence[float], begun: Sequence[float] = BEGUN) -> list[str]:
    return [
        form.format(rank, 40 * at, value + more)
        for at, change in enumerate(changes)
        for rank, (value, more) in enumerate(zip(begun, change, strict=False))
    ]


SAME, NONE = [0.0311, 0.0312, 0.0311, 0.0311], [0.0] * 4


@pytest.mark.parametrize("form", FORMS)
def test_other_values_that_change_alike_are_told(tmp_path: Path, form: str) -> None:
    finding = first_of(say(tmp_path, *write(form, NONE, SAME)))

    assert (finding.code, finding.culprits.ranks) == ("V501", [])
    assert "head.w differs among ranks since step 0" in finding.summary


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(write(FORMS[0], NONE, [0.03, -0.2, 0.11, 0.06]), id="shards"),
        pytest.param(write(FORMS[0], NONE, NONE), id="frozen"),
        pytest.param(write(FORMS[0], NONE, SAME, begun=[0.8113] * 4), id="same"),
        pytest.param(write(FORMS[0], NONE), id="one step"),
        pytest.param(write(FORMS[0], NONE[:2], SAME[:2]), id="two ranks"),
        pytest.param(write(FORMS[0], NONE, SAME)[:-1], id="cut"),
        pytest.param(
            [line.replace("head.w", "layer_time") for line in write(FORMS[0], NONE, SAME)],
            id="clocks",
        ),
        pytest.param(
            [line.replace("head.w", "seen") for line in write(FORMS[2], NONE, SAME)], id="counters"
        ),
    ],
)
def test_sums_of_shards_and_of_copies_are_not_told(tmp_path: Path, lines: list[str]) -> None:
    assert all(one.code != "V501" for one in say(tmp_path, *lines).findings)
