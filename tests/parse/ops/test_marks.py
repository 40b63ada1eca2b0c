"""The reader of marks: what it reads of whole files, of torn ones, and of hostile ones."""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.parse.ops.mark_files import MARK, MarkRing
from tests.parse.ops.op_logs import BOOT_NS, HEADER_BYTES, MS, Ring

from whystuck.evidence.ops.marks import (
    BACKWARD,
    DATALOADER,
    FORWARD,
    KINDS,
    STEP,
    USER,
    MarkNote,
    slice_ranks,
)
from whystuck.parse.errors import ParseError
from whystuck.parse.ops.clocks import choose_newest
from whystuck.parse.ops.header import LogFile
from whystuck.parse.ops.marks import (
    RankMarks,
    cut_marks,
    join_all,
    merge_marks,
    parse_mark_states,
    parse_marks,
)
from whystuck.pipeline import read_evidence


def _make(rank: int = 0, **more: int | str | dict[str, int]) -> MarkRing:
    ring = MarkRing(rank=rank, **more)  # type: ignore[arg-type]
    ring.switch(127, 3)
    for step in range(3):
        ring.mark(DATALOADER, "next", step=step)
        ring.mark(FORWARD, "Model", step=step)
        ring.mark(BACKWARD, "backward", step=step, takes_ns=2 * MS)
        ring.mark(STEP, step=step, at_ns=ring.now_ns - 4 * MS, takes_ns=4 * MS)
    return ring.mark(DATALOADER, "next", step=3, takes_ns=None)


def _file(ring: MarkRing, artifact: str = "a") -> LogFile[RankMarks]:
    return LogFile(ring.rank, artifact, parse_marks(ring.data()))


def test_marks_of_ranks_are_one_table_by_rank_and_begin() -> None:
    marks = merge_marks([_file(_make(2)), _file(_make(0))])
    assert len(marks) == 26
    assert marks.rank.tolist() == [0] * 13 + [2] * 13
    assert [KINDS[kind] for kind in marks.kind[:4]] == ["dataloader", "step", "forward", "backward"]
    assert marks.names == ("", "next", "Model", "backward")
    assert [marks.names[name] for name in marks.name[:4]] == ["next", "", "Model", "backward"]
    assert marks.step.tolist()[:13] == [0] * 4 + [1] * 4 + [2] * 4 + [3]
    assert (marks.begin_ns[0], marks.end_ns[0]) == (BOOT_NS + 1000 * MS, BOOT_NS + 1001 * MS)
    assert (marks.end_ns == 0).tolist() == [*[False] * 12, True] * 2
    assert slice_ranks(marks) == {0: slice(0, 13), 2: slice(13, 26)}
    log = marks.logs[1]
    assert (log.rank, log.dropped, log.torn, log.generation, log.step) == (2, 0, 0, 1, 9)
    assert log.notes == (MarkNote(frozenset(range(7)), 0, 3, BOOT_NS + 1000 * MS),)


def test_word_that_switched_several_kinds_is_one_note() -> None:
    ring = MarkRing().switch(1, 4).switch(3, 4, 5).mark(STEP).switch(0, 6, 9)
    notes = parse_marks(ring.data()).notes
    assert [(note.kinds, note.generation, note.step) for note in notes] == [
        (frozenset({0, 1}), 4, 5),
        (frozenset(), 6, 9),
    ]


def test_marks_that_were_written_over_are_counted() -> None:
    ring = MarkRing(capacity=7)
    for step in range(20):
        ring.mark(STEP, step=step)
    marks = parse_marks(ring.data())
    assert marks.columns["step"].tolist() == list(range(13, 20))
    assert (marks.dropped, marks.torn) == (13, 0)
    marks = parse_marks(ring.data(), newest=3)
    assert marks.columns["step"].tolist() == [17, 18, 19]
    assert marks.dropped == 17


def test_mark_that_is_being_written_is_left_out() -> None:
    ring = MarkRing(capacity=7)
    for step in range(9):
        ring.mark(STEP, step=step)
    data = bytearray(ring.data())
    at = len(data) - 7 * MARK.size
    # The number of the next one, and the rest of the one before it.
    struct.pack_into("<Q", data, at + 2 * MARK.size, 10)
    marks = parse_marks(bytes(data))
    assert marks.columns["step"].tolist() == [3, 4, 5, 6, 7, 8]
    assert marks.torn == 1


