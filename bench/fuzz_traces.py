"""Feeds the reader of traces with what a coverage-guided fuzzer makes up.

Nothing may come out but a trace or a `ParseError`, the columns must fit each other, and where the
text is JSON, they may not depend on how it is cut. Needs `pip install --group fuzz`; options are
those of libFuzzer, as for `fuzz_fr.py`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.fuzzing import fuzz, instrumented

with instrumented("whystuck.parse"):
    from whystuck.evidence.traces.events import Detail, Trace
    from whystuck.parse.errors import ParseError
    from whystuck.parse.traces import reader
    from whystuck.parse.traces.reader import read_trace

from tests.tracing.data import make_event

DEFAULTS = ("-max_len=4000", "-rss_limit_mb=4000", "-malloc_limit_mb=500", "-timeout=20")
LARGE = 1 << 14


def read(text: bytes, piece: int, cut: int, detail: Detail) -> Trace | None:
    """Read a trace in pieces; None when it is none."""
    reader.PIECE_BYTES = piece
    parts = [text[at : at + cut] for at in range(0, len(text), cut)]
    try:
        return read_trace(parts, "fuzz", detail)
    except ParseError:
        return None


def is_json(text: bytes) -> bool:
    """Tell whether a text is sound; of a damaged one, pieces may save more or less."""
    try:
        json.loads(text.decode())
    except (ValueError, RecursionError):
        return False
    return True


def check(trace: Trace) -> None:
    """Raise when columns do not fit each other."""
    count = len(trace.events)
    if any(len(column) != count for column in vars(trace.events).values()):
        raise AssertionError("columns differ in length")
    if count and (
        trace.events.duration_ns.min() < 0 or trace.events.name.max() >= len(trace.names)
    ):
        raise AssertionError("a duration or a name is out of range")
    for name, sparse in trace.sparse.items():
        rows = sparse.event
        if len(rows) != len(sparse.value) or not len(rows):
            raise AssertionError(f"{name} has rows without values")
        if rows[0] < 0 or rows[-1] >= count or (np.diff(rows) <= 0).any():
            raise AssertionError(f"the rows of {name} do not ascend")
        if name.endswith(":text") and sparse.value.max() >= len(trace.texts):
            raise AssertionError(f"a text of {name} is out of range")


def outline(trace: Trace | None) -> object:
    """Return what must not depend on how the content is cut."""
    if trace is None:
        return None
    events = trace.events
    columns = zip(
        [trace.names[name] for name in events.name.tolist()],
        (events.start_ns + trace.base_ns).tolist(),
        events.duration_ns.tolist(),
        events.category.tolist(),
        events.correlation.tolist(),
        strict=True,
    )
    return sorted(columns), trace.rank, trace.vendor


def test_one_input(data: bytes) -> None:
    """Read an input whole and in pieces."""
    choice, text = data[:2].ljust(2, b"\0"), data[2:]
    whole = read(text, LARGE, LARGE, Detail.ALL)
    cut = read(text, 1 + choice[0] * 9, 1 + choice[1], Detail.ALL)
    lean = read(text, LARGE, LARGE, Detail.LEAN)
    for trace in (whole, cut, lean):
        if trace is not None:
            check(trace)
    if not is_json(text):
        return
    if outline(whole) != outline(cut):
        raise AssertionError(repr(data)[:6000] + "the pieces of a trace change what it tells")
    if outline(whole) != outline(lean):
        raise AssertionError(repr(data)[:6000] + "the detail of a trace changes its columns")


def write_seeds(folder: Path) -> None:
    """Write small traces of all forms to start from."""
    events = [
        make_event("cpu_op", "aten::mm", 1.5, 2.25, **{"External id": 1, "Input Dims": [[2, 3]]}),
        make_event("cuda_runtime", "cudaLaunchKernel", 2, 1, correlation=7),
        make_event("Kernel", "gemm", 1_700_000_000_000_000.25, 4, device=0, stream="stream 7"),
        make_event("cuda_sync", "Stream Sync", 9, 1, stream=4294967295, wait_on_stream=7),
        {"ph": "B", "name": "b", "ts": 1, "pid": "Spans", "tid": "0x0"},
        {"ph": "E", "name": "b", "ts": 5, "pid": "Spans", "tid": "0x0"},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "}, {"}},
        {"ph": "i", "name": "[memory]", "ts": 3, "args": {"Bytes": -5}},
    ]
    root = {"distributedInfo": {"rank": 0}, "traceEvents": events, "traceName": "x"}
    texts = [
        json.dumps(root),
        json.dumps(root, indent=2),
        json.dumps(events),
        json.dumps(root).replace("2.25", "NaN"),
        json.dumps(root)[:-80],
        json.dumps(root) * 2,
    ]
    for number, text in enumerate(texts):
        (folder / f"seed-{number}").write_bytes(b"\x05\x20" + text.encode())


if __name__ == "__main__":
    fuzz(test_one_input, write_seeds, DEFAULTS)
