from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from whystuck.agent.ondemand.guards import (
    Answer,
    CpuWatch,
    Signs,
    choose_processes,
    judge,
    read_beat_age_s,
    uses_device,
)
from whystuck.agent.ondemand.rank_sync import Pace, all_told_ns
from whystuck.agent.ondemand.stepping import StepWatch, choose_roundup, choose_start
from whystuck.collect.beats import LAYOUT, MAGIC
from whystuck.evidence.agent import ProcessEntry, ProcessKind, TraceRequest

S = 1_000_000_000


def _watch(*counts: tuple[int, float]) -> StepWatch:
    watch = StepWatch()
    for steps, time_s in counts:
        watch.note(steps, int(time_s * S))
    return watch


NONE = _watch()
MOVING = _watch((100, 1), (110, 2), (120, 3))
STILL = _watch((100, 1), (110, 2), (110, 60))


@pytest.mark.parametrize(
    ("signs", "answer", "word"),
    [
        (Signs(MOVING, 4 * S), Answer.SEND, ""),
        (Signs(STILL, 60 * S), Answer.REFUSE, "no step for 58 s, after 110"),
        (Signs(_watch((0, 1)), 3 * S), Answer.WAIT, "to see it step"),
        (Signs(_watch((0, 1)), 12 * S), Answer.REFUSE, "--duration"),
        (Signs(_watch((7, 1), (8, 21)), 60 * S), Answer.SEND, ""),
        (Signs(_watch((7, 1), (8, 21)), 122 * S), Answer.REFUSE, "no step for 101 s"),
        (Signs(NONE, 0, cpu_share=0.4, watched_ns=S // 10), Answer.SEND, ""),
        (Signs(NONE, 0, cpu_share=-1, watched_ns=0), Answer.WAIT, "whether it runs"),
        (Signs(NONE, 0, cpu_share=0.0, watched_ns=1 * S), Answer.WAIT, "whether it runs"),
        (Signs(NONE, 0, cpu_share=0.001, watched_ns=3 * S), Answer.REFUSE, "done nothing for 3 s"),
        (Signs(NONE, 0, cpu_share=-1, watched_ns=3 * S), Answer.SEND, ""),
    ],
)
def test_iterations(signs: Signs, answer: Answer, word: str) -> None:
    verdict = judge(signs, iterations=3, stacks=False, is_probed=False)
    assert verdict.answer is answer
    assert word in verdict.reason


@pytest.mark.parametrize(
    ("signs", "is_probed", "answer"),
    [
        (Signs(MOVING, 4 * S), False, Answer.SEND),
        (Signs(STILL, 60 * S), False, Answer.SEND_PROBE),
        (Signs(STILL, 60 * S), True, Answer.SEND),
        (Signs(STILL, 60 * S, beat_age_s=0.9), False, Answer.SEND_PROBE),
        (Signs(STILL, 60 * S, beat_age_s=9.0), False, Answer.REFUSE),
        (Signs(MOVING, 4 * S, beat_age_s=9.0), True, Answer.REFUSE),
        (Signs(NONE, 4 * S), False, Answer.WAIT),
        (Signs(NONE, 4 * S, cpu_share=0.0, watched_ns=1 * S), False, Answer.WAIT),
        (Signs(NONE, 4 * S, cpu_share=0.0, watched_ns=1 * S), True, Answer.SEND),
        (Signs(NONE, 4 * S, cpu_share=0.3, watched_ns=1 * S), False, Answer.SEND),
        (Signs(NONE, 4 * S, watched_ns=4 * S), False, Answer.SEND),
        (Signs(NONE, 4 * S, cpu_share=0.0, watched_ns=4 * S), False, Answer.SEND_PROBE),
    ],
)
def test_stacks(signs: Signs, is_probed: bool, answer: Answer) -> None:
    assert judge(signs, iterations=0, stacks=True, is_probed=is_probed).answer is answer
    # Without stacks nothing of this matters.
    plain = judge(signs, iterations=0, stacks=False, is_probed=is_probed)
    assert plain.answer is Answer.SEND


def test_launchers_and_helpers_are_traced_when_they_are_named() -> None:
    entries = [
        ProcessEntry(pid=1, kind=ProcessKind.RANK, rank=0),
        ProcessEntry(pid=2, kind=ProcessKind.PROCESS),
        ProcessEntry(pid=3, kind=ProcessKind.LAUNCHER),
        ProcessEntry(pid=4, kind=ProcessKind.HELPER, told_pids=(44, 1)),
    ]

    def pids(request: TraceRequest) -> list[list[int]]:
        return [[one.pid for one in part] for part in choose_processes(entries, request)]

    assert pids(TraceRequest()) == [[1, 2], []]
    assert pids(TraceRequest(pids=(3,))) == [[1, 2, 3], []]
    assert pids(TraceRequest(pids=(44,))) == [[1, 2, 4], []]
    assert pids(TraceRequest(pids=(0,))) == [[1, 2], []]
    assert pids(TraceRequest(process_limit=1)) == [[1], [2]]


def test_cpu_time_tells_one_that_works_from_one_that_waits() -> None:
    body = "import time\nwhile True: time.sleep({})"
    for code, is_working in (("while True: pass", True), (body.format(60), False)):
        with subprocess.Popen([sys.executable, "-c", code]) as process:
            try:
                assert _settles(process.pid, is_working=is_working)
            finally:
                process.kill()
    assert CpuWatch(2**22 + 1, 0).share(S) == -1


def _settles(pid: int, *, is_working: bool) -> bool:
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        watch = CpuWatch(pid, time.monotonic_ns())
        begin_ns = time.monotonic_ns()
        while time.monotonic_ns() < begin_ns + 200_000_000:
            os.sched_yield()
        share = watch.share(time.monotonic_ns())
        if share > 0.05 if is_working else 0 <= share < 0.005:
            return True
    return False


def test_heartbeat_tells_whether_python_runs(tmp_path: Path) -> None:
    assert read_beat_age_s("", 7) == -1
    assert read_beat_age_s(str(tmp_path), 7) == -1
    beat = LAYOUT.pack(MAGIC, 2, time.monotonic_ns() - 9 * S, 0, 0, 1, 5, 0, 0, 0, 0, 2)
    (tmp_path / "beat-7").write_bytes(beat)
    assert 9 <= read_beat_age_s(str(tmp_path), 7) < 60


def test_no_device_is_found_here_or_of_a_process_that_is_gone() -> None:
    assert not uses_device(2**22 + 1)


def test_steps_ahead_are_those_of_the_fastest_rank() -> None:
    slow, fast = _watch((0, 0), (100, 10)), _watch((1, 0), (101, 5))
    assert fast.steps_per_s == pytest.approx(20)
    assert fast.predict(6 * S) == 121
    assert choose_start([slow, fast], 6 * S) == 123
    assert choose_roundup([slow, fast]) == 40
    assert choose_start([fast, NONE], 6 * S) == -1
    assert choose_start([_watch((0, 0))], 6 * S) == -1, "no rate yet"
    assert choose_start([], 0) == -1


def test_job_that_has_become_faster_is_thought_to_stay_so() -> None:
    begun = _watch((0, 0), (10, 10), (60, 11), (110, 12))
    assert begun.steps_per_s == pytest.approx(110 / 12)
    assert begun.predict(13 * S) == 160
    assert _watch((0, 0), (50, 1), (100, 2), (110, 12)).predict(13 * S) >= 116, "now slower"


def test_unknown_and_falling_counts_say_nothing() -> None:
    watch = _watch((-1, 0), (5, 1), (4, 2), (-1, 3))
    assert watch.steps == 5
    assert watch.is_moving(4 * S) is None
    assert NONE.is_moving(0) is None
    assert NONE.predict(0) == -1


def test_polls_tell_when_the_next_comes() -> None:
    pace = Pace()
    assert pace.next_ns(10 * S) == 15 * S
    for second in (1, 2, 3, 5):
        pace.note(second * S)
    assert pace.next_ns(5 * S) == 6 * S
    assert pace.next_ns(7 * S + 1) == 7 * S + 1, "one that is late comes now"
    assert pace.next_ns(7 * S + S // 5) == 8 * S
    assert all_told_ns([pace], 5 * S) == 6 * S
    assert all_told_ns([], 5 * S) == 5 * S