def test_ranks_of_one_host_are_compared_to_the_nanosecond() -> None:
    # The wall clock was adjusted between the starts of the two.
    first = _make(0)
    other = _make(1, offset_ns=BOOT_NS + 5000, begin_ns=1500 * MS)
    marks = merge_marks([_file(first), _file(other)])
    assert (marks.begin_ns[marks.rank == 0] == marks.begin_ns[marks.rank == 1]).all()
    assert {log.clock for log in marks.logs} == {0}
    marks = merge_marks(
        [_file(first), _file(_make(1, host="n1", offset_ns=BOOT_NS + 3600 * 10**9))]
    )
    assert {log.clock for log in marks.logs} == {0, 1}


def test_evidence_has_ops_and_marks_by_one_clock(tmp_path: Path) -> None:
    for rank in (0, 1):
        ops = Ring(rank=rank, world=2, offset_ns=BOOT_NS + 7000)
        ops.group()
        ops.op(at_ns=1002 * MS)
        folder = tmp_path / f"rank-{rank}"
        folder.mkdir()
        (folder / "ops.ring.gz").write_bytes(gzip.compress(ops.data()))
        marks = _make(rank, world=2).data()
        (folder / "marks.ring.gz").write_bytes(gzip.compress(marks))
        (folder / "marks-attempt-0.ring.gz").write_bytes(gzip.compress(marks))
    (tmp_path / "rank-0" / "marks-4711").write_bytes(
        _make(0, end_ns=10**12, about={"pid": 9}).data()
    )
    (tmp_path / "rank-1" / "marks.ring").write_bytes(b"WSMARK01")
    evidence = read_evidence(tmp_path)
    assert (len(evidence.marks), len(evidence.ops)) == (26, 2)
    begin_ns = int(evidence.marks.begin_ns[(evidence.marks.kind == BACKWARD)][0])
    assert evidence.ops.enqueued_ns.tolist() == [begin_ns, begin_ns]
    told = {(gap.what, gap.reason.rpartition(": ")[2]) for gap in evidence.gaps}
    assert ("marks", "8 bytes have no header") in told
    assert ("rank-0/marks.ring.gz", "a newer file of marks of this rank is read") in told


@pytest.mark.parametrize("length", [0, 7, 8, 100, 511, 515])
def test_file_without_a_header_is_refused(length: int) -> None:
    with pytest.raises(ParseError):
        parse_marks(MarkRing().data()[:length])


@pytest.mark.parametrize(
    ("at", "form", "number"),
    [
        (12, "<I", 31),
        (12, "<I", 5000),
        (16, "<Q", 0),
        (40, "<Q", 1 << 40),
        (24, "<Q", 1 << 40),
        (32, "<Q", 1 << 40),
    ],
)
def test_header_that_makes_no_sense_is_refused(at: int, form: str, number: int) -> None:
    data = bytearray(_make().data())
    struct.pack_into(form, data, at, number)
    with pytest.raises(ParseError):
        parse_marks(bytes(data))


def test_names_that_cannot_be_read_are_unknown() -> None:
    ring = MarkRing()
    ring.value(b'{"name": 4}')
    ring.value(b"[" * 3000)
    ring.names += ["?", "?"]
    ring.mark(USER, "fine")
    ring.put(ring.now_ns, 0, 0, 1, USER)
    ring.put(ring.now_ns, 0, 0, 60000, USER)
    marks = parse_marks(ring.data())
    assert [marks.names[name] for name in marks.columns["name"]] == ["fine", "", ""]
    assert marks.lost_names == 2


def _check(data: bytes) -> RankMarks | None:
    try:
        marks = parse_marks(data)
    except ParseError:
        return None
    table = merge_marks(choose_newest([LogFile(0, "a", marks), LogFile(1, "b", marks)])[0])
    assert len(table) == 2 * len(marks)
    assert (table.begin_ns > 0).all()
    assert ((table.end_ns == 0) | (table.end_ns >= table.begin_ns)).all()
    assert (table.name < len(table.names)).all()
    assert (table.kind < len(KINDS)).all()
    assert (np.diff(table.begin_ns[table.rank == 0]) >= 0).all()
    return marks


@given(st.integers(0, 1 << 32))
def test_damaged_file_gives_marks_or_a_parse_error(seed: int) -> None:
    generator = random.Random(seed)
    data = bytearray(_make().data())
    for _ in range(generator.choice([1, 3, 30, 300])):
        end = generator.choice([128, 600, HEADER_BYTES + 200, len(data)])
        data[generator.randrange(8, end)] = generator.choice([0, 255, generator.randrange(256)])
    _check(bytes(data))
    _check(bytes(data[: generator.randrange(len(data))]))


