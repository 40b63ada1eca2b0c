"""The same text gives the same findings, whichever command reads it and however it comes in."""

from __future__ import annotations

import io
import json
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from whystuck.cli import main

FOLDER = Path(__file__).parent
TEXTS = sorted((FOLDER / "pasted").glob("*.txt")) + sorted((FOLDER / "pastes").glob("*/*.txt"))


class _Stdin:
    """Standard input that holds some bytes."""

    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


def find(command: str, path: Path | str) -> list[tuple[Any, ...]]:
    """Run a command, and return what it finds."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        code = main([command, str(path), "--format", "json"])
    assert code != 2
    report = json.loads(out.getvalue())
    found = [
        (one["code"], one["confidence"], one["culprits"]["ranks"], one["culprits"]["nodes"])
        for one in report["findings"]
    ]
    return [(report["verdict"],), *found]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_each_way_gives_the_same(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(path, tmp_path / path.name)
    ways: list[tuple[str, Path | str]] = [
        (command, place) for command in ("logs", "diagnose") for place in (path, tmp_path, "-")
    ]
    found = []
    for command, place in ways:
        monkeypatch.setattr(sys, "stdin", _Stdin(path.read_bytes()))
        found.append(find(command, place))

    for way, one in zip(ways, found, strict=True):
        assert one == found[0], way
