from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.parse.logs.worker_logs import parse_log

PLAIN = """\
step 3
Traceback (most recent call last):
  File "/job/train.py", line 20, in <module>
    train()
  File "/job/train.py", line 12, in train
    raise ValueError("bad batch")
    ^^^^^^
ValueError: bad batch
bye
"""

TORCHRUN = """\
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-01_00:00:00
  host      : node
  rank      : 3 (local_rank: 3)
  exitcode  : -15 (pid: 44)
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : node
  rank      : 2 (local_rank: 2)
  exitcode  : 1 (pid: 43)
============================================================
"""


def test_traceback_of_one_rank_is_read_innermost_first() -> None:
    exceptions, exits = parse_log(PLAIN, rank=2)

    (item,) = exceptions
    assert (item.rank, item.type, item.message) == (2, "ValueError", "bad batch")
    assert [frame.line for frame in item.frames] == [12, 20]
    assert exits == []


def test_prefixed_and_mixed_lines_are_told_apart() -> None:
    lines = PLAIN.splitlines()
    mixed = "\n".join(
        text
        for line in lines
        for text in (f"[rank0]: {line}", f"2026-01-01T00:00:00.5Z [rank1]:{line}")
    )
    exceptions, _ = parse_log(mixed)

    assert sorted(item.rank for item in exceptions) == [0, 1]
    assert {item.type for item in exceptions} == {"ValueError"}


def test_traceback_without_a_rank_is_of_an_unknown_rank() -> None:
    exceptions, _ = parse_log(PLAIN)

    assert exceptions[0].rank == UNKNOWN_RANK


def test_the_original_traceback_of_a_worker_gives_the_innermost_frames() -> None:
    text = """\
Traceback (most recent call last):
  File "/job/train.py", line 20, in <module>
    main()
ValueError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/job/data.py", line 5, in __getitem__
    raise ValueError
ValueError: no such sample
"""
    exceptions, _ = parse_log(text, rank=0)

    assert exceptions[0].frames[0].file == "/job/data.py"


def test_failure_summary_of_torchrun_gives_exits() -> None:
    _, exits = parse_log(TORCHRUN)

    assert [(item.rank, item.code, item.signal) for item in exits] == [(3, None, 15), (2, 1, None)]
    assert {item.source for item in exits} == {"launcher log"}


@given(st.text(alphabet=st.sampled_from("Traceback (most recent call last):\n File,x1[]rank:")))
def test_any_text_is_read(text: str) -> None:
    parse_log(text)
    parse_log("Traceback (most recent call last):\n" + text)


def test_log_of_our_own_with_a_spawned_rank_is_read_with_that_rank() -> None:
    text = """
2026-11-21T06:23:46.824831Z err Traceback (most recent call last):
2026-11-21T06:23:46.824831Z err   File "/job/spawn.py", line 16, in <module>
2026-11-21T06:23:46.824921Z err     mp.spawn(worker, nprocs=3)
2026-11-21T06:23:46.825229Z err torch.multiprocessing.spawn.ProcessRaisedException:
2026-11-21T06:23:46.825229Z err
2026-11-21T06:23:46.825229Z err -- Process 1 terminated with the following error:
2026-11-21T06:23:46.825229Z err Traceback (most recent call last):
2026-11-21T06:23:46.825229Z err   File "/job/spawn.py", line 7, in work
2026-11-21T06:23:46.825229Z err     raise RuntimeError('boom')
2026-11-21T06:23:46.825229Z err RuntimeError: boom
"""
    by_rank = {item.rank: item for item in parse_log(text)[0]}
    assert (by_rank[1].type, by_rank[1].message) == ("RuntimeError", "boom")
    assert by_rank[1].frames[0].line == 7
