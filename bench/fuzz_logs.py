"""Feeds the reader of logs with what a coverage-guided fuzzer makes up.

Nothing may come out but tables, and they may not depend on how the log is cut into blocks. Needs
`pip install --group fuzz`; options are those of libFuzzer, as for `fuzz_fr.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.fuzzing import fuzz, instrumented

with instrumented("whystuck.parse"):
    from whystuck.parse.logs.compiled import LogTables
    from whystuck.parse.logs.log_inputs import LogInput
    from whystuck.parse.logs.owners.names import read_log_name
    from whystuck.parse.logs.parts import LogPart
    from whystuck.parse.logs.reader import read_log
    from whystuck.parse.logs.tables import join_logs

from tests.logs.cases import all_cases

DEFAULTS = ("-max_len=20000", "-rss_limit_mb=4000", "-malloc_limit_mb=500", "-timeout=20")
TABLES = LogTables(engine="numpy")
NAMES = ("train.log", "rank-3.log", "n0/dmesg.txt", "attempt_1/2/stderr.log")


def outline(part: LogPart) -> tuple[object, ...]:
    """Return what must not depend on how a log is cut."""
    return (
        [(event.signature, event.row, event.count) for event in part.events],
        [(trace.type, trace.row, trace.last_row, trace.message) for trace in part.traces],
        [(seen.row, seen.rank, seen.code, seen.signal) for seen in part.exits],
        [(fatal.row, fatal.reason, len(fatal.threads)) for fatal in part.fatals],
        part.boot,
        part.rows,
        part.size,
    )


def test_one_input(data: bytes) -> None:
    """Read an input whole and in blocks, and join it with itself."""
    choice, text = data[:2].ljust(2, b"\0"), data[2:]
    whole = read_log(text, TABLES)
    cut = read_log(text, TABLES, block=1 + choice[0] * 7)
    # A log without any line end is cut into pieces when it is very long; these are short.
    if outline(whole) != outline(cut):
        raise AssertionError("the blocks of a log change what it tells")
    names = (NAMES[choice[1] % len(NAMES)], "other.log")
    sources = [
        LogInput(name, part, read_log_name(name))
        for name, part in zip(names, (whole, cut), strict=True)
    ]
    join_logs(sources, TABLES.signatures)


def write_seeds(folder: Path) -> None:
    """Write the logs of the corpus to start from."""
    for case in all_cases():
        for number, file in enumerate(case.truth.files):
            text = (case.folder / file.name).read_bytes()
            (folder / f"{case.name}-{number}").write_bytes(b"\x10\0" + text)


if __name__ == "__main__":
    fuzz(test_one_input, write_seeds, DEFAULTS)
