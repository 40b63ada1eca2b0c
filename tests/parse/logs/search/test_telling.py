"""Few lines of progress are looked at: the last ones, and those before lines that may matter."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whystuck.parse.logs.search.raw_lines import LineTable
from whystuck.parse.logs.search.scan import LogPatterns, Piece
from whystuck.parse.logs.signatures import load_signatures

OURS = load_signatures()
MARKS = (b"Traceback (most recent", b" spawned with command")
PATTERNS = LogPatterns(OURS, "numpy", MARKS)
KEPT = {"progress": 6, "census": 6, "timing": 256}
KINDS = [one.kind for one in OURS]
LINES = {
    kind: [one.example.encode() for one in OURS if one.kind == kind and one.example]
    for kind in KEPT
}
OTHERS = [one.example.encode() for one in OURS if one.kind not in LINES and one.example]
LOOKALIKES = [one.lookalike.encode() for one in OURS if one.kind in LINES and one.lookalike]


def pick_plainly(data: bytes) -> list[Piece]:
    """One line after the other: slow, and plain enough to be trusted."""
    picked: list[Piece] = []
    waiting: dict[int, deque[Piece]] = {}

    def let_go() -> None:
        picked.extend(sorted(piece for kind in waiting.values() for piece in kind))
        waiting.clear()

    for start, end, owners in PATTERNS.find_pieces(data, len(data)):
        kinds = {KINDS[owner] for owner in owners}
        is_marked = any(mark in data[start:end] for mark in MARKS)
        if is_marked or not kinds or not kinds <= set(LINES):
            let_go()
            picked.append((start, end, owners))
        elif kinds != {"census"} or PATTERNS.find_first(owners, data[start:end]):
            waiting.setdefault(min(owners), deque(maxlen=KEPT[KINDS[min(owners)]])).append(
                (start, end, owners)
            )
    let_go()
    return picked


def pick(data: bytes) -> list[Piece]:
    pieces = PATTERNS.find_telling(data, LineTable(data))
    return [(piece.start, piece.end, piece.owners) for piece in pieces]


PARTS = st.one_of(
    st.sampled_from([line for lines in LINES.values() for line in lines]),
    st.sampled_from([*LOOKALIKES, *MARKS, b"step 12 loss 2.1", b""]),
    st.sampled_from(OTHERS),
    st.sampled_from(["\n", "\r", "\r\n", " "]).map(str.encode),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(PARTS, st.integers(1, 9), st.sampled_from([b"\n", b"\r", b" "]))))
def test_the_same_are_picked_as_one_line_after_the_other(
    parts: list[tuple[bytes, int, bytes]],
) -> None:
    data = b"".join((part + end) * times for part, times, end in parts)

    assert pick(data) == pick_plainly(data)


@pytest.mark.parametrize("kind", ["progress", "census"])
def test_the_last_ones_before_a_failure_and_the_last_of_all_are_picked(kind: str) -> None:
    line, failure = LINES[kind][0] + b"\n", OTHERS[0] + b"\n"

    places = [start for start, _, _ in pick(line * 40 + failure + line * 40)]

    # THEN those at the end of each run are there, and the failure
    behind = 40 * len(line) + len(failure)
    assert places == [
        *range(34 * len(line), 41 * len(line), len(line)),
        *range(behind + 34 * len(line), behind + 40 * len(line), len(line)),
    ]
