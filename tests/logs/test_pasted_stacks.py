"""Whose pasted stacks are, by the command of the process, and who keeps the GIL in native ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Verdict

WAITS = """\
Thread {pid} (active): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2806)
    sync (train.py:88)
    <module> (train.py:201)
"""
ELSEWHERE = """\
Thread {pid} (idle): "MainThread"
    read (ssl.py:1167)
    urlopen (urllib/request.py:216)
    fetch (data/vocab.py:31)
    <module> (train.py:201)
"""
HEAD = "Process {pid}: /usr/bin/python3 train.py {option} --cfg a.yaml\nPython v3.11.9 (python)\n\n"


def show(number: int, option: str, *, late: int, first: int = 0) -> str:
    pid = 400 + number
    stack = ELSEWHERE if number == late else WAITS
    return (HEAD + stack).format(pid=pid, option=option.format(number - first))


@pytest.mark.parametrize("option", ["--local-rank={0}", "--local_rank {0}", "--local_rank={0}"])
def test_local_rank_in_the_command_names_who_is_elsewhere(tmp_path: Path, option: str) -> None:
    report = say(tmp_path, *(show(number, option, late=2) for number in range(4)))

    finding = first_of(report)
    assert (finding.code, finding.culprits.ranks) == ("H101", [2])


def test_local_rank_that_two_hosts_have_names_nobody(tmp_path: Path) -> None:
    texts = [show(number, "--local-rank={0}", late=2) for number in range(4)]
    texts += [show(number, "--local-rank={0}", late=-1, first=4) for number in range(4, 8)]

    report = say(tmp_path, *texts)

    assert all(not one.culprits.ranks for one in report.findings)


def test_local_rank_on_a_host_that_is_named_names_nobody(tmp_path: Path) -> None:
    texts = [
        text
        for number in range(4)
        for text in ("=== gpu-node-3 ===", show(number, "--local-rank={0}", late=2))
    ]

    report = say(tmp_path, *texts)

    assert all(not one.culprits.ranks for one in report.findings)


WANTS = """\
Thread 3 (Thread 0x7f1a2effd640 (LWP 815) "worker"):
#0  futex_abstimed_wait_cancelable64 () at ./nptl/futex-internal.c:57
#1  0x00000000004f3b2a in take_gil ()
#2  0x000000000055e2d1 in PyEval_RestoreThread ()
#3  0x00007f1b0c2a8f11 in run () from /v/lib/libtorch_python.so
"""
KEEPS = """\
Thread 1 (Thread 0x7f1b11d2a740 (LWP 701) "python"):
#0  {block} at ../sysdeps/nptl/futex-internal.h:146
#1  0x00007f1a8c00b7d2 in {call}
#2  0x0000000000530f4d in cfunction_call ()
#3  0x00000000004e2c3f in _PyEval_EvalFrameDefault ()
#4  0x00007f1b11a29d90 in Py_RunMain ()
"""
EXTENSION = "tok::Pool::drain() () from /v/lib/python3.10/site-packages/tok/_core.so"


def test_extension_that_is_blocked_keeps_the_gil_others_want(tmp_path: Path) -> None:
    keeps = KEEPS.format(block="__GI___lll_lock_wait (futex=0x7f) ", call=EXTENSION)

    finding = first_of(say(tmp_path, WANTS, keeps))

    assert (finding.code, finding.confidence, finding.culprits.ranks) == ("H114", "possible", [])
    assert "process 701 is blocked in tok::Pool::drain" in finding.summary


@pytest.mark.parametrize(
    ("block", "call"),
    [
        ("tok::hash (n=5)", EXTENSION),
        ("pthread_cond_wait@@GLIBC_2.3.2 ()", "ReadyQueue::pop () from /v/lib/libtorch_cpu.so"),
        ("__GI___clock_nanosleep ()", "time_sleep (self=0x1) at ./Modules/timemodule.c:2027"),
    ],
    ids=["computes", "torch", "interpreter"],
)
def test_thread_that_is_at_work_or_gave_the_gil_back_keeps_nothing(
    tmp_path: Path, block: str, call: str
) -> None:
    report = say(tmp_path, WANTS, KEEPS.format(block=block, call=call))

    assert report.verdict is Verdict.INCONCLUSIVE
    assert all(one.code != "H114" for one in report.findings)


COMPUTES = """\
Thread 1 (Thread 0x7f1b11d2a740 (LWP 701) "python"):
#0  0x00007f1a8c00b7d2 in tok::merge (n=5) from /v/lib/python3.10/site-packages/tok/_core.so
#1  0x0000000000530f4d in ?? ()
#2  0x00000000004e2c3f in _PyEval_EvalFrameDefault ()
"""


def test_extension_that_computes_while_two_threads_want_the_gil(tmp_path: Path) -> None:
    second = WANTS.replace("Thread 3 (", "Thread 4 (").replace("LWP 815", "LWP 816")
    finding = first_of(say(tmp_path, WANTS, second, COMPUTES))

    assert (finding.code, finding.confidence) == ("H114", "possible")
    assert "is busy in tok::merge of _core.so" in finding.summary
    assert all("??" not in place.function for place in finding.where)

    # One that waits may have come this moment.
    report = say(tmp_path, WANTS, COMPUTES)
    assert all(one.code != "H114" for one in report.findings)


def test_blocked_extension_that_nobody_waits_for_keeps_nothing(tmp_path: Path) -> None:
    report = say(tmp_path, KEEPS.format(block="futex_wait ()", call=EXTENSION))

    assert all(one.code != "H114" for one in report.findings)


def test_one_of_two_threads_that_run_python_is_not_guessed(tmp_path: Path) -> None:
    keeps = KEEPS.format(block="futex_wait ()", call=EXTENSION)
    other = keeps.replace("Thread 1 (", "Thread 2 (").replace("LWP 701", "LWP 702")

    report = say(tmp_path, WANTS, other, keeps)

    assert all(one.code != "H114" for one in report.findings)
