"""Threads of ranks that end with an exception, while the rest of their process goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_pasted_near import blamed_of
from tests.logs.test_told import first_of, say
from tests.logs.test_who import WAIT

from whystuck.evidence.finding import Confidence, Verdict

ERROR = [
    "Exception in thread {0}:",
    "Traceback (most recent call last):",
    '  File "/usr/lib/python3.12/threading.py", line 1073, in _bootstrap_inner',
    "    self.run()",
    '  File "/w/feeder.py", line 41, in pump',
    "    self.out.put(self.parse(item))",
    '  File "/w/feeder.py", line 18, in parse',
    "    return int(item)",
    "ValueError: invalid literal for int() with base 10: 'x7'",
]
SPY = [
    'Thread 4410 (idle): "MainThread"',
    "    wait (threading.py:355)",
    "    get (queue.py:171)",
    "    next (w/feeder.py:60)",
    "    <module> (w/main.py:12)",
]
FUTURE = [
    'Thread 4410 (idle): "MainThread"',
    "    wait (threading.py:355)",
    "    result (concurrent/futures/_base.py:451)",
    "    next (w/feeder.py:60)",
]
FAULT = [
    "Thread 0x00007f2a51b2a740 (most recent call first):",
    '  File "/usr/lib/python3.12/threading.py", line 1119 in _wait_for_tstate_lock',
    '  File "/usr/lib/python3.12/threading.py", line 1099 in join',
    '  File "/w/feeder.py", line 60 in next',
    '  File "/w/main.py", line 12 in <module>',
]
BUSY = [
    'Thread 4410 (active): "MainThread"',
    "    forward (w/model.py:60)",
    "    <module> (w/main.py:12)",
]


def fail(rank: int, thread: str = "Thread-3 (pump)", prefix: str = "[rank{0}]: ") -> list[str]:
    return [prefix.format(rank) + line.format(thread) for line in ERROR]


@pytest.mark.parametrize("stack", [SPY, FUTURE, FAULT], ids=["queue", "future", "join"])
@pytest.mark.parametrize("thread", ["Thread-3", "Thread-3 (pump)", "feeder of rows"])
@pytest.mark.parametrize("prefix", ["[rank{0}]: ", "[rank{0}] ", "{0}: "])
def test_rank_that_waits_for_a_thread_that_failed_is_named(
    tmp_path: Path, stack: list[str], thread: str, prefix: str
) -> None:
    steps = [prefix.format(rank) + f"step 7 loss 2.{rank}" for rank in range(3)]
    report = say(tmp_path, *steps, *fail(2, thread, prefix), "py-spy on rank 2:", *stack)
    finding = first_of(report)

    assert (finding.code, finding.culprits.ranks) == ("H120", [2])
    assert finding.details["thread"] == thread
    assert report.verdict is Verdict.STUCK


def test_rank_that_is_at_work_after_its_thread_failed_is_not_said_to_wait(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, *fail(2), "py-spy on rank 2:", *BUSY))

    assert finding.code == "C204"
    assert finding.confidence is Confidence.POSSIBLE


def test_stack_above_the_exception_tells_nothing_of_what_came_later(tmp_path: Path) -> None:
    assert first_of(say(tmp_path, "py-spy on rank 2:", *SPY, "", *fail(2))).code == "C204"


def test_thread_that_failed_before_others_waited_is_named(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, *fail(2), WAIT.format(0), WAIT.format(1)))

    assert (finding.code, finding.culprits.ranks) == ("C204", [2])
    assert finding.victims.ranks == "0-1"
    assert "Thread-3 (pump)" in finding.summary


def test_thread_of_a_rank_that_waits_with_the_others_is_not_named(tmp_path: Path) -> None:
    report = say(tmp_path, *fail(1), WAIT.format(0), WAIT.format(1))

    assert first_of(report).code == "C211"
    assert blamed_of(report)[0] == set()


def test_thread_in_code_of_a_library_alone_is_not_told(tmp_path: Path) -> None:
    lines = [line.replace("/w/", "/opt/lib/python3.12/site-packages/tracker/") for line in fail(2)]
    report = say(tmp_path, *lines, WAIT.format(0), WAIT.format(1))

    assert first_of(report).code == "C211"


def test_exception_of_the_main_thread_goes_before_that_of_another_one(tmp_path: Path) -> None:
    raised = [
        "[rank2]: Traceback (most recent call last):",
        '[rank2]:   File "/w/main.py", line 9, in <module>',
        "[rank2]: KeyError: 'lr'",
    ]
    finding = first_of(say(tmp_path, *fail(2), *raised))

    assert (finding.code, finding.culprits.ranks) == ("C204", [2])
    assert "KeyError" in finding.summary


def test_threads_of_all_ranks_that_failed_alike_blame_nobody(tmp_path: Path) -> None:
    report = say(tmp_path, *(line for rank in range(4) for line in fail(rank)))

    assert first_of(report).code == "C205"
    assert blamed_of(report)[0] == set()


def test_exception_of_a_thread_is_told_though_nobody_knows_whose(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, *fail(0, prefix="")))

    assert (finding.code, finding.culprits.ranks) == ("C204", [])
    assert finding.confidence is Confidence.POSSIBLE


def test_lines_of_others_may_stand_between_a_heading_and_its_traceback(tmp_path: Path) -> None:
    head, *rest = fail(2)
    lines = [head, "[rank0]: step 8 loss 2.0", "[rank1]: step 8 loss 2.1", *rest]
    finding = first_of(say(tmp_path, *lines))

    assert "Thread-3 (pump)" in finding.summary


SAME = [
    "# later, py-spy on the same pid",
    "and a py-spy dump of that process:",
    "gdb and py-spy, same rank, an hour after",
]


@pytest.mark.parametrize("words", SAME)
@pytest.mark.parametrize("is_cut", [False, True])
def test_stack_of_the_process_spoken_of_above(tmp_path: Path, words: str, *, is_cut: bool) -> None:
    steps = [f"[rank{rank}]: step 7 loss 2.{rank}" for rank in range(3)]
    error = [line for line in fail(2) if "Traceback" not in line] if is_cut else fail(2)
    finding = first_of(say(tmp_path, *steps, *error, words, *SPY))

    assert (finding.code, finding.culprits.ranks) == ("H120", [2])


@pytest.mark.parametrize(
    "words",
    [
        "py-spy, not of that rank but of its neighbour in the same process group:",
        "all of them show this one, is it the same process?",
        "py-spy of pid 4410, not the same process as above:",
    ],
)
def test_stack_of_another_process_is_not_that_of_the_exception(tmp_path: Path, words: str) -> None:
    steps = [f"[rank{rank}]: step 7 loss 2.{rank}" for rank in range(3)]

    assert first_of(say(tmp_path, *steps, *fail(2), words, *SPY)).code != "H120"