def test_marks_that_are_too_far_apart_cost_no_memory_when_they_are_cut() -> None:
    """The header says that the ring has room for 2^40 of them, and two are of different rounds."""
    ring, capacity = MarkRing(capacity=17), 1 << 40
    for slot, number in ((5, 6), (0, capacity + 1)):
        ring.newest = number - 1
        ring.mark(FORWARD, "Model")
        ring.records[slot] = ring.records.pop((number - 1) % ring.capacity)
    data = bytearray(ring.data())
    struct.pack_into("<Q", data, 16, capacity)

    assert len(parse_marks(bytes(data))) == 2
    with pytest.raises(ParseError, match="too far apart"):
        cut_marks(bytes(data), 1)


FILE_BYTES = 10 * 1024 * 1024


def _make_states(count: int, **fields: Any) -> list[bytes]:
    """Make the states of a long job, each with one new mark, as small as they can be."""
    ring, states, first = MarkRing(capacity=63, values_bytes=0, **fields), [], 1
    for step in range(count):
        ring.mark(FORWARD, step=step)
        state, first = cut_marks(ring.data(), first)
        states.append(state)
    return states


def test_history_of_very_many_states_is_joined_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = _make_states(64)
    data = b"".join(states)
    data *= FILE_BYTES // len(data)
    joined: list[int] = []

    def count(parts: Sequence[RankMarks]) -> RankMarks:
        joined.append(len(parts))
        return join_all(parts)

    monkeypatch.setattr("whystuck.parse.ops.marks.join_all", count)
    tracemalloc.start()
    try:
        marks = parse_mark_states(data, 16)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert marks.columns["step"].tolist() == list(range(48, 64))
    assert len(joined) <= 2
    assert peak < 8 * len(data)


def test_marks_that_are_wanted_are_kept_when_states_are_joined_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("whystuck.parse.ops.marks._MANY", 3)
    data = b"".join(_make_states(60))
    assert parse_mark_states(data, 5).columns["step"].tolist() == list(range(55, 60))
    assert parse_mark_states(data, 100).columns["step"].tolist() == list(range(60))


@pytest.mark.parametrize(
    ("at", "form", "number"),
    [
        (16, "<Q", 1 << 63), (16, "<Q", 0), (12, "<I", 0), (12, "<I", 1), (40, "<Q", 0),
        (40, "<Q", 1 << 62), (32, "<Q", 1 << 62), (24, "<Q", 1 << 62), (0, "<Q", 7),
    ],
)  # fmt: skip
def test_history_with_a_state_of_nonsense_is_read_up_to_it(at: int, form: str, number: int) -> None:
    states = [bytearray(state) for state in _make_states(40)]
    struct.pack_into(form, states[20], at, number)
    marks = parse_mark_states(b"".join(states))
    steps = marks.columns["step"].tolist()
    assert steps[:20] == list(range(20))
    assert len(steps) <= 40
    assert marks.cut or len(steps) in (20, 21, 39, 40)


def test_reader_says_from_where_on_a_history_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "rank-0"
    folder.mkdir()
    data = b"".join(_make_states(30))
    (folder / "marks-000001.ring").write_bytes(data[:-3000])
    (folder / "marks-000002.ring").write_bytes(data[:4200] + b"x" * FILE_BYTES)
    evidence = read_evidence(tmp_path)
    assert evidence.marks.step.tolist() == list(range(29))
    reasons = [gap.reason for gap in evidence.gaps if gap.what == "marks"]
    assert len(reasons) == 2
    assert all("from one state on it is not read" in reason for reason in reasons)


def test_process_of_very_many_files_is_joined_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "rank-0"
    folder.mkdir()
    for number, state in enumerate(_make_states(300), start=1):
        (folder / f"marks-{number:06}.ring").write_bytes(state)
    joined: list[int] = []

    def count(parts: Sequence[RankMarks]) -> RankMarks:
        joined.append(len(parts))
        return join_all(parts)

    monkeypatch.setattr("whystuck.read.op_log_files.join_all", count)
    assert read_evidence(tmp_path).marks.step.tolist() == list(range(300))
    assert joined == [300]


def test_words_that_switched_are_no_marks_that_are_missing() -> None:
    ring = MarkRing().switch(1, 4).switch(3, 4)
    early, first = cut_marks(ring.data(), 1)
    late, _ = cut_marks(ring.mark(FORWARD, step=1).mark(FORWARD, step=2).data(), first)
    joined = join_all([parse_marks(early), parse_marks(late)])

    assert (len(joined), joined.dropped) == (2, 0)
