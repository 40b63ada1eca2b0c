from __future__ import annotations

import contextlib
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystuck.parse.errors import ParseError
from whystuck.parse.stacks.python_stacks import (
    is_faulthandler_text,
    is_spy_text,
    parse_fatal,
    parse_faulthandler,
    parse_spy_json,
    parse_spy_text,
)

SPY_TEXT = """\
Process 41: /usr/bin/python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 41 (idle): "MainThread"
    wait (threading.py:324)
    train (/job/train.py:12)
        Arguments:
            step: 3
    <module> (/job/train.py:20)
Thread 0x7F2C (active+gil): "helper (io)"
    spin (/job/helper.py:5)
"""

FAULT_TEXT = """\
Thread 0x00007f11 (most recent call first):
  File "/job/helper.py", line 5 in spin

Current thread 0x00007f22 (most recent call first):
  File "/job/train.py", line 12 in train
  File "/job/train.py", line 20 in <module>
"""


def test_spy_json_gives_threads() -> None:
    threads = [
        {
            "pid": 41,
            "thread_id": 1,
            "thread_name": "Thread-1",
            "os_thread_id": 42,
            "active": True,
            "owns_gil": True,
            "process_info": None,
            "frames": [{"name": "spin", "filename": "/job/helper.py", "line": 5, "module": None}],
        },
        {
            "pid": 41,
            "thread_id": 2,
            "thread_name": None,
            "os_thread_id": 41,
            "active": False,
            "owns_gil": False,
            "frames": [],
        },
    ]
    sample = parse_spy_json(json.dumps(threads).encode(), rank=3, worker=True, index=2)

    assert (sample.rank, sample.pid, sample.worker, sample.index) == (3, 41, True, 2)
    assert [thread.is_main for thread in sample.threads] == [False, True]
    assert sample.threads[0].owns_gil
    assert sample.threads[0].frames[0].line == 5


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'[{"frames": 3}]', b"[" * 5000])
def test_other_json_is_a_parse_error(data: bytes) -> None:
    with pytest.raises(ParseError):
        parse_spy_json(data, rank=0)


def test_spy_text_gives_threads() -> None:
    assert is_spy_text(SPY_TEXT)
    sample = parse_spy_text(SPY_TEXT, rank=1)

    assert sample.pid == 41
    assert sample.main is not None
    assert [frame.function for frame in sample.main.frames] == ["wait", "train", "<module>"]
    assert sample.threads[1].name == "helper (io)"
    assert sample.threads[1].owns_gil
    assert sample.threads[1].active


def test_faulthandler_text_gives_threads_and_the_last_is_main() -> None:
    assert is_faulthandler_text(FAULT_TEXT)
    sample = parse_faulthandler(FAULT_TEXT, rank=1)

    assert sample.source == "faulthandler"
    assert sample.main is not None
    assert sample.main.frames[0].line == 12


def test_fatal_text_puts_the_thread_that_crashed_first() -> None:
    fatal = parse_fatal("Fatal Python error: Segmentation fault\n\n" + FAULT_TEXT, rank=2)

    assert fatal.reason == "Segmentation fault"
    assert fatal.threads[0].frames[0].function == "train"
    assert fatal.rank == 2


def test_texts_without_stacks_are_parse_errors() -> None:
    for parse in (parse_spy_text, parse_faulthandler, parse_fatal):
        with pytest.raises(ParseError):
            parse("nothing here", rank=0)


@pytest.mark.parametrize("number", ["07", "9" * 5000, "\u00b2", "\u0663", "0x" + "f" * 5000])
def test_odd_numbers_are_told_apart_from_lines_of_stacks(number: str) -> None:
    for parse, text in ((parse_spy_text, SPY_TEXT), (parse_faulthandler, FAULT_TEXT)):
        for found in re.finditer(r"0x[0-9a-f]+|[0-9]+", text):
            odd = text[: found.start()] + number + text[found.end() :]
            with contextlib.suppress(ParseError):
                parse(odd, rank=0)


@given(st.text(max_size=300))
def test_any_text_raises_nothing_but_parse_errors(text: str) -> None:
    for parse in (parse_spy_text, parse_faulthandler, parse_fatal):
        with contextlib.suppress(ParseError):
            parse(text, rank=0)
