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


# Stacks below a sentence, and the source of both places in two columns.
FIRED = [
    "faulthandler fired on rank 5 only.",
    "faulthandler.dump_traceback_later(600) on rank 5, the others wait in all_gather",
    "# faulthandler dump of rank 5 only; ranks 0-4 sit in a barrier",
]
COLUMNS = [
    "sink.py:72  with SINK_LOCK:            registry.py:38  with TABLE_LOCK:",
    "sink.py:74      with {0}:      registry.py:41      with SINK_LOCK:",
]


def paste_columns(said: str, wanted: str) -> list[str]:
    stacks = STACKS.partition("{head0}")[0].format(head1="Timeout (0:10:00)!")
    return [said, "", *stacks.split("\n"), "", *(line.format(wanted) for line in COLUMNS)]


@pytest.mark.parametrize("said", FIRED)
def test_source_in_two_columns_shows_both_orders(tmp_path: Path, said: str) -> None:
    finding = first_of(say(tmp_path, *paste_columns(said, "TABLE_LOCK")))

    assert (finding.name, finding.culprits.ranks) == ("lock-deadlock", [5])
    assert {place.line for place in finding.where} >= {41, 74}


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (FIRED[0], "SINK_LOCK"),
        (FIRED[0], "open(path) as file"),
        ("faulthandler fired on ranks 4 and 5", "TABLE_LOCK"),
        ("faulthandler fired after rank 5 was told to stop", "TABLE_LOCK"),
    ],
)
def test_columns_that_show_no_crossing_name_nobody(tmp_path: Path, said: str, wanted: str) -> None:
    report = say(tmp_path, *paste_columns(said, wanted))

    assert not [
        one for one in report.findings if one.name == "lock-deadlock" and one.culprits.ranks
    ]
