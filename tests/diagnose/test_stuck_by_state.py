"""Ranks that do not come, each with the state that tells why; and states that accuse nobody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.diagnose.scenes import C10D, MODULE, TORCH, WAITING, Job, at

from whystuck.evidence.finding import Confidence, Severity, Verdict
from whystuck.evidence.live import Beat, PythonException, ThreadStack
from whystuck.evidence.ops.collectives import Frame

SLEEPING = (at("/job/features.py", 7, "wait_for_quota"), at("/job/train.py", 8), MODULE)
FETCH = Frame("fetch", f"{TORCH}/utils/data/_utils/fetch.py", 52)
WORKER_LOOP = Frame("_worker_loop", f"{TORCH}/utils/data/_utils/worker.py", 350)
TRY_GET = Frame("_try_get_data", f"{TORCH}/utils/data/dataloader.py", 1275)


def stalled(missing: int = 2) -> Job:
    """A job that made five steps; all ranks but one are in the sixth all_reduce."""
    job = Job().steps()
    return job.waits(rank for rank in range(4) if rank != missing)


def test_sleeping_rank_is_named_with_its_line() -> None:
    report = stalled().stands(2, SLEEPING).report()
    (finding,) = report.findings

    assert report.verdict is Verdict.STUCK
    assert (finding.code, finding.name) == ("H101", "rank-never-joined")
    assert finding.confidence is Confidence.LIKELY
    assert finding.severity is Severity.ERROR
    assert finding.culprits.ranks == [2]
    assert finding.victims.ranks == "0-1,3"
    assert [(place.file, place.line) for place in finding.where[:2]] == [
        ("/job/features.py", 7),
        ("/job/train.py", 8),
    ]
    assert finding.because[0].artifact == "n0/rank-2/stacks-1.json"
    assert finding.because[1].row == 5


def test_computing_rank_is_possible_until_the_gap_is_ten_times_the_longest() -> None:
    job = stalled().stands(2, SLEEPING, cpu_share=0.9)
    finding = job.finding()
    assert (finding.confidence, finding.severity) == (Confidence.POSSIBLE, Severity.WARNING)

    finding = job.of_kind("stall", stalled_s=41.0).finding()
    assert (finding.confidence, finding.severity) == (Confidence.LIKELY, Severity.ERROR)


@pytest.mark.parametrize(
    "call",
    [
        'store.get(f"rollout/{i}/{actor}")',
        'dist.TCPStore("host", 29500).wait([key])',
        "self._store.wait(keys, LIMIT)",
        "default_store().multi_get(keys)",
    ],
)
def test_rank_that_waits_for_a_key_of_a_store_is_no_culprit(call: str) -> None:
    job = stalled().stands(2, (at("/job/rl.py", 2, "learn"), at("/job/train.py", 8), MODULE))
    job.source("/job/rl.py", f"def learn(i):\n    {call}\n")
    finding = job.finding()

    assert (finding.code, finding.confidence) == ("H101", Confidence.POSSIBLE)
    assert finding.culprits.ranks == []
    assert finding.victims.ranks == "0-3"
    assert "for a key of a store" in finding.summary
    assert (finding.where[0].rank, finding.where[0].line) == (2, 2)
    assert finding.details["state"] == "waiting for a key"


@pytest.mark.parametrize("call", ["storage.get(key)", "stores[0].get(key)  # restore.wait(x)"])
def test_rank_in_another_get_is_named(call: str) -> None:
    job = stalled().stands(2, (at("/job/rl.py", 2, "learn"), at("/job/train.py", 8), MODULE))
    job.source("/job/rl.py", f"def learn(i):\n    {call}\n")

    assert job.finding().culprits.ranks == [2]


def test_rank_whose_event_loop_has_nothing_to_run_is_named_with_its_last_collective() -> None:
    lib = "/usr/lib/python3.11"
    loop = (
        Frame("EpollSelector.select", f"{lib}/selectors.py", 468),
        Frame("BaseEventLoop._run_once", f"{lib}/asyncio/base_events.py", 1884),
        Frame("BaseEventLoop.run_forever", f"{lib}/asyncio/base_events.py", 607),
        Frame("run", f"{lib}/asyncio/runners.py", 190),
    )
    finding = stalled().stands(2, (*loop, at("/job/train.py", 40), MODULE)).finding()

    assert (finding.code, finding.culprits.ranks) == ("H101", [2])
    assert "asyncio" in finding.summary
    assert "train.py:10" in finding.summary  # where the coroutine that is suspended was last seen
    assert [place.line for place in finding.where] == [40, 99, 10]


def test_rank_seen_only_by_its_dump_is_named_with_its_last_site() -> None:
    job = Job().steps()
    job.ops([0, 1, 3], "all_reduce", [at("/job/train.py", 10)], pending=True)
    finding = job.finding()

    assert (finding.code, finding.culprits.ranks) == ("H101", [2])
    assert finding.where[0].line == 10


def test_missing_dumps_of_several_ranks_accuse_nobody() -> None:
    job = Job()
    job.ops([0, 1], "all_reduce", [at("/job/train.py", 10)], times=4)
    job.ops([0, 1], "all_reduce", [at("/job/train.py", 10)], pending=True)
    report = job.report()

    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.findings == []
    assert any(gap.what == "stacks" for gap in report.gaps)


def test_rank_that_waits_in_another_group_is_a_victim() -> None:
    job = Job()
    job.members = {"0": (0, 1, 2, 3), "7": (2, 3)}
    job.steps()
    job.ops([2, 3], "all_reduce", [at("/job/train.py", 20)], times=3, group="7")
    job.waits([0, 1])
    job.ops([3], "all_reduce", [at("/job/train.py", 20)], group="7", pending=True)
    job.stands(3, (*WAITING, at("/job/train.py", 20), MODULE)).stands(2, SLEEPING)
    finding = job.finding()

    assert (finding.code, finding.culprits.ranks) == ("H101", [2])


def test_groups_of_one_name_with_other_members_are_different_groups() -> None:
    job = Job()
    evidence = job.steps().evidence()
    first = replace(evidence.collectives.groups[0], name="5", desc="dp", members=(0, 1))
    second = replace(first, members=(2, 3))
    # Ranks 0 and 1 are one op ahead of ranks 2 and 3 in groups that only share a name.
    job = Job()
    job.members = {"5": (0, 1)}
    job.ops([0, 1], "all_reduce", [at("/job/train.py", 10)], group="5", times=6)
    left = job.evidence().collectives
    assert left.groups[0] == replace(first, desc="group-5")
    job = Job()
    job.members = {"5": (2, 3)}
    job.ops([2, 3], "all_reduce", [at("/job/train.py", 10)], group="5", times=5)
    assert job.evidence().collectives.groups[0] == replace(second, desc="group-5")


def test_stopped_process_is_h113() -> None:
    finding = stalled().stands(2, SLEEPING, state="T").finding()

    assert (finding.code, finding.confidence) == ("H113", Confidence.CERTAIN)
    assert finding.details == {"state": "T"}


def test_process_that_a_tracer_stopped_once_is_not_h113() -> None:
    job = stalled().stands(2, SLEEPING)
    job.processes[-1] = replace(job.processes[-1], state="t")

    assert job.codes() == ["H101"]


def test_thread_that_keeps_the_gil_is_h114() -> None:
    call = (at("/job/native.py", 15, "summarise"), at("/job/train.py", 8), MODULE)
    job = stalled().stands(2, call, owns_gil=True)
    job.beats.append(Beat(2, 102, age_s=20.0, stale=True, answered_without_gil=True))
    finding = job.finding()

    assert (finding.code, finding.confidence) == ("H114", Confidence.CERTAIN)
    assert finding.where[0].line == 15


def _held_gil(age_s: float, state: str = "S") -> Job:
    call = (at("/job/native.py", 15, "summarise"), at("/job/train.py", 8), MODULE)
    job = stalled().stands(2, call, owns_gil=True, state=state)
    job.beats.append(Beat(2, 102, age_s=age_s, stale=True))
    return job


def test_thread_that_keeps_the_gil_while_the_probe_cannot_run_is_certain() -> None:
    finding = _held_gil(age_s=4.0).finding()

    assert (finding.code, finding.confidence) == ("H114", Confidence.CERTAIN)


def test_thread_that_keeps_the_gil_from_a_probe_that_ran_just_now_is_likely() -> None:
    finding = _held_gil(age_s=2.0).finding()

    assert (finding.code, finding.confidence) == ("H114", Confidence.LIKELY)


def test_thread_that_owned_the_gil_when_its_process_was_stopped_is_h113() -> None:
    assert _held_gil(age_s=20.0, state="T").finding().code == "H113"


def test_thread_that_owns_the_gil_in_one_sample_is_not_certain() -> None:
    job = _held_gil(age_s=20.0)
    job.stacks = [look for look in job.stacks if look.rank != 2 or look.index == 0]

    assert "H114" not in job.codes()


def test_thread_that_computes_and_happens_to_own_the_gil_is_not_h114() -> None:
    job = stalled().stands(2, SLEEPING, owns_gil=True, cpu_share=0.99)
    job.beats.append(Beat(2, 102, age_s=0.5, optimizer_steps=3))

    assert job.codes() == ["H101"]


def test_exception_of_a_process_that_lives_on_is_h120_with_the_line_of_the_exception() -> None:
    shutdown = (Frame("_shutdown", "/usr/lib/python3.11/threading.py", 1590),)
    job = stalled().stands(2, shutdown)
    job.raises(2, "ValueError", "bad loss", [at("/job/train.py", 12), MODULE])
    finding = job.finding()

    assert (finding.code, finding.culprits.ranks) == ("H120", [2])
    assert (finding.where[0].file, finding.where[0].line) == ("/job/train.py", 12)
    assert finding.details["exception"] == "ValueError"


QUEUE = (
    Frame("wait", "/usr/lib/python3.11/threading.py", 327),
    Frame("get", "/usr/lib/python3.11/queue.py", 171),
    at("/job/train.py", 16, "next_batch"),
    MODULE,
)


def _lose_thread(job: Job, rank: int, *, before_s: float) -> Job:
    """Let a thread of a rank end with an error, so long before the stall of 30 s was told."""
    job.of_kind("stall", opened_ns=1_000_000_000_000)
    error = PythonException(
        rank,
        "ValueError",
        "corrupt record 60",
        (at("/job/train.py", 11, "produce"),),
        time_ns=int((1000 - 30 - before_s) * 1e9),
        is_main_thread=False,
        thread="loader",
    )
    job.thread_errors.append(error)
    return job


def test_rank_that_waits_for_a_thread_that_failed_is_h120_with_the_line_of_the_error() -> None:
    finding = _lose_thread(stalled().stands(2, QUEUE), 2, before_s=5.0).finding()

    assert (finding.code, finding.culprits.ranks) == ("H120", [2])
    assert (finding.confidence, finding.details["thread"]) == ("likely", "loader")
    assert [(place.file, place.line) for place in finding.where] == [
        ("/job/train.py", 11),
        ("/job/train.py", 16),
    ]


@pytest.mark.parametrize(
    ("frames", "before_s", "rank"),
    [(SLEEPING, 5.0, 2), (QUEUE, 4000.0, 2), (QUEUE, 5.0, 1)],
    ids=["elsewhere", "long before", "of a rank that waits for its peers"],
)
def test_error_of_a_thread_that_nobody_waits_for_is_not_h120(
    frames: tuple[Frame, ...], before_s: float, rank: int
) -> None:
    finding = _lose_thread(stalled().stands(2, frames), rank, before_s=before_s).finding()

    assert (finding.code, finding.culprits.ranks) == ("H101", [2])


TRAINER = ThreadStack(
    2,
    "trainer",
    (
        *WAITING,
        at("/job/train.py", 10, "train"),
        Frame("run", "/usr/lib/python3.11/threading.py", 982),
        Frame("_bootstrap_inner", "/usr/lib/python3.11/threading.py", 1045),
        Frame("_bootstrap", "/usr/lib/python3.11/threading.py", 1002),
    ),
)
JOINING = (Frame("wait", "/usr/lib/python3.11/threading.py", 327), at("/job/train.py", 30), MODULE)


def test_rank_that_trains_in_a_thread_waits_like_any_other() -> None:
    job = Job().steps().ops([0, 1, 3], "all_reduce", [at("/job/train.py", 10)], pending=True)
    for rank in (0, 1, 3):
        job.stands(rank, JOINING, others=(TRAINER,))
    finding = _lose_thread(job.stands(2, JOINING), 2, before_s=5.0).finding()

    assert (finding.code, finding.culprits.ranks) == ("H120", [2])
    assert finding.victims.ranks == "0-1,3"


def test_interpreter_that_ends_and_has_no_frames_left_is_not_h114() -> None:
    job = stalled().stands(2, (), owns_gil=True)
    job.beats.append(Beat(2, 102, age_s=8.0, stale=True))
    job.raises(2, "OSError", "truncated", [at("/job/data.py", 12), MODULE])

    assert job.finding().code == "H120"


AT_EXIT = (Frame("wait", "/usr/lib/python3.11/threading.py", 629), at("/job/log.py", 10, "flush"))


def test_rank_that_rests_at_its_exit_when_all_others_have_ended_is_h101() -> None:
    job = Job(world=2).steps().ends(1, code=0).stands(0, AT_EXIT)
    finding = job.finding()

    assert (finding.code, finding.culprits.ranks) == ("H101", [0])
    assert (finding.where[0].file, finding.where[0].line) == ("/job/log.py", 10)
    assert job.report().verdict is Verdict.STUCK


@pytest.mark.parametrize("moves", [{"write_bytes": 10_000_000}, {"cpu_share": 0.9}])
def test_rank_that_still_works_at_its_end_is_not_stuck(moves: dict[str, Any]) -> None:
    assert Job(world=2).steps().ends(1, code=0).stands(0, AT_EXIT, **moves).codes() == []


def test_rank_whose_peer_failed_is_not_named_for_being_there() -> None:
    assert "H101" not in Job(world=2).steps().ends(1, code=3).stands(0, AT_EXIT).codes()


def test_lost_connection_of_a_living_process_is_not_h120() -> None:
    job = stalled().stands(2, SLEEPING)
    job.raises(1, "RuntimeError", "Connection closed by peer [127.0.0.1]:1", [MODULE])

    assert "H120" not in job.codes()


def test_dataset_in_the_main_process_is_h111() -> None:
    frames = (
        at("/job/images.py", 26, "read"),
        at("/job/images.py", 19, "__getitem__"),
        FETCH,
        at("/job/train.py", 8),
        MODULE,
    )
    finding = stalled().stands(2, frames).finding()

    assert (finding.code, finding.where[0].line) == ("H111", 26)
    assert finding.details == {"function": "__getitem__"}


def worker_frames(line: int = 18) -> tuple[Frame, ...]:
    return (at("/job/images.py", line, "load"), FETCH, WORKER_LOOP, MODULE)


@pytest.mark.parametrize(("cpu_share", "words"), [(0.0, "stays in"), (0.9, "without end")])
def test_worker_that_stays_in_the_dataset_is_h112(cpu_share: float, words: str) -> None:
    job = stalled().stands(2, (TRY_GET, at("/job/train.py", 8), MODULE))
    job.stands(2, worker_frames(), worker=555, cpu_share=cpu_share)
    idle = (Frame("get", "/usr/lib/python3.11/multiprocessing/queues.py", 113), WORKER_LOOP, MODULE)
    job.stands(2, idle, worker=556)
    finding = job.finding()

    assert (finding.code, finding.culprits.ranks) == ("H112", [2])
    assert words in finding.summary
    assert finding.where[0].line == 18
    assert finding.details["worker_pid"] == 555


def test_worker_that_waits_for_a_lock_is_h112_and_says_so() -> None:
    job = stalled().stands(2, (TRY_GET, at("/job/train.py", 8), MODULE))
    job.source("/job/images.py", "\n" * 17 + "with guard:\n    pass\n")
    finding = job.stands(2, worker_frames(), worker=555).finding()

    assert finding.code == "H112"
    assert "forked" in finding.summary
    assert finding.details["lock"] == "guard"


@pytest.mark.parametrize("is_idle", [True, False])
def test_worker_that_is_stopped_is_h113_with_its_process(is_idle: bool) -> None:
    job = stalled().stands(2, (TRY_GET, at("/job/train.py", 8), MODULE))
    idle = (Frame("get", "/usr/lib/python3.11/multiprocessing/queues.py", 113), WORKER_LOOP, MODULE)
    job.stands(2, idle if is_idle else worker_frames(), worker=555, state="T")
    finding = job.stands(2, idle, worker=556).finding()

    assert (finding.code, finding.confidence) == ("H113", Confidence.CERTAIN)
    assert finding.culprits.ranks == [2]
    assert "worker 555 is stopped (state T)" in finding.summary
    assert finding.details == {"state": "T", "worker_pid": 555, "worker_pids": [555]}
    assert finding.where[0].line == (8 if is_idle else 18)
    assert not [text for text in finding.ruled_out if "stopped" in text]


def test_stopped_child_of_a_rank_that_does_not_wait_for_it_is_not_h113() -> None:
    job = (
        stalled()
        .stands(2, SLEEPING)
        .stands(2, (at("/job/tool.py", 3), MODULE), worker=9, state="T")
    )
    finding = job.finding()

    assert finding.code == "H101"
    # It is not known to be the reason, nor that it is none.
    assert not [text for text in finding.ruled_out if "stopped" in text]


def test_worker_that_a_tracer_stopped_once_is_not_h113() -> None:
    job = stalled().stands(2, (TRY_GET, at("/job/train.py", 8), MODULE))
    job.stands(2, worker_frames(), worker=555)
    job.processes[-1] = replace(job.processes[-1], state="t")

    assert job.codes() == ["H112"]


def test_main_process_whose_workers_are_all_idle_is_not_h112() -> None:
    job = stalled().stands(2, (TRY_GET, at("/job/train.py", 8), MODULE))
    idle = (Frame("get", "/usr/lib/python3.11/multiprocessing/queues.py", 113), WORKER_LOOP, MODULE)

    assert job.stands(2, idle, worker=556).codes() == ["H101"]


LOCKS = """\
def first():
    with a:
        with b:
            pass


