"""Events are put into a trace while it is copied, however it is cut into pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystuck.tracing.overlay import find_origin, insert_events

EVENT = {"ph": "X", "name": "new", "ts": 1_700_000_000_000_000_123, "dur": 2_001}


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    return [*pieces, data[at:]]


@given(
    st.lists(st.integers(1, 40), max_size=30),
    st.sampled_from(
        [
            {"traceEvents": []},
            {"a": "traceEvents", "b": [1], "traceEvents": [{"x": 1}], "z": 2},
            {"long": "y" * 600, "traceEvents": [{"x": 1}, {"traceEvents": [3]}]},
            [{"x": 1}],
            [],
        ]
    ),
    st.sampled_from([None, 2]),
)
def test_nothing_else_changes(sizes: list[int], root: Any, indent: int | None) -> None:
    data = json.dumps(root, indent=indent).encode()

    made = json.loads(b"".join(insert_events(cut(data, sizes), [EVENT])))

    events = made if isinstance(made, list) else made.pop("traceEvents")
    old = root if isinstance(root, list) else root["traceEvents"]
    assert events[0]["name"] == "new"
    assert events[1:] == old
    if isinstance(root, dict):
        assert made == {key: value for key, value in root.items() if key != "traceEvents"}


def test_times_keep_all_digits() -> None:
    text = b"".join(insert_events([b"[]"], [EVENT])).decode()

    assert '"ts": 1700000000000000.123, "dur": 2.001' in text


def test_what_is_no_trace_is_refused() -> None:
    with pytest.raises(ValueError, match="traceEvents"):
        list(insert_events([b'{"a": ', b"1}"], [EVENT]))


def test_times_count_from_the_base_time_where_there_is_one() -> None:
    pieces = [b'{"baseTimeNano', b'seconds": 17', b"00, ", b'"traceEvents": []}']

    assert find_origin(pieces, 1700) == 1700
    assert find_origin([b'{"traceEvents": []}'], 1700) == 0
