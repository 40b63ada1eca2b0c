"""Loops that ask for a sign of another rank."""

from __future__ import annotations

from textwrap import dedent

import pytest

from whystuck.diagnose.algorithms.source.polls import find_poll
from whystuck.evidence.ops.collectives import Frame


@pytest.mark.parametrize(
    ("text", "line", "asked"),
    [
        ("while int(store.add(key, 0)) < world:\n    time.sleep(0.1)", 2, "store.add(key, 0)"),
        ("while int(store.add(key, 0)) < world:\n    time.sleep(0.1)", 1, "store.add(key, 0)"),
        ("while not self.store.check(['k']): pass", 1, "self.store.check(['k'])"),
        ("while not os.path.exists(flag):\n    time.sleep(1)", 2, "os.path.exists(flag)"),
        (
            "while True:\n    n = get_store().get('n')\n    if n == b'4': break\n    time.sleep(1)",
            4,
            "get_store().get('n')",
        ),
        ("while int(store.add(key, 0)) < world:\n    work()\n    time.sleep(0.1)", 2, ""),
        ("while not ready():\n    time.sleep(0.1)", 2, ""),
        ("while True:\n    n = cache.get('n')\n    if n: break\n    time.sleep(1)", 4, ""),
        ("for _ in range(9):\n    store.add(key, 1)\n    time.sleep(0.1)", 3, ""),
        ("while True:\n    store.add(key, 1)\n    time.sleep(0.1)", 3, ""),
        ("while (", 1, ""),
    ],
)
def test_loop_that_ends_by_a_sign_of_others_is_told_by_its_question(
    text: str, line: int, asked: str
) -> None:
    assert find_poll(Frame("wait", "/job/train.py", line), {"/job/train.py": dedent(text)}) == asked


def test_line_of_a_file_that_is_not_kept_asks_nothing() -> None:
    assert find_poll(Frame("wait", "/job/other.py", 3), {}) == ""
    assert find_poll(Frame("wait", "/job/train.py", 30), {"/job/train.py": "x = 1"}) == ""