def second():
    with b:
        with a:
            pass
"""


def with_threads(text: str, other_line: int) -> Job:
    other = ThreadStack(2, "writer", (at("/job/locks.py", other_line, "second"),))
    job = stalled().source("/job/locks.py", text)
    return job.stands(2, (at("/job/locks.py", 3, "first"), MODULE), others=(other,))


def test_two_threads_with_crossed_locks_are_h115() -> None:
    finding = with_threads(LOCKS, 9).finding()

    assert (finding.code, finding.confidence) == ("H115", Confidence.CERTAIN)
    assert [place.line for place in finding.where] == [3, 9]


def test_two_threads_at_different_locks_without_a_proof_are_likely() -> None:
    text = LOCKS.replace("    with b:\n        with a:", "    with c:\n        with d:")
    finding = with_threads(text, 9).finding()

    assert (finding.code, finding.confidence) == ("H115", Confidence.LIKELY)


def test_one_thread_at_a_lock_is_not_h115() -> None:
    job = stalled().source("/job/locks.py", LOCKS)

    assert job.stands(2, (at("/job/locks.py", 3, "first"), MODULE)).codes() == ["H101"]


def test_busy_rank_before_the_first_step_is_a_note() -> None:
    job = Job().ops(range(4), "broadcast", [at("/job/train.py", 3)])
    job.waits([1, 2, 3], line=5, op="barrier")
    job.stands(0, (at("/job/tokens.py", 33, "learn"), MODULE), cpu_share=0.98)
    report = job.report()

    assert report.verdict is Verdict.WAITING
    assert [(item.code, item.severity) for item in report.findings] == [("H117", Severity.NOTE)]


def test_sleeping_rank_before_the_first_step_is_h101() -> None:
    job = Job().ops(range(4), "broadcast", [at("/job/train.py", 3)])
    job.waits([1, 2, 3], line=5, op="barrier").stands(0, SLEEPING)

    assert job.codes() == ["H101"]


def test_rank_that_runs_the_model_alone_is_a_note() -> None:
    call = Frame("_call_impl", f"{TORCH}/nn/modules/module.py", 1790)
    linear = Frame("forward", f"{TORCH}/nn/modules/linear.py", 134)
    relu = Frame("forward", f"{TORCH}/nn/modules/activation.py", 144)
    stack = (call, at("/job/train.py", 30, "evaluate"), MODULE)
    job = stalled(missing=0)
    job.stands(0, [(linear, *stack), (relu, *stack)], cpu_share=1.0)

    assert job.codes() == ["H117"]


def test_rank_that_writes_a_checkpoint_is_a_note_with_its_rate() -> None:
    job = stalled(missing=0)
    frames = (at("/job/files.py", 31, "write"), at("/job/files.py", 20, "save_checkpoint"), MODULE)
    finding = job.stands(0, frames, write_bytes=8_000_000).finding()

    assert (finding.code, finding.severity) == ("H118", Severity.NOTE)
    assert finding.measures == {"mb_per_s": 8.0}


def test_rank_that_does_not_move_inside_a_save_is_stuck() -> None:
    frames = (at("/job/files.py", 31, "write"), at("/job/files.py", 20, "save_checkpoint"), MODULE)

    assert stalled(missing=0).stands(0, frames).codes() == ["H101"]


SERIALIZATION = f"{TORCH}/serialization.py"
LOADING = (
    Frame("_load.<locals>.load_tensor", SERIALIZATION, 2036),
    Frame("_load", SERIALIZATION, 2140),
    Frame("load", SERIALIZATION, 1530),
    at("/job/files.py", 40, "load_checkpoint"),
    MODULE,
)


def test_rank_that_loads_a_file_is_a_note_with_its_line_and_rate() -> None:
    report = stalled(missing=0).stands(0, LOADING, read_bytes=80_000_000).report()
    (finding,) = report.findings

    assert report.verdict is Verdict.WAITING
    assert (finding.code, finding.severity) == ("H118", Severity.NOTE)
    assert finding.confidence is Confidence.LIKELY
    assert (finding.culprits.ranks, finding.victims.ranks) == ([0], "1-3")
    assert (finding.where[0].file, finding.where[0].line) == ("/job/files.py", 40)
    assert finding.summary == (
        "rank 0 is loading a file in load_checkpoint (files.py:40) at 80.0 MB/s; "
        "ranks 1-3 wait for it"
    )
    assert finding.measures == {"mb_per_s": 80.0}


def test_rank_that_loads_before_the_first_step_is_h118() -> None:
    job = Job().ops(range(4), "broadcast", [at("/job/train.py", 3)])
    job.waits([1, 2, 3], line=5, op="barrier").stands(0, LOADING, cpu_share=0.9)
    finding = job.finding()

    assert (finding.code, finding.measures) == ("H118", {"cpu_share": 0.9})
    assert "is loading a file" in finding.summary


def test_rank_that_does_not_move_inside_a_load_is_stuck() -> None:
    finding = stalled(missing=0).stands(0, LOADING).finding()

    assert (finding.code, finding.confidence) == ("H101", Confidence.LIKELY)
    assert finding.where[0].line == 40


def test_ranks_that_all_load_accuse_nobody() -> None:
    job = Job().steps().of_kind("snapshot", stalled_s=0.0)
    for rank in range(4):
        job.stands(rank, LOADING, read_bytes=80_000_000)

    assert job.report().findings == []


def test_rank_in_destroy_process_group_is_h103() -> None:
    frames = (Frame("destroy_process_group", C10D, 2100), at("/job/train.py", 40), MODULE)
    finding = stalled().stands(2, frames).finding()

    assert (finding.code, finding.culprits.ranks) == ("H103", [2])
    assert finding.where[0].line == 40


def test_rank_that_ended_with_zero_is_h103() -> None:
    finding = stalled().ends(2, code=0).finding()

    assert (finding.code, finding.details) == ("H103", {"exit_code": 0})


LOOP = """\
def train():
    for step in range(10):
        work()


        dist.all_reduce(x)
    report()
    time.sleep(100)
