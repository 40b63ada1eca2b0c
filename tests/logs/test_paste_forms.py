"""The pasted texts with what people and collectors do to them: stamped, mixed, cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.logs.test_pastes import PASTES, Paste, name_first

from whystuck.pipeline import diagnose_paths

_FOLDERS = {"net", "tools", "more", "late"}
CHOSEN = [paste for paste in PASTES if paste.path.parent.name in _FOLDERS]


def stamp(lines: list[str]) -> Iterator[str]:
    """Write a text as a container runtime keeps it."""
    for number, line in enumerate(lines):
        yield f"2026-06-11T05:00:{number % 60:02}.000000001Z stdout F {line}"


def mix(lines: list[str]) -> Iterator[str]:
    """Put lines of a program that is well between those of a text; tracebacks stay whole."""
    for number, line in enumerate(lines):
        if not line.startswith((" ", "\t")):
            yield f"INFO logger: wrote 12 records, queue {number % 7}"
        yield line


def cut(lines: list[str]) -> Iterator[str]:
    """Leave out the end of each long line, as terminals do."""
    for line in lines:
        yield line[:110]


@pytest.mark.parametrize("change", [stamp, mix, cut], ids=lambda change: str(change.__name__))
@pytest.mark.parametrize("paste", CHOSEN, ids=str)
def test_changed_texts_blame_no_innocent_rank(
    tmp_path: Path, paste: Paste, change: Callable[[list[str]], Iterator[str]]
) -> None:
    lines = paste.path.read_text().splitlines()
    (tmp_path / "paste.txt").write_text("\n".join(change(lines)) + "\n")
    report = diagnose_paths([tmp_path / "paste.txt"])

    blamed = {rank for one in report.findings for rank in one.culprits.ranks}
    assert not blamed & paste.innocent
    if change is not cut:
        assert name_first(report) & paste.names
