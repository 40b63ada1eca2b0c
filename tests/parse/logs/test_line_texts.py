"""Progress is found at words alone; the patterns, tried everywhere, tell the same."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whystuck.parse.logs.lines.line_texts import read_text

PROGRESS = re.compile(
    r"\b(?:step|iteration|iter|epoch|global_step)\b.{0,3}\d|\bloss\b['\"]?\s?[=:]?\s?\d|\d+%\|",
    re.IGNORECASE,
)
FINITE = re.compile(r"\bloss\b['\"]?\s?[=:]?\s?[-+]?\d", re.IGNORECASE)
NO_NUMBER = re.compile(r"\b(?:nan|inf|infinity)\b", re.IGNORECASE)
WORDS = st.sampled_from(
    [
        *"  =:|%'\"_,.-+157x",
        *("step", "Step", "global_step", "iteration", "ITER", "epoch", "loss", "lm loss", "gloss"),
        *(
            "nan",
            "NaN",
            "inf",
            "Infinity",
            "banana",
            "info",
            "12%|",
            "%|",
            "losstep",
            "\u0130",
            " is ",
        ),
    ]
)


@settings(max_examples=2000, deadline=None)
@given(st.lists(WORDS, max_size=14).map("".join))
def test_progress_is_what_the_patterns_tell(text: str) -> None:
    told = read_text(text, False, False)

    is_progress = PROGRESS.search(text) is not None
    assert told.is_progress == is_progress
    is_finite = is_progress and FINITE.search(text) is not None
    assert told.is_finite == (is_finite and NO_NUMBER.search(text) is None)


@pytest.mark.parametrize(
    "text", ["loss " * 4000, "step " * 4000, "%|" * 8000, "loss 1 " + "na" * 9000]
)
def test_lines_of_nothing_else_take_no_longer(text: str) -> None:
    assert read_text(text, False, False).is_progress == text.startswith("loss 1")
