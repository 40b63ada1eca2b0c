"""Checks of jobs that compare their ranks: who raises has found a difference."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

RAISED = [
    "-- Process 2 terminated with the following error:",
    "Traceback (most recent call last):",
    '  File "/job/trainer.py", line 96, in train_step',
    "    self.check(norm)",
    '  File "/job/trainer.py", line 185, in check',
    "    raise FloatingPointError(",
]
FAIRSEQ = "FloatingPointError: Fatal error: gradients are inconsistent between workers."


def table(head: str, row: str, odd: int, world: int = 4) -> list[str]:
    return [head, *(row.format(rank, 2.319 if rank == odd else 1.7527) for rank in range(world))]


@pytest.mark.parametrize("odd", [0, 3])
@pytest.mark.parametrize(
    ("head", "row"),
    [
        ("grad_norm across the workers:", "rank   {} = {:.8f}"),
        ("param checksum across ranks:", "rank {}: {}"),
        ("[rank2]: model state hash across all ranks:", "  rank {} | {}"),
        ("weights sum between the replicas:", "worker {}: {}"),
    ],
)
def test_table_of_values_names_the_odd_rank_and_not_who_raised(
    tmp_path: Path, head: str, row: str, odd: int
) -> None:
    finding = first_of(say(tmp_path, *RAISED, FAIRSEQ, "-" * 80, *table(head, row, odd), ""))

    assert (finding.code, finding.culprits.ranks) == ("V501", [odd])


@pytest.mark.parametrize(
    "message",
    [
        FAIRSEQ,
        "RuntimeError: parameters differ across ranks after step 40",
        "AssertionError: model weights are not identical on all ranks",
        "ValueError: checksum mismatch between replicas at step 10",
    ],
)
def test_check_without_a_table_names_nobody(tmp_path: Path, message: str) -> None:
    finding = first_of(say(tmp_path, *RAISED, message))

    assert (finding.code, finding.culprits.ranks) == ("V501", [])


@pytest.mark.parametrize(
    "lines",
    [
        table("grad_norm across the workers:", "rank {} = {}", odd=9),
        table("times across ranks (ms):", "rank {}: {}", odd=1),
        ["grad_norm across the workers:", "rank 0 = 1.75273132", "rank 1 = 1.75273401"],
        ["loss across ranks: 1.7", "rank 0 = 1.7", "rank 1 = 1.7", "rank 2 = 2.9"],
    ],
    ids=["alike", "times", "rounding", "a value in the heading"],
)
def test_other_tables_tell_of_no_difference(tmp_path: Path, lines: list[str]) -> None:
    assert all(one.code != "V501" for one in say(tmp_path, *lines, "step 9 loss 2.1").findings)


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: The size of tensor a (4) must match the size of tensor b (8)",
        "ValueError: model expects a state of 8 devices",
        "KeyError: 'weights differ'",
        "ValueError: parameters are on different devices",
    ],
)
def test_other_errors_stay_those_of_who_raised(tmp_path: Path, message: str) -> None:
    assert first_of(say(tmp_path, *RAISED, message)).code != "V501"


@pytest.mark.parametrize("word", ["grad", "grad_", "sum", "model ", "across ranks "])
def test_heading_that_repeats_itself_costs_no_time(tmp_path: Path, word: str) -> None:
    """A pattern whose parts overlap took 36 s for 2 KB of this."""
    text = f"{word * (8000 // len(word))} across ranks"

    assert say(tmp_path, text, f"{text}: 1", "rank 0 = 1.5", "rank 1 = 1.5").findings == []


# Each row says of what its values are, and no heading does.
ROWS = [
    "step {0} sum|w| blocks.3.mlp.fc1.weight r0={1} r1={1} r2={2} r3={1}",
    "step {0} norm(weights): rank0={1} rank1={1} rank2={2} rank3={1}",
    "[it {0}] blocks.3.ln.bias abs mean  r0: {1}  r1: {1}  r2: {2}  r3: {1}",
    "iter={0} param_norm r0={1}e+02 r1={1}e+02 r2={2}e+02 r3={1}e+02",
]


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("between", [[], ["epoch 1 | 1.07 it/s | loss 2.1"] * 6])
def test_values_of_ranks_in_rows_that_name_them(
    tmp_path: Path, row: str, between: list[str]
) -> None:
    lines = [row.format(700, "814.31207", "814.31207"), *between]
    lines += [row.format(720, "815.40112", "815.93344"), row.format(740, "816.1123", "817.0098")]
    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.culprits.ranks) == ("V501", [2])
    assert "720" in finding.because[0].text


@pytest.mark.parametrize(
    "row",
    [
        "step {0} mem_gb r0={1} r1={1} r2={2} r3={1}",
        "step {0} local grad norm fc1.weight r0={1} r1={1} r2={2} r3={1}",
        "step {0} sum|w| of my shard r0={1} r1={1} r2={2} r3={1}",
        "step {0} sum|w| fc1.weight r0={1} r1={1} r2={1} r3={1}",
        "step {0} sum|w| fc1.weight r0={1} r1={2}",
    ],
)
def test_rows_of_other_values_tell_of_no_difference(tmp_path: Path, row: str) -> None:
    lines = [row.format(step, "815.40112", "815.93344") for step in (700, 720)]

    assert all(one.code != "V501" for one in say(tmp_path, *lines).findings)


HASHED = [
    "I print the md5 of all params on every rank, once in 50 steps",
    "sha256 of the flattened weights (first digits):",
    "weights should be the same, so here is a crc32 over the model state:",
    "digest of the parameters of each rank",
]
HASH_ROWS = ["step {0}  {1}", "{0} | {1}", "iter {0}: {1}"]


def hash_row(form: str, step: int, *values: str, sign: str = "r") -> str:
    return form.format(step, " ".join(f"{sign}{rank} {one}" for rank, one in enumerate(values)))


ODD_ROW = hash_row(HASH_ROWS[0], 5, "aa11bb", "aa11bb", "cc22dd")


@pytest.mark.parametrize("said", HASHED)
@pytest.mark.parametrize("form", HASH_ROWS)
@pytest.mark.parametrize("sign", ["r", "rank"])
def test_rank_whose_hash_differs_from_a_step_on_is_named(
    tmp_path: Path, said: str, form: str, sign: str
) -> None:
    rows = [
        hash_row(form, 50, *["ab12cd"] * 4, sign=sign),
        hash_row(form, 100, "77aa01", "77aa01", "0f3c99", "77aa01", sign=sign),
        hash_row(form, 150, "1be902", "1be902", "d41d8c", "1be902", sign=sign),
    ]
    finding = first_of(say(tmp_path, said, *rows))

    assert (finding.name, finding.culprits.ranks) == ("weights-diverged", [2])


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([ODD_ROW], id="not said"),
        pytest.param(["md5 of the data file of each rank", ODD_ROW], id="of files"),
        pytest.param(["md5 of the weight shards", ODD_ROW], id="of shards"),
        pytest.param([HASHED[0], hash_row(HASH_ROWS[0], 5, "aa11bb", "cc22dd")], id="two ranks"),
        pytest.param(
            [HASHED[0], hash_row(HASH_ROWS[0], 5, *["aa11bb"] * 2, *["cc22dd"] * 2)], id="halves"
        ),
    ],
)
def test_hashes_that_tell_of_no_odd_rank(tmp_path: Path, lines: list[str]) -> None:
    report = say(tmp_path, *lines)

    assert not {rank for one in report.findings for rank in one.culprits.ranks}


@pytest.mark.parametrize(
    "text",
    [
        "AssertionError: weight hashes do not match across data-parallel replicas",
        "RuntimeError: parameter checksums not matching between the ranks",
    ],
)
def test_check_that_hashes_do_not_match_is_told(tmp_path: Path, text: str) -> None:
    finding = first_of(say(tmp_path, "step 400", text))

    assert (finding.name, finding.culprits.ranks) == ("weights-diverged", [])
