"""Options that take a number refuse what is none."""

from __future__ import annotations

import pytest

from whystuck.cli import main


@pytest.mark.parametrize(
    "words",
    [
        ["trace", "start", "--duration", "nan"],
        ["trace", "start", "--timeout", "NaN"],
        ["trace", "list", "--node-timeout", "nan"],
        ["trace", "whatif", ".", "--faster", "nan"],
        ["trace", "diff", ".", ".", "--threshold", "-nan"],
        ["switch", "set", "--timeout", "nan"],
        ["run", "--hold", "nan", "--", "true"],
    ],
)
def test_nan_is_wrong_usage(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    error = capfd.readouterr().err.splitlines()
    assert len(error) == 2
    assert "nan' is no number" in error[0].lower()
    assert error[1].startswith("hint: ")


def test_numbers_keep_their_bounds(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "start", "--duration", "0"]) == 2
    assert "0.001<=x<=600" in capfd.readouterr().err
