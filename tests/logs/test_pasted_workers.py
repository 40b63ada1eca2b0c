"""Pasted stacks of a rank and its data loader's workers, and of the others in a line for each."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.parse.logs.blocks.stacks.children import find_parent

# How people fold the stack of a rank into a line.
FOLDED = {
    "pid": "rank {0} pid 2011{0}  MainThread  {1} (torch/cuda/streams.py:225)  <- {2}",
    "brackets": "rank {0} (pid 2011{0}) MainThread: {1} (torch/cuda/streams.py:225) <- {2}",
    "bar": "rank {0}, pid 2011{0} | {1} (torch/cuda/streams.py:225) <- {2}",
    "blanks": "rank {0}   {1} (torch/cuda/streams.py:225)  <- {2}",
    "state": 'rank {0} "MainThread" (active)  {1} (torch/cuda/streams.py:225) <- {2}',
}
MAIN = """\
Process 20114: /opt/conda/bin/python -u tools/train.py
Thread 20114 (idle): "MainThread"
    wait (threading.py:324)
    get (queue.py:180)
    _try_get_data (torch/utils/data/dataloader.py:1133)
    _get_data (torch/utils/data/dataloader.py:1284)
    __next__ (torch/utils/data/dataloader.py:631)
    train_epoch (tools/train.py:176)
    <module> (tools/train.py:260)
"""
WORKERS = """\
  20640 Rl   100 00:41:17
Thread 20640 (active): "MainThread"
    _find_split (datasets/ocr_crop.py:88)
    crop_lines (datasets/ocr_crop.py:61)
    __getitem__ (datasets/ocr_crop.py:34)
    fetch (torch/utils/data/_utils/fetch.py:51)
  20641 Sl   0.0 00:03:02
Thread 20641 (idle): "MainThread"
    select (selectors.py:416)
    wait (multiprocessing/connection.py:931)
    get (multiprocessing/queues.py:113)
  20642 Sl   0.0 00:03:04
Thread 20642 (idle): "MainThread"
    select (selectors.py:416)
"""
# What lists the workers of a process.
LISTED = [
    "$ pgrep -P 20114 | xargs -n1 -I{} sh -c 'ps -p {}; py-spy dump --pid {} | sed -n 4,9p'",
    "$ for w in $(ps --ppid 20114 -o pid=); do ps -p $w; py-spy dump --pid $w; done",
    "worker processes of 20114:",
    "workers (parent 20114)",
    "dataloader children of pid 20114:",
]


def paste(form: str, listed: str) -> list[str]:
    call = "clip_and_step (tools/train.py:203)"
    others = [FOLDED[form].format(rank, "synchronize", call) for rank in range(4)]
    own = ["rank 4 pid 20114  see below", "", "$ py-spy dump --pid 20114"]
    return [*others, *own, *MAIN.split("\n"), listed, *WORKERS.split("\n")]


@pytest.mark.parametrize("form", FOLDED)
@pytest.mark.parametrize("listed", LISTED)
def test_worker_that_comes_to_no_end_is_told_with_its_rank(
    tmp_path: Path, form: str, listed: str
) -> None:
    finding = first_of(say(tmp_path, *paste(form, listed)))

    assert (finding.name, finding.culprits.ranks) == ("input-worker-stuck", [4])
    assert finding.details["worker_pid"] == 20640
    assert finding.victims.ranks == "0-3"


def test_children_of_a_launcher_are_ranks(tmp_path: Path) -> None:
    lines = ["$ pgrep -P 600 | xargs -n1 py-spy dump --pid"]
    for rank in range(3):
        frames = ["    step (train.py:12)", "    <module> (train.py:40)"]
        wait = ["    all_reduce (torch/distributed/distributed_c10d.py:2501)"] * (rank < 2)
        head = f"Process 60{rank + 1}: python train.py   # rank {rank}"
        lines += [head, f'Thread 60{rank + 1} (active): "MainThread"', *wait, *frames]
    report = say(tmp_path, *lines)

    assert first_of(report).culprits.ranks == [2]


@pytest.mark.parametrize(
    ("text", "parent"),
    [*((one, 20114) for one in LISTED), ("pgrep -f train.py", 0), ("workers: 20114 samples", 0)],
)
def test_parent_of_what_is_shown_next(text: str, parent: int) -> None:
    assert find_parent(text) == parent


# A rank in its data loader by py-spy, and a worker of it by gdb: the frames of C, then of Python.
LOADER = """\
{head}
Thread 3310 (idle): "MainThread"
    select (selectors.py:416)
    wait (multiprocessing/connection.py:931)
    get (multiprocessing/queues.py:113)
    _try_get_data (torch/utils/data/dataloader.py:1251)
    _get_data (torch/utils/data/dataloader.py:1412)
    run (net/fit.py:40)
{worker}
#0  {inner} at ./nptl/futex-internal.c:57
#1  0x00007f11d0a98002 in ___pthread_mutex_lock (mutex=0x7f0a1a) at ./nptl/pthread_mutex_lock.c:93
#2  0x00007f11ca001e10 in pool::Pool::submit(pool::Task const&) () from libresize.so
(gdb) py-bt
Traceback (most recent call first):
  File "/srv/net/images.py", line 21, in {function}
    return shrink(raw)
  File "/srv/lib/torch/utils/data/_utils/worker.py", line {line}, in _worker_loop
"""
WORKER_HEADS = [
    "rank 2 worker 3402",
    "--- rank 2, data loader worker 3402 ---",
    "[rank2 worker 3402] gdb -p 3402 -batch -ex bt",
]


@pytest.mark.parametrize("worker", WORKER_HEADS)
@pytest.mark.parametrize("inner", ["__futex_lll_lock (v=2)", "futex_wait (private=0, expected=2)"])
def test_worker_that_gdb_shows_in_a_mutex_is_told(tmp_path: Path, worker: str, inner: str) -> None:
    text = LOADER.format(
        head="rank 2 (pid 3310)", worker=worker, inner=inner, function="__getitem__", line=309
    )
    finding = first_of(say(tmp_path, text, "ranks 0, 1 and 3 wait in all_reduce"))

    assert (finding.name, finding.culprits.ranks) == ("input-worker-stuck", [2])
    assert finding.details["worker_pid"] == 3402
    assert finding.where[0].function == "__getitem__"


def test_worker_that_gdb_shows_waiting_for_work_is_not_stuck(tmp_path: Path) -> None:
    text = LOADER.format(
        head="rank 2 (pid 3310)",
        worker=WORKER_HEADS[0],
        inner="__futex_abstimed_wait_common64 (cancel=true)",
        function="get",
        line=279,
    ).replace("/srv/net/images.py", "/usr/lib/python3.10/multiprocessing/queues.py")
    report = say(tmp_path, text)

    assert "input-worker-stuck" not in {one.name for one in report.findings}


def test_stack_below_a_worker_of_a_thread_pool_is_no_worker_of_a_loader(tmp_path: Path) -> None:
    text = LOADER.format(
        head="rank 2 (pid 3310)",
        worker="worker 3402",
        inner="futex_wait (a=1)",
        function="f",
        line=2,
    ).replace("_utils/worker.py", "pool.py")
    report = say(tmp_path, text)

    assert "input-worker-stuck" not in {one.name for one in report.findings}
