"""Stacks as text in logs: as tools print them, cut, mixed, prefixed, and what looks like them."""

from __future__ import annotations

import pytest

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.parse.logs.blocks.stacks.seen import CUT, StackSeen
from whystuck.parse.logs.reader import read_log

SPY = """\
Process 71: python train.py
Python v3.11.9 (/usr/bin/python3.11)

Thread 71 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2501)
    <module> (train.py:9)
Thread 0x7F2A (active+gil): "Thread-1"
    pack (codec.py:3)
"""
OLD_SPY = """\
Process 71: python train.py
Python v3.7.3 (/usr/bin/python3.7)

Thread 0x7F20 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:900)
    <module> (train.py:9)
"""
FAULT = """\
Thread 0x00007f2b8c7fe700 (most recent call first):
  File "/usr/lib/python3.10/threading.py", line 324 in wait

Thread 0x00007f2bd5c3b740 (most recent call first):
  File "/app/train.py", line 12 in step
  File "/app/train.py", line 40 in <module>
"""
GDB = """\
Thread 2 (Thread 0x7f0b2d7fa700 (LWP 72) "python"):
#0  0x00007f0c1a2e5d2e in epoll_wait () from /lib/x86_64-linux-gnu/libc.so.6
Thread 1 (Thread 0x7f0c1a5d7740 (LWP 71) "python"):
#0  0x00007f0c1a20c376 in sched_yield () from /lib/x86_64-linux-gnu/libc.so.6
#1  0x00007f0b9a11c0de in tok::Cache::get(std::string const&) (this=0x1) at cache.cc:33
"""
FATAL = """\
Fatal Python error: Aborted

Thread 0x00007f2bd5c3b740 (most recent call first):
  File "a.py", line 3 in f
"""


def read(text: str) -> list[StackSeen]:
    return read_log(text.encode()).stacks


def name_main(seen: StackSeen) -> list[str]:
    main = next(one for one in seen.threads if one.is_main)
    return [frame.function for frame in main.frames]


@pytest.mark.parametrize("text", [SPY, OLD_SPY])
def test_spy_text_of_two_versions_is_read(text: str) -> None:
    (seen,) = read(text)
    assert (seen.pid, seen.source, seen.row) == (71, "py-spy", 4)
    assert name_main(seen) == ["all_reduce", "<module>"]


def test_threads_keep_their_states() -> None:
    (seen,) = read(SPY)
    assert [(one.name, one.owns_gil, one.active) for one in seen.threads] == [
        ("MainThread", False, False),
        ("Thread-1", True, True),
    ]


def test_the_last_thread_of_faulthandler_is_the_main_one() -> None:
    (seen,) = read(FAULT)
    assert name_main(seen) == ["step", "<module>"]


def test_gdb_is_read_with_libraries_and_lines() -> None:
    (seen,) = read(GDB)
    assert seen.pid == 71
    assert name_main(seen) == ["sched_yield", "tok::Cache::get", CUT.function]
    main = next(one for one in seen.threads if one.is_main)
    assert (main.frames[1].file, main.frames[1].line) == ("cache.cc", 33)


def test_a_bare_backtrace_is_one_process() -> None:
    bare = "\n".join(line for line in GDB.splitlines()[2:] if line.startswith("#"))
    (seen,) = read(f"(gdb) bt\n{bare}\n")
    assert name_main(seen) == ["sched_yield", "tok::Cache::get", CUT.function]


@pytest.mark.parametrize(
    "heading",
    [
        "rank 3",
        "=== Rank 3 (node-a) ===",
        "**rank 3**",
        "Rank 3: http://h:1",
        "$ py-spy dump # rank 3",
    ],
)
@pytest.mark.parametrize("text", [SPY, FAULT, GDB])
def test_a_heading_names_the_rank(heading: str, text: str) -> None:
    assert [one.rank for one in read(f"{heading}\n```\n{text}```\n")] == [3]


