"""Lines that a terminal cut at its width are read as they were; rows keep their numbers."""

from __future__ import annotations

import pytest
from tests.diagnose.logs.jobs import timeout
from tests.parse.logs.jobs import read_job

from whystuck.parse.logs.lines.wrapped import find_width, join_wrapped
from whystuck.parse.logs.reader import read_log

WAITS = "".join(timeout(rank) for rank in (0, 1, 2))


def cut(text: str, width: int) -> str:
    """Cut lines as a terminal of a width does that somebody copies from."""
    return "".join(
        "".join(f"{line[at : at + width]}\n" for at in range(0, max(1, len(line)), width))
        for line in text.splitlines()
    )


@pytest.mark.parametrize("width", [80, 100, 120, 131])
def test_cut_lines_are_joined(width: int) -> None:
    found = read_job(paste=f"why does it hang\n{cut(WAITS, width)}\nthanks\n").logs.events

    assert [(one.rank, one.groups["seq"]) for one in found] == [(0, "812"), (1, "812"), (2, "812")]


def test_rows_are_those_of_the_text() -> None:
    text = cut(WAITS, 100)
    rows = [at for at, line in enumerate(text.splitlines(), 1) if line.startswith("[rank")]

    assert [one.row for one in read_job(paste=text).logs.events] == rows
    assert join_wrapped(text.encode(), 100).count(b"\n") == text.count("\n")


TABLE = "".join(f"| {n} N/A {n} C python | {n}MiB |".ljust(90) + "|\n" for n in range(6))


@pytest.mark.parametrize(
    "text",
    [
        WAITS,
        TABLE,
        f"[rank0]: step 1 {'x' * 80}\n" * 9,
        "".join(f"[rank{n}]: loss 1.{n}\n" for n in range(9)),
        f"{'=' * 80}\n[rank0]: {'=' * 71}\nstep\n[rank0]: {'=' * 71}\nstep\n",
        "",
    ],
)
def test_lookalike_is_left_as_it_is(text: str) -> None:
    assert find_width(text.encode()) == 0


@pytest.mark.parametrize("block", [1, 92, 323])
def test_cut_lines_are_joined_over_blocks(block: int) -> None:
    text = f"why does it hang\n{cut(WAITS, 100)}\nthanks\n".encode()
    whole, parts = read_log(text), read_log(text, block=block)

    assert [event.row for event in parts.events] == [event.row for event in whole.events]
    assert parts.rows == whole.rows
