"""Threads that wait for each other's lock, as stacks and source beside them show it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report

HEADS = {
    "of": "===== stderr of local_rank {0}, SIGUSR1 at 2026-10-09 06:31:00 =====",
    "dump": "--- dump of local rank {0} ---",
    "rank": "=== rank {0} ===",
}
STACKS = """\
{head1}
Thread 0x00007f2a5d7fa640 (most recent call first):
  File "/repo/metrics/sink.py", line 74 in flush
  File "/repo/metrics/sink.py", line 112 in _pump
  File "/usr/lib/python3.10/threading.py", line 953 in run
  File "/usr/lib/python3.10/threading.py", line 973 in _bootstrap

Current thread 0x00007f2b3c4d1740 (most recent call first):
  File "/repo/metrics/registry.py", line 41 in snapshot
  File "/repo/train/loop.py", line 188 in log_step
  File "/repo/train/__main__.py", line 22 in <module>
{head0}
Current thread 0x00007f66e10fa740 (most recent call first):
  File "/opt/site-packages/torch/distributed/distributed_c10d.py", line 2811 in all_reduce
  File "/repo/train/loop.py", line 161 in run
  File "/repo/train/__main__.py", line 22 in <module>
===== same two dumps at 06:41:00: identical =====
"""
FLUSH = """\
    def flush(self):
        # called from the pump thread
        with self._sink_lock:
            rows, self._rows = self._rows, []
            with {wanted}:
                self.registry.mark_flushed(len(rows))
"""
SNAPSHOT = """\
    def snapshot(self):
        with self._lock:
            out = dict(self._values)
            # keep order stable against the sink
            with self.sink._sink_lock:
                return out
"""


def paste(folder: Path, head: str, *, wanted: str = "self.registry._lock") -> Report:
    stacks = STACKS.format(head1=HEADS[head].format(1), head0=HEADS[head].format(0))
    flush = FLUSH.format(wanted=wanted)
    return say(
        folder,
        f"{stacks}\n$ sed -n 70,75p metrics/sink.py\n{flush}"
        f"$ sed -n 37,42p metrics/registry.py\n{SNAPSHOT}$ ls",
    )


@pytest.mark.parametrize("head", HEADS)
def test_two_threads_that_take_two_locks_in_two_orders_are_found(tmp_path: Path, head: str) -> None:
    finding = first_of(paste(tmp_path, head))

    assert (finding.name, finding.culprits.ranks) == ("lock-deadlock", [1])
    assert {place.line for place in finding.where} >= {41, 74}


def test_one_lock_that_both_wait_for_is_no_deadlock_of_theirs(tmp_path: Path) -> None:
    report = paste(tmp_path, "of", wanted="self.sink._sink_lock")

    assert "lock-deadlock" not in {one.name for one in report.findings}
