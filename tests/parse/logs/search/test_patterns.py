"""Patterns that no engine could run safely are refused; fixed texts are really in each match."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystuck.parse.errors import ParseError
from whystuck.parse.logs.search.patterns import MIN_LITERAL, check_pattern, find_literals


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"foo(?=bar)", "look-ahead"),
        (r"(?<!foo)barbar", "look-behind"),
        (r"(foo)bar\1", "back-reference"),
        (r"(?P<a>foo)bar(?P=a)", "back-reference"),
        (r"(foo)?(?(1)bar|barr)", "conditions"),
        (r"(?>foo)bar", "atomic"),
        (r"foo++bar", "possessive"),
        (r"(?:a+)+b", "repeat inside a repeat"),
        (r"(?:a*ba*)*c", "repeat inside a repeat"),
        (r"(?:\w+\s?)*:", "repeat inside a repeat"),
        (r"(?:\[[^x]*\])*c", "repeat inside a repeat"),
        (r"fooo{1001}", "at most"),
        (r"foo\nbar", "line break"),
        (r"foo[\r\n]bar", "line break"),
        (r"(?x) f o o", "verbose"),
        (r"[[a]foobar", "not a regular expression: Possible nested set"),
        (r"foo(", "not a regular expression"),
        ("fo\N{LATIN SMALL LETTER O WITH DIAERESIS}bar", "ASCII"),
        ("a" * 1001, "at most"),
    ],
)
def test_unsafe_pattern_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(ParseError, match=reason):
        check_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?:[a-z]\w*\.)*Error",
        r"(?:\[[^\]]*\])*Error",
        r"[^\n]*error here",
        r"(?:a{3})+error",
        r"(?:\[[^\]]{0,80}\]:?\s{0,2}){0,4}error",
    ],
)
def test_safe_pattern_is_taken(pattern: str) -> None:
    check_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        (r"Out of memory: \d+", {b"Out of memory: "}),
        (r"fo+ \d+ barbar", {b" barbar"}),
        (r"(?:alpha|beta!) gam", {b"alpha gam", b"beta! gam"}),
        (r"(?:alpha \d|beta! \d)", {b"alpha ", b"beta! "}),
        (r"[Kk]ernel", {b"Kernel", b"kernel"}),
        (r"(?:ERROR)?warn", {b"ERRORwarn", b"warn"}),
        (r"(?:ERROR)*warn", {b"warn"}),
        (r"(?:ERROR)+\dok", {b"ERROR"}),
        (r"^(?P<name>OSError)(?::|$)", {b"OSError", b"OSError:"}),
    ],
)
def test_fixed_texts_of_a_pattern(pattern: str, texts: set[bytes]) -> None:
    assert set(find_literals(pattern).texts) == texts


@pytest.mark.parametrize("pattern", [r"\d+", r"abc", r"(?:alpha|b)", r"(?:alpha)?", r"[a-z]{8}"])
def test_pattern_without_a_fixed_text_is_refused(pattern: str) -> None:
    with pytest.raises(ParseError, match="fixed text"):
        find_literals(pattern)


@pytest.mark.parametrize("pattern", [r"(?i)alpha", r"(?i:alpha)\d"])
def test_case_is_told(pattern: str) -> None:
    assert find_literals(pattern).caseless


WORDS = st.sampled_from(["alpha", "BE", "ga", "[xy]", r"\d", ".", "x?", "^", "$", r"\b"])
PATTERNS = st.recursive(
    WORDS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["?", "*", "+", "{2}", "{0,2}", "{1,3}?"])).map(
            lambda part: f"(?:{part[0]}){part[1]}"
        ),
        inner.map(lambda part: f"(?i:{part})"),
    ),
    max_leaves=8,
)


@given(PATTERNS, st.data())
def test_each_match_holds_a_fixed_text(pattern: str, data: st.DataObject) -> None:
    # GIVEN a made-up pattern that can be searched for
    try:
        check_pattern(pattern)
        literals = find_literals(pattern)
    except ParseError:
        return

    # WHEN it matches a text that was made from it
    match = re.search(
        pattern.encode(), data.draw(st.from_regex(pattern.encode())).replace(b"\n", b"")
    )

    # THEN one of the fixed texts is there
    assert all(len(text) >= MIN_LITERAL for text in literals.texts)
    if match:
        held = match[0].lower() if literals.caseless else match[0]
        texts = [text.lower() if literals.caseless else text for text in literals.texts]
        assert any(text in held for text in texts)
