"""Raw memory timelines of torch's memory profiler."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tracing.data import find_traces

from whystuck.parse.errors import ParseError
from whystuck.parse.traces.memory_timeline import CATEGORIES, parse_memory_timeline
from whystuck.read.traces.files import read_memory_timeline_file

REAL = "hta_memory_timeline/memory_timeline.raw.gz"


def test_real_timeline_equals_a_plain_walk_over_its_events() -> None:
    path = find_traces() / REAL
    with gzip.open(path) as stream:
        events: list[list[int]] = json.load(stream)

    timeline = read_memory_timeline_file(path)

    times: list[int] = []
    sizes: list[list[int]] = []
    for time, _, change, category in events:
        if not times or time != times[-1]:
            times.append(time)
            sizes.append(list(sizes[-1]) if sizes else [0] * len(CATEGORIES))
        sizes[-1][category] += change
    assert len(timeline) == len(times) == 7721
    assert timeline.sizes.tolist() == sizes
    assert timeline.time_ns.tolist()[1:] == times[1:]
    assert timeline.time_ns[0] == min(time for time in times if time > 0)
    assert timeline.peak_bytes == max(map(sum, sizes)) == 3_082_832_104
    assert timeline.sizes.min() == 0


def test_events_of_one_time_are_one_point() -> None:
    raw = [[-1, 1, 100, 0], [-1, 1, 50, 7], [7, 2, 10, 4], [7, 3, -10, 4], [7, 3, 10, 3]]

    timeline = parse_memory_timeline(json.dumps(raw).encode())

    assert timeline.time_ns.tolist() == [7, 7]
    assert timeline.sizes[:, [0, 3, 4, 7]].tolist() == [[100, 0, 0, 50], [100, 10, 0, 50]]


def test_empty_timeline_has_no_points() -> None:
    timeline = parse_memory_timeline(b"[]")

    assert (len(timeline), timeline.peak_bytes, timeline.sizes.shape) == (0, 0, (0, 8))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[[1, 2, 3]]",
        b"[[1, 2, 3, 8]]",
        b"[[1, 5, 3, 0]]",
        b"[[1, 2, 3, -1]]",
        b"[[1, 2, 4611686018427387904, 0]]",
        b"[[99999999999999999999, 2, 3, 0]]",
        b"[" * 100_000,
    ],
)
def test_other_content_is_told(content: bytes) -> None:
    with pytest.raises(ParseError):
        parse_memory_timeline(content)


_ROWS = st.lists(
    st.tuples(st.integers(-1, 9), st.integers(0, 5), st.integers(-9, 9), st.integers(-1, 8)),
    max_size=8,
)


@given(_ROWS)
@settings(deadline=None)
def test_any_rows_give_points_or_a_reason(rows: list[Any]) -> None:
    try:
        timeline = parse_memory_timeline(json.dumps(rows).encode())
    except ParseError:
        return
    assert len(timeline) == len(timeline.sizes)
    total = sum(change for _, _, change, _ in rows)
    assert int(np.sum(timeline.sizes[-1:])) == total


def test_file_that_is_none_is_told(tmp_path: Path) -> None:
    path = tmp_path / "memory_timeline.raw.json.gz"
    path.write_bytes(gzip.compress(b"no"))

    with pytest.raises(ParseError):
        read_memory_timeline_file(path)
