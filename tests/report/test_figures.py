from __future__ import annotations

import pytest

from whystuck.evidence.ranks import parse_ranks
from whystuck.report.figures import format_detail, format_duration, format_measure
from whystuck.report.stacks import label_ranks
from whystuck.safe_text.escaping import show_line


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.42, "0.4 s"), (3, "3 s"), (43.2, "43 s"), (59.6, "1 m 0 s"), (761, "12 m 41 s"),
        (10_925, "3 h 2 m"), (float("nan"), "an unknown time"),
    ],
)  # fmt: skip
def test_duration_reads_well(seconds: float, expected: str) -> None:
    assert format_duration(seconds) == expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("lost_ms", 41.0, "lost 41 ms"),
        ("step_share_pct", 12.345, "step share 12.35 %"),
        ("written_bytes", 123456789.0, "written 123456789 bytes"),
        ("write_mb_per_s", 0.5, "write 0.5 MB/s"),
        ("steps", 7, "steps 7"),
        ("lost_ms", float("inf"), "lost unknown ms"),
    ],
)
def test_measure_carries_its_unit(name: str, value: float, expected: str) -> None:
    assert format_measure(name, value) == expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("phase", "backward", "phase: backward"),
        ("pair", [1, 2], "pair: [1, 2]"),
        ("shapes", {"0": [41], "1": [40]}, "shapes: 0: [41], 1: [40]"),
        ("is_alive", True, "is alive: yes"),
    ],
)
def test_detail_is_one_short_text(name: str, value: object, expected: str) -> None:
    assert format_detail(name, value) == expected


def test_long_text_is_cut() -> None:
    assert show_line("x" * 50, 10) == "x" * 9 + "…"


def test_tab_becomes_spaces_and_letters_of_all_languages_stay() -> None:
    assert show_line("a\tü漢🙂") == "a    ü漢🙂"


@pytest.mark.parametrize("text", ["", "x", "3-", "-", "1-x", "1,,2"])
def test_damaged_rank_set_gives_what_is_readable(text: str) -> None:
    assert parse_ranks(text) <= {1, 2, 3}


def test_long_rank_set_is_named_by_its_size() -> None:
    assert label_ranks(frozenset(range(0, 100, 2))) == "50 ranks (0,2,4,6,8,…)"
