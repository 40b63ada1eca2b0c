"""Where the lines of a block are."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystuck.parse.logs.search.raw_lines import LineTable

TEXTS = st.text("ab\r\n", max_size=60).map(str.encode)


@given(TEXTS, st.data())
def test_line_feeds_are_counted_from_any_place(data: bytes, draw: st.DataObject) -> None:
    begin = draw.draw(st.integers(0, len(data)))
    end = draw.draw(st.integers(begin, len(data)))

    assert LineTable(data).count_feeds(begin, end) == data.count(b"\n", begin, end)


@given(TEXTS)
def test_each_place_has_the_line_that_a_plain_search_finds(data: bytes) -> None:
    starts, ends = LineTable(data).find_lines(np.arange(len(data)))

    # The end of a line is one of its places.
    expected = [match.span(1) for match in re.finditer(rb"([^\r\n]*)(?:[\r\n]|$)", data)]
    found = [
        next((start, end) for start, end in expected if start <= place <= end)
        for place in range(len(data))
    ]
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == found


@pytest.mark.parametrize("data", [b"", b"no end", b"\n"])
def test_short_data_has_its_lines(data: bytes) -> None:
    table = LineTable(data)

    assert table.count_feeds(0, len(data)) == data.count(b"\n")
    assert [one.tolist() for one in table.find_lines(np.array([0]))] == [[0], [len(data.rstrip())]]
