"""Real traces, where they lie, and events of made-up ones."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from whystuck.evidence.traces.events import Trace
from whystuck.parse.traces.reader import read_trace
from whystuck.read.traces.files import read_trace_file

VARIABLE = "WHYSTUCK_TEST_DATA"


def find_traces() -> Path:
    """The folder of real traces; the test is skipped where there is none and none is named."""
    named = os.environ.get(VARIABLE)
    folder = Path(named) if named else Path(__file__).parents[3] / "shared" / "data"
    if named:
        assert folder.is_dir(), f"{VARIABLE} names {folder}, which is not there"
    elif not (folder / "traces").is_dir():
        pytest.skip(f"{VARIABLE} is not set")
    # It may be reached through a link.
    return (folder / "traces").resolve()


@cache
def read_real(name: str) -> Trace:
    """A real trace by its path below the folder; it must not be changed."""
    return read_trace_file(find_traces() / name)


def make_trace(events: list[dict[str, Any]], **keys: Any) -> Trace:
    """A trace of some events, through the reader; `keys` are those of the file."""
    return read_trace([json.dumps({"traceEvents": events, **keys}).encode()], "made.json")


def make_event(category: str, name: str, start_us: float, us: float, **args: Any) -> dict[str, Any]:
    """An event; process and thread are told by `pid` and `tid`, and are 1 otherwise."""
    pid, tid = args.pop("pid", 1), args.pop("tid", 1)
    shape = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid}
    return {**shape, "ts": start_us, "dur": us, "args": args}