@pytest.mark.parametrize(
    "heading",
    [
        "Every few hours one step hangs (8 ranks, ALLREDUCE of all of them). py-spy says. Rank 3:",
        f"{'A long report of what ranks 0-2 and 4-7 do, and that all wait. ' * 9}Rank 3:",
        "ranks 0-2 are waiting for it; stack of rank 3:",
        'Ranks 0 and 1 print "retrying..." Here is rank 3 (pid 71):',
        "Is it not rank 1? This one is rank 3:",
        "> The other ranks are idle. RANK=3:",
    ],
)
@pytest.mark.parametrize("text", [SPY, FAULT, GDB])
def test_last_sentence_of_a_paragraph_is_a_heading(heading: str, text: str) -> None:
    assert [one.rank for one in read(f"{heading}\n```\n{text}```\n")] == [3]


def test_last_sentence_may_name_several_ranks() -> None:
    (seen,) = read(f"We looked at ranks with py-spy. Only rank 0 moves. Ranks 1-3:\n{SPY}")
    assert {seen.rank, *seen.others} == {1, 2, 3}


@pytest.mark.parametrize(
    "heading",
    [
        "All ranks look alike, e.g. in the loader vs. rank 3:",
        "The job hangs. It is not rank 3:",
        "The job hangs. That of rank 2 or rank 3:",
        "Ranks 0-2 wait for something. So what. Rank 3 is fine, I believe.",
        "[rank1]: it stopped. waiting for rank 3:",
    ],
)
def test_other_last_sentences_name_nobody(heading: str) -> None:
    assert [one.rank for one in read(f"{heading}\n{SPY}")] == [UNKNOWN_RANK]


def test_many_processes_in_one_text_are_told_apart() -> None:
    text = SPY + SPY.replace("71", "72") + "rank 0\n" + FAULT + "rank 1\n" + FAULT
    assert [(one.pid, one.rank) for one in read(text)] == [(71, -1), (72, -1), (0, 0), (0, 1)]


def test_two_looks_at_one_process_are_two() -> None:
    assert [one.pid for one in read(SPY + SPY)] == [71, 71]


def test_lines_of_ranks_may_mix() -> None:
    first = [f"[rank0]: {line}" for line in FAULT.splitlines()]
    second = [f"[rank1]: {line}" for line in FAULT.replace("step", "load").splitlines()]
    mixed = [line for pair in zip(first, second, strict=True) for line in pair]
    found = read("\n".join(mixed) + "\n")
    assert {one.line.rank: name_main(one)[0] for one in found} == {0: "step", 1: "load"}


@pytest.mark.parametrize(
    "prefix", ["2026-03-11 10:50:14,004 WARN ", "(Worker pid=9, ip=10.0.0.1) ", "> ", "0: "]
)
def test_prefixes_of_each_line_are_passed_over(prefix: str) -> None:
    text = "".join(f"{prefix}{line}\n" for line in SPY.splitlines())
    (seen,) = read(text)
    assert name_main(seen) == ["all_reduce", "<module>"]


def test_a_cut_stack_says_so() -> None:
    (seen,) = read("\n".join(SPY.splitlines()[:5]) + "\n...\n")
    assert name_main(seen) == ["all_reduce", CUT.function]


def test_a_summary_counts_processes() -> None:
    found = read("15x  Thread (active) flock <- load (data.py:3)   pod=w-11\n")
    assert [(one.alike, one.node, name_main(one)) for one in found] == [
        (15, "w-11", ["flock", "load", CUT.function])
    ]


def test_workers_of_data_loaders_are_told_by_their_frames() -> None:
    text = SPY.replace(
        "<module> (train.py:9)", "_worker_loop (torch/utils/data/_utils/worker.py:3)"
    )
    assert [one.is_worker for one in read(text)] == [True]


