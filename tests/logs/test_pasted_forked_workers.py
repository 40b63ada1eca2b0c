"""Workers of data loaders that wait for a lock, with and without the stack of their rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.diagnose.algorithms.stacks.loading import find_lock_taken
from whystuck.evidence.ops.collectives import Frame
from whystuck.parse.logs.blocks.stacks.children import find_own_parent

MAIN = [
    'Thread 4400 (idle): "MainThread"',
    "    wait (multiprocessing/connection.py:930)",
    "    get (multiprocessing/queues.py:113)",
    "    _try_get_data (torch/utils/data/dataloader.py:1251)",
    "    run_epoch (fit.py:88)",
]
WATCHDOG = (
    "[rank1]:[E219 09:44:02.118803317 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=33, NumelOut=33, "
    "Timeout(ms)=1800000) ran for 1800022 milliseconds before timing out."
)
LOOP = "    _worker_loop (torch/utils/data/_utils/worker.py:349)"
FETCH = "    fetch (torch/utils/data/_utils/fetch.py:52)"
ITEM = "    __getitem__ (voices.py:57)"
# The inner frames of threads that wait for a lock.
LOCKS = {
    "logging": ["    acquire (logging/__init__.py:917)", "    info (logging/__init__.py:1477)"],
    "threads": ["    acquire (threading.py:169)"],
    "mutex": [
        "    futex_wait (libc.so.6)",
        "    pthread_mutex_lock (libc.so.6)",
        "    sf_open (libsndfile.so.1)",
    ],
    "private": ["    __lll_lock_wait (libpthread-2.31.so)", "    TIFFOpen (libtiff.so.5)"],
}
# What is no wait for a lock that nobody gives back.
OTHERS = {
    "condition": ["    futex_wait (libc.so.6)", "    pthread_cond_wait (libc.so.6)"],
    "computes": ["    resample (voices.py:80)"],
    "reads": ["    read (ssl.py:1167)"],
    "waits": ["    wait (threading.py:331)"],
}
HEADS = [
    "Process 4477: python fit.py (forked from 4400)",
    "Process 4477: python fit.py   # child of 4400",
    "Process 4477: python fit.py  (parent process 4400)",
    "Process 4477: pt_data_worker",
]


def write_worker(inner: list[str], outer: tuple[str, ...] = (ITEM, LOOP)) -> list[str]:
    return ['Thread 4477 (idle): "MainThread"', *inner, *outer]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("outer", [(ITEM, LOOP), (ITEM, FETCH, LOOP)])
def test_worker_without_the_frames_between_is_told_with_its_rank(
    tmp_path: Path, head: str, lock: str, outer: tuple[str, ...]
) -> None:
    worker = write_worker(LOCKS[lock], outer)
    finding = first_of(say(tmp_path, WATCHDOG, "# rank 0, py-spy dump", *MAIN, head, *worker))

    assert (finding.code, finding.culprits.ranks) == ("H112", [0])
    assert finding.details["worker_pid"] == 4477
    assert "lock" in finding.summary
    assert finding.victims.ranks == "1"


@pytest.mark.parametrize("prefix", ["", "> "])
@pytest.mark.parametrize("lock", LOCKS)
def test_worker_alone_that_waits_for_a_lock_is_stuck(
    tmp_path: Path, lock: str, prefix: str
) -> None:
    lines = ["Process 4477: pt_data_worker", *write_worker(LOCKS[lock], (ITEM, FETCH, LOOP))]
    finding = first_of(say(tmp_path, *(f"{prefix}{line}" for line in lines)))

    assert (finding.code, finding.culprits.ranks) == ("H112", [])
    assert finding.confidence == "likely"
    assert finding.where[0].line == 57


def test_other_thread_of_a_worker_may_hold_the_lock(tmp_path: Path) -> None:
    other = ['Thread 4479 (active): "writer"', "    flush (voices.py:30)", "    run (voices.py:9)"]
    lines = [*write_worker(LOCKS["mutex"], (ITEM, FETCH, LOOP)), *other]
    finding = first_of(say(tmp_path, "Process 4477: pt_data_worker", *lines))

    assert (finding.code, finding.confidence) == ("H112", "possible")


@pytest.mark.parametrize("inner", OTHERS)
def test_worker_alone_that_may_get_on_is_not_told(tmp_path: Path, inner: str) -> None:
    lines = ["Process 4477: pt_data_worker", *write_worker(OTHERS[inner], (ITEM, FETCH, LOOP))]
    report = say(tmp_path, *lines)

    assert all(finding.code != "H112" for finding in report.findings)


def test_lock_of_a_rank_that_loads_itself_is_of_no_worker(tmp_path: Path) -> None:
    lines = ["Process 4477: python fit.py", *write_worker(LOCKS["mutex"], (ITEM, FETCH))]

    assert all(finding.code != "H112" for finding in say(tmp_path, *lines).findings)


def test_worker_that_got_on_between_two_looks_is_not_stuck(tmp_path: Path) -> None:
    first = write_worker(LOCKS["mutex"], (ITEM, FETCH, LOOP))
    second = write_worker(OTHERS["computes"], (ITEM, FETCH, LOOP))
    lines = ["Process 4477: pt_data_worker", *first, "Process 4477: pt_data_worker", *second]

    assert all(finding.code != "H112" for finding in say(tmp_path, *lines).findings)


@pytest.mark.parametrize(
    "frames",
    [
        ["    acquire (voices.py:30)", LOOP],
        ["    select (selectors.py:416)", "    get (multiprocessing/queues.py:113)", LOOP],
    ],
)
def test_other_child_and_idle_worker_are_not_blamed(tmp_path: Path, frames: list[str]) -> None:
    is_own = "voices" in frames[0]
    frames = frames[: 1 if is_own else None]
    head = "Process 4477: python board.py (forked from 4400)"
    lines = ["# rank 0, py-spy dump", *MAIN, head, 'Thread 4477 (idle): "MainThread"', *frames]

    assert all(finding.code != "H112" for finding in say(tmp_path, *lines).findings)


def test_parent_of_one_process_is_not_that_of_the_next(tmp_path: Path) -> None:
    worker = write_worker(LOCKS["threads"])
    other = ["rank 1, py-spy dump", 'Thread 4401 (active): "MainThread"']
    other += ["    all_reduce (torch/distributed/distributed_c10d.py:2810)", "    step (fit.py:90)"]
    lines = ["# rank 0, py-spy dump", *MAIN, HEADS[0], *worker, *other]
    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.culprits.ranks, finding.victims.ranks) == ("H112", [0], "1")


@pytest.mark.parametrize(
    ("command", "parent"),
    [
        ("python fit.py (forked from 18802)", 18802),
        ("python fit.py, ppid=18802", 18802),
        ("python fit.py --parent 18802", 0),
        ("python fit.py --ppid=18802", 0),
        ("python fit.py (forked from the launcher)", 0),
        ("python fit.py parent_run=18802", 0),
    ],
)
def test_parent_behind_a_command(command: str, parent: int) -> None:
    assert find_own_parent(command) == parent


@pytest.mark.parametrize(
    ("names", "lock"),
    [
        (["acquire logging/__init__.py"], "logging/__init__.py:1"),
        (["pthread_mutex_lock libc.so.6", "H5open libhdf5.so"], "H5open (libhdf5.so)"),
        (["futex_wait libc.so.6", "pthread_cond_wait libc.so.6"], ""),
        (["emit logging/__init__.py"], ""),
        (["step a.py", "pthread_mutex_lock libc.so.6"], ""),
        ([], ""),
    ],
)
def test_lock_that_a_thread_waits_for(names: list[str], lock: str) -> None:
    frames = [Frame(function, file, 1) for function, file in map(str.split, names)]

    assert find_lock_taken(frames) == lock
