"""Tables with a row for each step and rank: norms and hashes of weights, in many words."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

HASHES = ["9c01fe2a", "51bb80d7", "e7d03c19", "7f2288c4"]
ODD = ["9c01fe2a", "51bb80d7", "0a4f77b2", "d3e91a05"]
HEADS = [
    "step    rank  |param|_2      sha1[:8]    grad_norm",
    "iter    rank  ||w||          md5(8)      grad_norm",
    "step    rank  param L2 norm  digest      loss",
    "step    rank  \u2016\u03b8\u2016_2  sha256[0:8]  grad_norm",
    "step    rank  norm(weights)  crc32       lr",
    "epoch   rank  L2 of params   hash[:8]    grad_norm",
    "step    rank  sum(|w|)       sha(8)      loss",
]


def table(head: str, odd: int = -1) -> list[str]:
    rows = [head]
    for at, common in enumerate(HASHES):
        for rank in range(4):
            value = ODD[at] if rank == odd else common
            norm = 1841.22 + at / 10 - (0.0034 if value != common else 0)
            rows.append(f"{60000 + 100 * at}    {rank}    {norm:.6f}    {value}    0.812")
    return rows


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("odd", [0, 2])
def test_rank_with_other_weights_from_a_step_on_is_named(
    tmp_path: Path, head: str, odd: int
) -> None:
    finding = first_of(say(tmp_path, "\u00bfAlguna idea?", "", *table(head, odd), "", "val 2.93"))

    assert (finding.code, finding.culprits.ranks) == ("V501", [odd])
    assert finding.details["step"] == 60200


@pytest.mark.parametrize(
    "said",
    [
        "norma y hash de los par\u00e1metros por rango, tras optimizer.step():",
        "empreinte (sha1) des poids : hash des poids par rang",
        "Pr\u00fcfsumme, sha1 der Gewichte je Rank",
        "\u6bcf\u4e2a rank \u7684\u6743\u91cd hash:",
    ],
)
def test_hashes_of_weights_are_known_in_other_languages(tmp_path: Path, said: str) -> None:
    lines = [
        "step    rank  sha1[:8]",
        *(f"200    {rank}    {'0a4f77b2' if rank == 3 else 'e7d03c19'}" for rank in range(4)),
    ]
    finding = first_of(say(tmp_path, said, "", *lines))

    assert (finding.code, finding.culprits.ranks) == ("V501", [3])


@pytest.mark.parametrize(
    "lines",
    [
        table(HEADS[0]),
        # Nobody says of what the hash is: each rank has a batch of its own.
        [
            "step    rank  sha1[:8]  loss",
            *(f"9  {rank}  {'0a4f77b2' if rank == 3 else 'e7d03c19'}  2.1" for rank in range(4)),
        ],
        # the norm of what each rank has of its own
        [
            "step    rank  grad_norm  loss",
            *(f"9  {rank}  {0.91 if rank == 3 else 0.8121}  2.1" for rank in range(4)),
        ],
    ],
    ids=["alike", "a hash of something", "norms of gradients"],
)
def test_other_columns_tell_of_no_difference(tmp_path: Path, lines: list[str]) -> None:
    assert all(one.code != "V501" for one in say(tmp_path, *lines, "").findings)
