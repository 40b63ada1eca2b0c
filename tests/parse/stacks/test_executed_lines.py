"""The file of executed lines: what a writer left is read, and what is broken is told."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystuck.evidence.ops.executed_lines import ExecutedLine
from whystuck.parse.errors import ParseError
from whystuck.parse.stacks.executed_lines import parse_executed
from whystuck.probe.lines.file import (
    ENTRY_BYTES,
    HEADER_BYTES,
    NAMES_BYTES,
    SETTRACE,
    THREAD_BYTES,
    LineFile,
)
from whystuck.probe.lines.recorder import ThreadLines

FIRST_RING = HEADER_BYTES + NAMES_BYTES + THREAD_BYTES


def _write(path: Path, lines: int) -> bytearray:
    """Write so many lines of one function with the probe's own code."""
    file = LineFile(str(path), 10, SETTRACE)
    number = file.add_code(_write.__code__)
    at = file.add_thread()
    assert at == FIRST_RING
    ring = ThreadLines(file, at)
    for line in range(1, lines + 1):
        ring.put(number, line)
    file.tell_costs(400.0, 200.0)
    return bytearray(path.read_bytes())


@pytest.fixture
def data(tmp_path: Path) -> bytearray:
    return _write(tmp_path / "lines", 25)


def test_last_lines_come_in_their_order(data: bytearray) -> None:
    read = parse_executed(bytes(data), rank=3, artifact="n0/rank-3/executed.lines.gz")
    assert (read.rank, read.method, read.capacity, read.line_ns) == (3, "settrace", 10, 400.0)
    (thread,) = read.threads
    current = threading.current_thread()
    assert (thread.name, thread.native_id) == (current.name, current.native_id)
    assert (thread.is_main, thread.count, read.count) == (True, 25, 25)
    assert thread.lines == tuple(ExecutedLine(__file__, line, "_write") for line in range(16, 26))


def test_entry_that_is_half_written_is_left_out(data: bytearray) -> None:
    at = FIRST_RING + 5 * ENTRY_BYTES
    data[at : at + 8] = (36).to_bytes(8, "little")
    (thread,) = parse_executed(bytes(data), rank=0).threads
    assert [line.line for line in thread.lines] == [16, 17, 18, 19, 20, 21, 22, 23, 24]


def test_function_that_is_not_there_is_unknown(data: bytearray) -> None:
    at = FIRST_RING + 5 * ENTRY_BYTES + 8
    data[at : at + 4] = (99).to_bytes(4, "little")
    (thread,) = parse_executed(bytes(data), rank=0).threads
    assert thread.lines[-1] == ExecutedLine("?", 25, "?")


@pytest.mark.parametrize("size", [0, 7, 8, 80, 4096, HEADER_BYTES + NAMES_BYTES])
def test_file_that_is_cut_off_is_told(data: bytearray, size: int) -> None:
    with pytest.raises(ParseError):
        parse_executed(bytes(data[:size]), rank=0)


@given(
    patches=st.lists(
        st.tuples(st.integers(0, HEADER_BYTES + 300), st.binary(min_size=1, max_size=8)),
        max_size=8,
    )
)
def test_bytes_of_anybody_are_read_or_refused(
    patches: list[tuple[int, bytes]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = _write(tmp_path_factory.mktemp("lines") / "lines", 3)
    for at, patch in patches:
        data[at : at + len(patch)] = patch
    try:
        read = parse_executed(bytes(data), rank=0)
    except ParseError:
        return
    assert all(len(thread.lines) <= read.capacity for thread in read.threads)
