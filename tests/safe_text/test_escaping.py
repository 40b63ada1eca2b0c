"""What is invisible or active is made visible, and the rest stays."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.each import each
from tests.safe_text.baits import BAITS
from tests.safe_text.pages import parse_page, render_page

from whystuck.safe_text import markdown
from whystuck.safe_text.escaping import (
    escape_cell,
    escape_json,
    escape_line,
    escape_lines,
    show_line,
)
from whystuck.safe_text.values import encode_json

ACTIVE = "`*_[]()<>!#|\\~$&;:/@.-+=\"' \t\nahtpw1\x1b\u202e"
TEXTS = st.one_of(
    st.text(max_size=60),
    st.text(alphabet=ACTIVE, max_size=40),
    st.lists(st.sampled_from(BAITS), min_size=1, max_size=3).map("".join),
)
UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def is_visible(text: str) -> bool:
    return all(unicodedata.category(char) not in UNSEEN for char in text)


def letters(text: str) -> str:
    return "".join(escape_line(text).split())


@given(TEXTS)
def test_a_line_has_visible_letters_only(text: str) -> None:
    shown = escape_line(text)

    assert is_visible(shown)
    assert escape_line(shown) == shown
    assert is_visible(escape_lines(text).replace("\n", ""))


def test_what_cannot_be_seen_is_written_as_a_number() -> None:
    assert escape_line("a\x1b[2J\u202eb\u200b\U000e0041") == "a\\x1b[2J\\u202eb\\u200b\\U000e0041"
    assert escape_line("größe 日本 ⚠️ ▁the é") == "größe 日本 ⚠️ ▁the é"
    assert escape_line("a\ufe0fb\u3164") == "a\\ufe0fb\\u3164"


def test_a_long_line_is_cut_after_its_secrets_are_hidden() -> None:
    shown = show_line("password=" + "xy" * 15 + " " + "y" * 3000, limit=20)

    assert shown == "password=<secret> y…"


@given(TEXTS)
def test_json_reads_back_what_was_written(text: str) -> None:
    written = escape_json(json.dumps({"text": text}, ensure_ascii=False, indent=2))

    assert json.loads(written) == {"text": text}
    assert is_visible(written.replace("\n", ""))


def test_json_of_values_has_no_secret_in_any_place() -> None:
    value = {
        "command": ["train.py", "--hub_token", "pa55word"],
        "environment": {"HF_TOKEN": "pa55word", "RANK": "3"},
        "pa\ud800": [float("nan"), {"deep": "api_key=pa55word"}],
        "x": float("inf"),
    }

    written = encode_json(value)

    assert b"pa55word" not in written
    assert json.loads(written) == {
        "command": ["train.py", "--hub_token", "<secret>"],
        "environment": {"HF_TOKEN": "<secret>", "RANK": "3"},
        "pa?": [None, {"deep": "api_key=<secret>"}],
    }


@given(TEXTS)
def test_no_cell_is_a_formula(text: str) -> None:
    shown = escape_cell(text)

    assert is_visible(shown)
    # In many countries cells are parted at semicolons, and a comma is no end of one.
    for cell in shown.split(";"):
        assert cell[:1] not in "=+-@＝＋－＠" or cell.strip("+-.0123456789eE") in ("", "inf", "nan")  # noqa: RUF001


def test_numbers_in_cells_stay_numbers() -> None:
    assert [escape_cell(text) for text in ("-1", "+2.5e-3", "-", "-1+1", "-inf")] == [
        "-1", "+2.5e-3", "-", "'-1+1", "-inf",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a;=1+1;b", "a;'=1+1;b"),
        (";@SUM(A1)", ";'@SUM(A1)"),
        ("-1;-2;+3", "-1;-2;+3"),
        ("a; -b", "a; -b"),
        ("=1;=2", "'=1;'=2"),
    ],
)
def test_no_part_behind_a_semicolon_is_a_formula(text: str, shown: str) -> None:
    assert escape_cell(text) == shown


PLACES = ["{}", "| a | b |\n|---|---|\n| {} | x |", "- **why:** {}", "### `x` {}", "> {}"]


@settings(max_examples=300, deadline=None)
@given(text=TEXTS, place=st.sampled_from(PLACES), is_code=st.booleans())
def test_markdown_shows_the_text_and_nothing_acts(text: str, place: str, *, is_code: bool) -> None:
    check_markdown(text, place, markdown.code if is_code else markdown.escape)
    assert set(render_page(markdown.strong(text)).elements) <= {"p", "strong", "code"}


@pytest.mark.parametrize("place", PLACES)
@each("bait", BAITS, ascii)
def test_bait_does_nothing_in_markdown(bait: str, place: str) -> None:
    check_markdown(bait, place, markdown.escape)
    check_markdown(bait, place, markdown.code)


def check_markdown(text: str, place: str, quote: object) -> None:
    assert callable(quote)
    page = render_page(place.format(quote(text)))
    plain = render_page(place.format("word"))

    extra = page.elements - plain.elements
    assert set(extra) <= {"code"}, (text, quote(text))
    assert not page.addresses
    missing = plain.elements - page.elements
    assert set(missing) <= {"p"} or not text.strip(), (text, quote(text), missing)
    if quote is markdown.code:
        assert letters(text) in "".join(page.text.split())
    else:
        # The backticks of its code are gone.
        assert letters(text).replace("`", "") in "".join(page.text.replace("`", "").split())


@given(TEXTS)
def test_a_block_of_code_has_nothing_but_its_lines(text: str) -> None:
    page = render_page(f"before\n\n{markdown.fence(text)}\n\nafter")

    assert set(page.elements) == {"p", "pre", "code"}
    assert escape_lines(text) in page.text


def test_the_parser_of_the_tests_sees_what_acts() -> None:
    page = render_page("www.x.com <b onclick=x>y</b> ![z](http://q) <!-- c -->")

    assert page.elements["a"] == page.elements["b"] == page.elements["img"] == 1
    assert page.elements["!--"] == 1
    assert parse_page("<script>no</script>yes").text == "yes"