@pytest.mark.parametrize(
    "text",
    [
        'see `Thread 12 (active): "MainThread"` in the guide of py-spy\n',
        "INFO Thread pool (idle) has 3 threads\n    wait (3 left)\n",
        "rank 0: loss 3.2\nrank 1: loss 3.1\n",
        'Traceback (most recent call last):\n  File "a.py", line 3, in f\nValueError: x\n',
        "frame #0: c10::Error::Error(c10::SourceLocation) + 0x57 (0x7f in libc10.so)\n",
        FATAL,
    ],
)
def test_what_looks_like_a_stack_is_none(text: str) -> None:
    assert not read(text)


def test_a_heading_of_another_process_names_nobody() -> None:
    found = read(f"rank 0 pid 70\nrank 1 pid 72\n{SPY}")
    assert [(one.pid, one.rank) for one in found] == [(71, UNKNOWN_RANK)]


@pytest.mark.parametrize("between", ["[rank0]: step 3 done\n", "[rank0]:[E611 04:20:36.1] x\n"])
def test_a_heading_is_none_where_another_rank_speaks_in_between(between: str) -> None:
    assert [one.rank for one in read(f"rank 1\n{between}{SPY}")] == [UNKNOWN_RANK]


def test_a_prefix_of_another_rank_wins_over_a_heading() -> None:
    text = "".join(f"[rank0]: {line}\n" for line in FAULT.splitlines())
    assert [one.rank for one in read(f"rank 1\n{text}")] == [UNKNOWN_RANK]


# -------------------------------------------------------------------- headings of hosts and of gdb

NEW = "".join(f"[New LWP {100 + number}]\n" for number in range(60))


def test_heading_before_the_many_lines_of_gdb_names_the_rank() -> None:
    bare = "\n".join(line for line in GDB.splitlines()[2:] if line.startswith("#"))
    noise = (
        f"{NEW}[Thread debugging using libthread_db enabled]\n0x00007f2a in read () from libc.so.6"
    )
    text = "".join(f"### rank {rank}\n{noise}\n{bare}\n" for rank in range(3))

    assert [one.rank for one in read(text)] == [0, 1, 2]


@pytest.mark.parametrize(
    "heading",
    [
        "$ kubectl exec asr-2 -- py-spy dump --pid 71",
        "kubectl -n train exec -it asr-2 -c pytorch -- py-spy dump --pid 71",
        "# kubectl exec -n train pod/asr-2 -- gdb -p 71",
        "$ ssh -p 22 me@asr-2 sudo py-spy dump --pid 71",
        "$ srun -w asr-2 py-spy dump --pid 71",
        "$ docker exec -it asr-2 py-spy dump --pid 71",
        "=== asr-2 ===",
    ],
)
@pytest.mark.parametrize("text", [SPY, FAULT])
def test_heading_names_the_host(heading: str, text: str) -> None:
    assert [one.node for one in read(f"{heading}\n{text}")] == ["asr-2"]


@pytest.mark.parametrize(
    "heading",
    ["$ py-spy dump --pid 71", "=== step 3 ===", "executing gdb", "- item-2", "the ssh of gdb"],
)
def test_lookalike_of_such_a_heading_names_nobody(heading: str) -> None:
    assert [one.node for one in read(f"{heading}\n{SPY}")] == [""]


@pytest.mark.parametrize(
    ("said", "rank", "local"),
    [
        ("(rank 3)", 3, -1),
        ("[rank=3]", 3, -1),
        ("(global rank 3, gpu-7)", 3, -1),
        ("(this is rank 3)", 3, -1),
        ("(local rank 3)", -1, 3),
        ("(rank 3, waits for rank 1)", -1, -1),
        ("(idle)", -1, -1),
    ],
)
def test_word_behind_the_number_of_a_process_tells_its_rank(
    said: str, rank: int, local: int
) -> None:
    for head in (f"Process 71 {said}: python train.py", f"Process 71: python train.py {said}"):
        (seen,) = read(SPY.replace("Process 71: python train.py", head))

        assert (seen.pid, seen.rank, seen.local) == (71, rank, local)
