"""Freed memory is used again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COUNT = """
import resource
import numpy as np
from whystuck.tracing.arrays.allocation import keep_freed_memory

def work():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        columns = [np.ones(100_000) for _ in range(10)]
        del columns
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
plain = work()
keep_freed_memory()
work()
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used
print(plain, work(), grown)
"""


@pytest.mark.skipif(
    not Path("/proc/self/maps").read_text().count("libc.so.6"), reason="not the C library of GNU"
)
def test_columns_that_come_and_go_take_no_new_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COUNT], capture_output=True, text=True, check=True, timeout=60
    )

    plain, kept, grown_kib = map(int, done.stdout.split())

    assert kept < plain / 10
    # Ten columns of 0.8 MB, and none of the block that was never touched.
    assert grown_kib < 20_000
