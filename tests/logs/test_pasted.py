"""What people paste: the same cause is found in it by each command, and no innocent rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.field_logs import COMMANDS, Label, read_labels, score

FOLDER = Path(__file__).parent / "pasted"
LABELS = list(read_labels(FOLDER))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("label", LABELS, ids=lambda label: f"{label.number:02}")
def test_text_is_judged_as_an_expert_would(label: Label, command: str) -> None:
    # WHEN a text is given to a command that reads logs
    result = score((label, command))

    # THEN the finding is right, and it blames nobody who only waited
    assert result.kind == "right", result.said
