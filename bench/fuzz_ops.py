"""Feeds the reader of op logs with what a coverage-guided fuzzer makes up.

Only `ParseError` may come out. Needs `pip install --group fuzz`; options are those of libFuzzer, as
for `fuzz_fr.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.fuzzing import fuzz, instrumented

with instrumented("whystuck.parse"):
    from whystuck.parse.errors import ParseError
    from whystuck.parse.ops.clocks import choose_newest
    from whystuck.parse.ops.header import LogFile
    from whystuck.parse.ops.log import parse_op_log
    from whystuck.parse.ops.table import merge_op_logs

from tests.parse.ops.op_logs import SITE, Ring

DEFAULTS = ("-max_len=16000", "-rss_limit_mb=4000", "-malloc_limit_mb=500", "-timeout=20")


def test_one_input(data: bytes) -> None:
    """Read an input, and join it with itself."""
    try:
        log = parse_op_log(data)
    except ParseError:
        return
    files, _ = choose_newest([LogFile(0, "a", log), LogFile(1, "b", log), LogFile(1, "c", log)])
    ops = merge_op_logs(files)
    if len(ops) != 2 * len(log):
        raise AssertionError(f"{len(ops)} rows from two logs of {len(log)}")


def write_seeds(folder: Path) -> None:
    """Write logs of all kinds to start from."""
    for number, count in enumerate((0, 3, 30)):
        ring = Ring(capacity=16, values_bytes=2048)
        ring.group()
        for index in range(count):
            ring.op(line=index % 3)
            ring.op("send", peer=1, tag=index % 2, takes_ns=None)
            ring.op("all_to_all_base", in_splits=[1, 3], out_splits=[2, 2])
        ring.value(SITE, b"[")
        (folder / f"seed-{number}").write_bytes(ring.data())


if __name__ == "__main__":
    fuzz(test_one_input, write_seeds, DEFAULTS)
