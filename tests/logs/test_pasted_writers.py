"""Lines without a rank of which somebody says that one rank alone prints them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_pasted_near import blamed_of
from tests.logs.test_told import first_of, say
from tests.logs.test_who import WAIT

COMPILES = {
    "autotune": [
        "AUTOTUNE mm(1408x768, 768x3072)",
        "SingleProcess AUTOTUNE benchmarking takes 3.8113 seconds and 9.4410 seconds precompiling",
    ],
    "graphs": ["Capturing CUDA graphs (decode):  41%|####1     | 14/34 [09:12<13:01]"],
}
BELOW = [
    "^^ keeps printing, only from rank 6, for 10 min, all others are quiet",
    "(only rank 6 prints this, again and again)",
    "these messages come only from rank 6",
    "^ just rank 6 keeps writing such lines",
]
ABOVE = ["only rank 6 prints these lines:", "output that comes only from rank 6:"]
WAITS = [WAIT.format(rank) for rank in (0, 3)]


@pytest.mark.parametrize("kind", COMPILES)
@pytest.mark.parametrize("said", BELOW)
def test_rank_that_alone_prints_what_is_above_is_at_work(
    tmp_path: Path, kind: str, said: str
) -> None:
    found = first_of(say(tmp_path, *COMPILES[kind], said, *WAITS))

    assert (found.code, found.culprits.ranks) == ("H119", [6])
    assert found.victims.ranks == "0,3"


@pytest.mark.parametrize("said", ABOVE)
def test_rank_that_alone_prints_what_is_below_is_at_work(tmp_path: Path, said: str) -> None:
    found = first_of(say(tmp_path, said, *COMPILES["autotune"], *WAITS))

    assert (found.code, found.culprits.ranks) == ("H119", [6])


@pytest.mark.parametrize(
    "said",
    [
        "^^ not only from rank 6, all print this",
        "^^ only from rank 6 and rank 7, all others print nothing",
        "the loss lines come only from rank 6",
        "errors are printed only from rank 6",
        "it hangs only on rank 6",
        "^^ only from rank 3 come such lines",
        "only local rank 6 prints this",
        "print(rank) only on rank 6/7",
    ],
)
def test_who_prints_something_else_is_not_named(tmp_path: Path, said: str) -> None:
    report = say(tmp_path, *COMPILES["autotune"], said, *WAITS)

    assert blamed_of(report)[0] == set()


def test_sentence_about_other_lines_names_nobody(tmp_path: Path) -> None:
    far = [f"reading shard {number}" for number in range(6)]
    report = say(tmp_path, *COMPILES["autotune"], *far, BELOW[0], *WAITS)

    assert blamed_of(report)[0] == set()
    report = say(tmp_path, *COMPILES["autotune"], *WAITS, BELOW[0])
    assert blamed_of(report)[0] == set()
