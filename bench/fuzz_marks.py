"""Feeds the reader of marks with what a coverage-guided fuzzer makes up.

Only `ParseError` may come out. Needs `pip install --group fuzz`; options are those of libFuzzer, as
for `fuzz_fr.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.fuzzing import fuzz, instrumented

with instrumented("whystuck.parse", "whystuck.collect.mark_totals"):
    from whystuck.collect.mark_totals import parse_mark_totals
    from whystuck.parse.errors import ParseError
    from whystuck.parse.ops.clocks import choose_newest
    from whystuck.parse.ops.header import LogFile
    from whystuck.parse.ops.marks import cut_marks, merge_marks, parse_mark_states, parse_marks

from tests.parse.ops.mark_files import MarkRing

DEFAULTS = ("-max_len=8000", "-rss_limit_mb=4000", "-malloc_limit_mb=500", "-timeout=20")


def test_one_input(data: bytes) -> None:
    """Read an input, and join it with itself."""
    if any(total.seconds < 0 or total.ended < 1 for total in parse_mark_totals(data)):
        raise AssertionError("a phase that took no time")
    try:
        marks = parse_mark_states(data)
        state, following = cut_marks(data, 1)
        one = parse_marks(data)
    except ParseError:
        return
    if len(one) != len(one.numbers):
        raise AssertionError("marks without a number")
    if following < 1:
        raise AssertionError("what is asked for next has no number")
    if state and len(parse_mark_states(state)) > len(one):
        raise AssertionError("what was cut has more marks than there are")
    files, _ = choose_newest(
        [LogFile(0, "a", marks), LogFile(1, "b", marks), LogFile(1, "c", marks)]
    )
    table = merge_marks(files)
    if len(table) != 2 * len(marks):
        raise AssertionError(f"{len(table)} rows from two files of {len(marks)}")
    if ((table.end_ns > 0) & (table.end_ns < table.begin_ns)).any():
        raise AssertionError("a mark ends before it begins")


def write_seeds(folder: Path) -> None:
    """Write files of all kinds to start from."""
    for number, count in enumerate((0, 3, 30)):
        ring = MarkRing(capacity=17, values_bytes=512)
        ring.switch(127, 1)
        for index in range(count):
            ring.mark(index % 8, f"name {index % 3}", step=index, takes_ns=index % 2 or None)
        ring.value(b"[")
        (folder / f"seed-{number}").write_bytes(ring.data())
        (folder / f"seed-{number}-states").write_bytes(2 * cut_marks(ring.data(), 1)[0])


if __name__ == "__main__":
    fuzz(test_one_input, write_seeds, DEFAULTS)
