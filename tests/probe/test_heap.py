"""What is free in the heaps of a process goes back to the system, after requests only."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from whystuck.probe.heap import count_free

JOB = """
import json, sys
from whystuck.probe.heap import HEAP, count_free
def read_rss_kb():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
def look():
    for _ in range(4):
        HEAP.look()
    return read_rss_kb()
count, is_noted = int(sys.argv[1]), sys.argv[2] == "noted"
import ctypes  # takes memory of its own
count_free()
# Blocks that malloc takes from its heap, each third of which stays.
blocks = [bytearray(60_000) for _ in range(count)]
kept = blocks[::3]
del blocks
before = read_rss_kb()
if is_noted:
    HEAP.note_use()
print(json.dumps([before, look(), look(), count_free()]))
"""


def _run(count: int, noted: str) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(count), noted], capture_output=True, check=True, timeout=100
    )
    numbers: list[int] = json.loads(done.stdout)
    return numbers


pytestmark = pytest.mark.skipif(not count_free(), reason="this C library does not tell")


def test_what_a_request_has_freed_goes_back_to_the_system() -> None:
    before, after, later, _ = _run(900, "noted")  # 36 MB are free
    assert after < before - 25_000
    assert later <= after + 500


def test_nothing_is_done_where_nobody_has_asked_for_anything() -> None:
    before, after, _, free = _run(900, "quiet")
    assert abs(after - before) < 1000
    assert free > 25 << 20


def test_more_than_requests_free_is_left_to_the_job() -> None:
    before, after, _, free = _run(2400, "noted")  # 96 MB
    assert abs(after - before) < 1000
    assert free > 64 << 20