"""


def test_rank_past_the_loop_of_the_others_is_h103() -> None:
    job = Job().steps(line=6).source("/job/train.py", LOOP).waits([0, 1, 3], line=6)
    finding = job.stands(2, (at("/job/train.py", 8), MODULE)).finding()

    assert finding.code == "H103"
    assert [place.line for place in finding.where[:1]] == [8]


def test_rank_inside_the_loop_of_the_others_is_h101() -> None:
    job = Job().steps(line=6).source("/job/train.py", LOOP).waits([0, 1, 3], line=6)

    assert job.stands(2, (at("/job/train.py", 3), MODULE)).codes() == ["H101"]


def test_stacks_alone_name_the_rank_that_is_elsewhere() -> None:
    job = Job()
    for rank in (0, 1, 3):
        job.stands(rank, (*WAITING, at("/job/train.py", 10), MODULE))
    finding = job.stands(2, SLEEPING).finding()

    assert (finding.code, finding.culprits.ranks) == ("H101", [2])


def test_stacks_where_nobody_waits_accuse_nobody() -> None:
    job = Job().of_kind("snapshot", stalled_s=0.0)
    for rank in range(4):
        job.stands(rank, (at("/job/train.py", 10 + rank), MODULE), cpu_share=0.9)
    report = job.report()

    assert (report.verdict, report.findings) == (Verdict.HEALTHY, [])


def test_snapshot_of_a_young_wait_is_healthy() -> None:
    job = stalled().stands(2, SLEEPING)
    job.of_kind("snapshot", stalled_s=0.0, opened_ns=3_000_000_000)

    assert job.report().verdict is Verdict.HEALTHY


def test_snapshot_of_an_old_wait_is_stuck() -> None:
    job = stalled().stands(2, SLEEPING)
    job.of_kind("snapshot", stalled_s=0.0, opened_ns=60_000_000_000)

    assert job.report().verdict is Verdict.STUCK


def test_rank_in_one_long_op_of_the_model_is_a_note() -> None:
    call = Frame("Module._call_impl", f"{TORCH}/nn/modules/module.py", 1790)
    linear = Frame("Linear.forward", f"{TORCH}/nn/modules/linear.py", 134)
    job = stalled(missing=0)
    job.stands(0, (linear, call, at("/job/train.py", 30, "score"), MODULE), cpu_share=1.0)

    assert job.codes() == ["H117"]


def test_ranks_that_all_compile_are_waiting_for_the_compiler() -> None:
    compiler = Frame("_run_compile_cmd", f"{TORCH}/_inductor/cpp_builder.py", 9)
    job = Job(2)
    for rank in range(2):
        job.stands(rank, [compiler, at("/job/train.py", 8), MODULE])
    report = job.report()
    (finding,) = report.findings

    assert report.verdict is Verdict.WAITING
    assert (finding.code, finding.severity) == ("H117", Severity.NOTE)


STORE_BARRIER = """
    def soft_barrier(step):
        store.add(f"b{step}", 1)
        while int(store.add(f"b{step}", 0)) < world:
            time.sleep(0.02)
    """


def test_ranks_in_a_barrier_of_their_own_over_a_store_are_not_blamed() -> None:
    barrier = at("/job/sync.py", 5, "soft_barrier")
    made = Job().steps().waits([1], 12).source("/job/sync.py", STORE_BARRIER)
    for rank in (0, 2, 3):
        save = (barrier, at("/job/train.py", 9, "save_checkpoint"), MODULE)
        made.stands(rank, save, cpu_share=0.01, write_bytes=200_000 * (rank == 2))
    finding = made.finding()

    assert (finding.code, finding.confidence.value) == ("H101", "possible")
    assert finding.culprits.ranks == []
    assert "for a sign that is no collective" in finding.summary


METRICS = at("/job/train.py", 14, "metrics")


def _part_by_thread(failed_in: str) -> Job:
    """Let a thread of rank 0 fail, and each side wait in the group that the other has left."""
    made = Job().of_kind("stall", opened_ns=1_000_000_000_000).steps()
    made.ops(range(4), "all_reduce", [METRICS], times=3, group="1")
    made.ops((1, 2, 3), "all_reduce", [METRICS], pending=True, group="1")
    made.waits([0], 20, op="barrier")
    join = (*QUEUE[:1], at("/job/train.py", 19), MODULE)
    base = [Frame(name, "/usr/lib/python3.11/threading.py", 982) for name in ("run", "_bootstrap")]
    caller = ThreadStack(2, "metrics", (*WAITING, METRICS, *base))
    for rank in (1, 2, 3):
        made.stands(rank, join, others=(caller,))
    frames = (at("/job/train.py", 12, failed_in),)
    error = PythonException(0, "KeyError", "'acc'", frames, time_ns=int(965e9), thread="metrics")
    made.thread_errors.append(error)
    return made


def test_thread_that_failed_where_others_call_is_the_cause_of_their_ring() -> None:
    finding = _part_by_thread("metrics").finding()

    assert (finding.code, finding.confidence.value) == ("H120", "likely")
    assert finding.culprits.ranks == [0]
    assert [(place.line) for place in finding.where] == [12, 20]


def test_thread_that_failed_elsewhere_leaves_the_ring() -> None:
    assert "H120" not in _part_by_thread("prefetch").codes()
