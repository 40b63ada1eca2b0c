"""The stack of a rank that prepares data, above a bar of progress that moves."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_pasted_near import blamed_of
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Verdict

WAITS = [
    'Thread 88 (idle): "MainThread"',
    "    barrier (torch/distributed/distributed_c10d.py:3703)",
    "    make_data (data.py:31)",
    "    main (run.py:12)",
]
STATES = {
    "tokenises": [
        'Thread 87 ({}): "MainThread"',
        "    _call_one (transformers/tokenization_utils_base.py:2901)",
        "    to_ids (data.py:14)",
        "    make_data (data.py:40)",
        "    main (run.py:12)",
    ],
    "extracts": [
        'Thread 87 ({}): "MainThread"',
        "    read (tarfile.py:694)",
        "    extract_archive (data.py:22)",
        "    main (run.py:12)",
    ],
    "trains": [
        'Thread 87 ({}): "MainThread"',
        "    forward (model.py:61)",
        "    step (run.py:71)",
        "    main (run.py:14)",
    ],
}
BARS = {
    "tokenizer": "Running tokenizer on dataset : {}%|#   | 310/1000 [02:11<05:00, 2.30 examples/s]",
    "extract": "Extracting shards:  {}%|█   | 31/100 [1:02:11<2:05:00, 120.3s/it]",
    "rank": "[rank2] Tokenizing:   {}%|##   | 31/100 [02:11<05:00, 2.3it/s]",
}


def paste(state: str, bar: str, *shares: int, active: str = "active") -> list[str]:
    stacks = ["rank 2:", *[row.format(active) for row in STATES[state]]]
    return [*stacks, "ranks 0,1,3:", *WAITS, "", *[BARS[bar].format(one) for one in shares]]


@pytest.mark.parametrize(
    ("state", "bar"),
    [("tokenises", "tokenizer"), ("tokenises", "rank"), ("extracts", "extract")],
)
@pytest.mark.parametrize("active", ["active", "active+gil"])
def test_rank_whose_bar_moves_prepares(tmp_path: Path, state: str, bar: str, active: str) -> None:
    report = say(tmp_path, *paste(state, bar, 8, 11, active=active))

    assert (report.findings[0].code, report.findings[0].culprits.ranks) == ("H117", [2])
    assert report.findings[0].victims.ranks == "0-1,3"
    assert report.verdict is Verdict.WAITING


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(paste("tokenises", "tokenizer", 8), id="one look"),
        pytest.param(paste("tokenises", "tokenizer", 8, 11, 11), id="stands"),
        pytest.param(paste("tokenises", "tokenizer", 40, 100), id="done"),
        pytest.param(paste("tokenises", "tokenizer", 8, 11, active="idle"), id="sleeps"),
        pytest.param(paste("trains", "tokenizer", 8, 11), id="does something else"),
        pytest.param(
            [BARS["tokenizer"].format(one) for one in (8, 11)]
            + paste("tokenises", "tokenizer")[:-1],
            id="moved before",
        ),
        pytest.param(
            [one.replace("[rank2]", "[rank1]") for one in paste("tokenises", "rank", 8, 11)],
            id="of another rank",
        ),
    ],
)
def test_rank_whose_bar_does_not_show_that_it_moves(tmp_path: Path, lines: list[str]) -> None:
    found = first_of(say(tmp_path, *lines))

    assert (found.code, found.culprits.ranks) == ("H101", [2])


def test_ranks_that_all_wait_beside_a_bar_are_not_blamed(tmp_path: Path) -> None:
    bars = [BARS["extract"].format(one) for one in (8, 11)]
    blamed = blamed_of(say(tmp_path, "ranks 0-3:", *WAITS, *bars))

    assert blamed == (set(), set())
