"""Ranks as people call them in other languages, in tables, before lines and beside devices."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

WORDS = ["rang", "rango", "Rang", "rank", "\u8fdb\u7a0b", "\u30e9\u30f3\u30af", "\ub7ad\ud06c"]
HEADS = {
    "fr": ["data", "fwd", "bwd", "attente allreduce", "total"],
    "es": ["data", "forward", "backward", "allreduce (espera)", "total"],
    "de": ["data", "fwd", "bwd", "wait allreduce", "total"],
}
SMI = [
    "$ nvidia-smi --query-gpu=index,temperature.gpu,clocks.sm,utilization.gpu --format=csv",
    "index, temperature.gpu, clocks.current.sm [MHz], utilization.gpu [%]",
    *(f"{i}, {89 if i == 3 else 61}, {990 if i == 3 else 1980} MHz, 100 %" for i in range(4)),
]


def rows(name: str, slow: int = 3, mark: str = "  ") -> list[str]:
    told = []
    for rank in range(4):
        factor = 1.85 if rank == slow else 1.0
        cells = [0.011, 0.204 * factor, 0.412 * factor, 0.008 if rank == slow else 0.518, 1.15]
        told.append(mark.join([name.format(rank), *(f"{cell:.3f}" for cell in cells)]))
    return told


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("head", HEADS)
def test_head_of_phases_alone_has_rows_of_ranks(tmp_path: Path, word: str, head: str) -> None:
    lines = [f"{'':8}{'   '.join(HEADS[head])}", *rows(word + " {}")]
    report = say(tmp_path, "Chronos (s):", "", *lines, "")

    assert [(one.code, one.culprits.ranks) for one in report.findings] == [("S301", [3])]


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("mark", ["  ", " | "])
def test_head_names_a_column_of_ranks(tmp_path: Path, word: str, mark: str) -> None:
    lines = [mark.join([word, *HEADS["fr"]]), *rows("{}", mark=mark)]
    report = say(tmp_path, "Chronos (s):", "", *lines, "")

    assert [(one.code, one.culprits.ranks) for one in report.findings] == [("S301", [3])]


@pytest.mark.parametrize("name", ["{}", "epoch {}", "layer {}", "host-{}"])
def test_rows_of_other_things_are_none_of_ranks(tmp_path: Path, name: str) -> None:
    lines = [f"{'':8}{'   '.join(HEADS['fr'])}", *rows(name)]

    assert all(one.code != "S301" for one in say(tmp_path, *lines, "").findings)


@pytest.mark.parametrize(
    "said",
    [
        "4 rangs, 1 n\u0153ud (lx-hopper2), rang = index GPU.",
        "le rang est l'index du GPU",
        "4 rangos, rango = \u00edndice de GPU",
        "Rang = GPU-Index, ein Knoten",
        "\u5355\u673a\uff0crank = \u5361\u53f7",
        "\u8fdb\u7a0b = GPU\u7f16\u53f7",
    ],
)
def test_throttled_device_is_that_of_its_rank(tmp_path: Path, said: str) -> None:
    finding = first_of(say(tmp_path, said, "", *SMI, ""))

    assert (finding.code, finding.culprits.ranks) == ("N413", [3])


@pytest.mark.parametrize("said", ["rang inconnu, index GPU 3", "le rang 2 a l'index GPU 3", ""])
def test_device_of_which_nobody_says_whose_it_is_names_no_rank(tmp_path: Path, said: str) -> None:
    finding = first_of(say(tmp_path, said, *SMI, ""))

    assert (finding.code, finding.culprits.ranks) == ("N413", [])


@pytest.mark.parametrize("mark", ["[rang {}] ", "rang {}: ", "[\u8fdb\u7a0b {}] ", "(Rango {}) "])
def test_marks_before_lines_name_ranks(tmp_path: Path, mark: str) -> None:
    lines = [f"{mark.format(rank)}step 7 loss 2.1" for rank in range(4)]
    lines += [f"{mark.format(2)}Traceback (most recent call last):"]
    lines += [f'{mark.format(2)}  File "/w/a.py", line 3, in f', f"{mark.format(2)}KeyError: 'x'"]
    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.culprits.ranks) == ("C204", [2])
