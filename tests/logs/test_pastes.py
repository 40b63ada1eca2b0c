"""Texts that people paste, written before the readers: what `logs` and `diagnose` make of them.

`names.csv` tells for each text which findings are right, which ranks must be named, and which must
not. A text that is not decidable may be left open.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

import pytest

from whystuck.evidence.finding import Report, Severity, Verdict
from whystuck.pipeline import diagnose_paths
from whystuck.read.collected import Choice

FOLDER = Path(__file__).parent / "pastes"


class Paste(NamedTuple):
    """One text, and what is right to say of it."""

    path: Path
    names: frozenset[str]
    ranks: frozenset[int]
    innocent: frozenset[int]
    # Not told yet: to blame nobody is all that is asked for.
    is_open: bool
    nodes: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.path.parent.name}-{self.path.stem}"


def _read(folder: Path) -> list[Paste]:
    with (folder / "names.csv").open(newline="") as stream:
        return [
            Paste(
                folder / f"{int(row['n']):02}.txt",
                frozenset(row["names"].split("|")),
                _split(row["ranks"]),
                _split(row["innocent"]),
                row["shallow"] == "open",
                frozenset((row.get("hosts") or "").split("|")) - {""},
            )
            for row in csv.DictReader(stream)
        ]


def _split(text: str) -> frozenset[int]:
    return frozenset(int(part) for part in text.split(",") if part)


PASTES = [
    paste for folder in sorted(FOLDER.iterdir()) if folder.is_dir() for paste in _read(folder)
]


def name_first(report: Report) -> set[str]:
    """Return the name of the first finding, and that nothing is decided where it is not."""
    told = [one for one in report.findings if one.severity is not Severity.NOTE]
    first = next(iter(told or report.findings), None)
    names = {first.name} if first else set()
    is_word = report.verdict in {Verdict.INCONCLUSIVE, Verdict.HEALTHY}
    return names | ({report.verdict.value} if is_word else set())


@pytest.mark.parametrize("only_logs", [True, False], ids=["logs", "diagnose"])
@pytest.mark.parametrize("paste", PASTES, ids=str)
def test_pasted_texts_are_judged_right_and_blame_no_innocent_rank(
    paste: Paste, *, only_logs: bool
) -> None:
    report = diagnose_paths([paste.path], choice=Choice(only_logs=only_logs))
    blamed = {rank for one in report.findings for rank in one.culprits.ranks}
    assert not blamed & paste.innocent
    assert min(blamed, default=0) >= 0
    assert "rank -" not in " ".join(one.summary for one in report.findings)
    if paste.is_open:
        return
    assert name_first(report) & paste.names
    assert paste.ranks <= blamed
    assert paste.nodes <= {node for one in report.findings for node in one.culprits.nodes}
