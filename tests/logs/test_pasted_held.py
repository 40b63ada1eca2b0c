"""Pasted stacks beside what ranks print: one raised and does not end, or keeps the GIL."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose.scenes import MODULE, Job, at
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Confidence
from whystuck.pipeline import read_evidence

RAISED = [
    "[rank1]: Traceback (most recent call last):",
    '[rank1]:   File "/w/main.py", line 131, in run',
    "[rank1]: RuntimeError: bad shape",
]
EXITING = [
    'Thread 40413 (idle): "MainThread"',
    "    _shutdown (threading.py:1567)",
    'Thread 40977 (idle): "prefetch-3"',
    "    wait (threading.py:320)",
    "    put (queue.py:140)",
    "    _fill (w/prefetch.py:38)",
]
TRAINING = [
    'Thread 40412 (active): "MainThread"',
    "    run (w/main.py:136)",
    "    <module> (w/main.py:145)",
]


def test_rank_that_raised_and_waits_for_its_threads_does_not_end(tmp_path: Path) -> None:
    report = say(
        tmp_path,
        *RAISED,
        "$ py-spy dump --pid 40413     # local rank 1",
        *EXITING,
        "",
        "$ py-spy dump --pid 40412     # local rank 0, 2 and 3 are the same",
        *TRAINING,
    )
    finding = first_of(report)

    assert (finding.code, finding.culprits.ranks) == ("H120", [1])
    assert finding.confidence is Confidence.LIKELY
    assert finding.victims.ranks == "0,2-3"
    assert "thread prefetch-3 is in _fill" in finding.summary


def test_rank_that_raised_and_is_seen_at_work_may_be_another_run(tmp_path: Path) -> None:
    report = say(tmp_path, *RAISED, "$ py-spy dump --pid 40413     # rank 1", *TRAINING)

    assert first_of(report).code != "H120"


def test_sentence_behind_a_stack_still_tells_who_has_it_too(tmp_path: Path) -> None:
    lines = ["$ py-spy dump --pid 40413     # rank 1", *EXITING, "ranks 0, 2 and 3 are the same"]
    report = say(tmp_path, *RAISED, *lines)

    assert report.coverage.ranks_seen == 4


GIL = (
    "[rank{0}]:[E224 00:51:52.301 ProcessGroupNCCL.cpp:1176] Could not acquire GIL within 300 ms "
    "on exit, possible GIL induced hang"
)
OWNS = [
    'Thread 9137 (active+gil): "MainThread"',
    "    sre_ucs1_match (Modules/_sre/sre_lib.h:1021)",
    "    score (w/reward.py:58)",
    'Thread 9502 (idle): "Thread-4 (hb)"',
    "    take_gil (Python/ceval_gil.h:249)",
    "    PyEval_RestoreThread (Python/ceval.c:1020)",
]


@pytest.mark.parametrize("rank", [0, 3])
def test_thread_that_keeps_the_gil_from_the_watchdog_is_named(tmp_path: Path, rank: int) -> None:
    report = say(
        tmp_path, GIL.format(rank), f"$ py-spy dump --native -p 9137   # rank {rank}", *OWNS
    )
    finding = first_of(report)

    assert (finding.code, finding.culprits.ranks) == ("H114", [rank])
    assert finding.confidence is Confidence.LIKELY
    assert finding.where[0].line == 58


SAID = [
    "# py-spy dump of some minutes ago, rank 3. all the others wait in the next step",
    "took this stack before I ended it, rank 3! The rest is in backward",
]
NOT_SAID = [
    "# py-spy dump of some minutes ago, rank 1. rank 3 looks the same to me",
    "# started it again on fewer nodes, rank 1. all the others wait",
    "# py-spy dump of some minutes ago. I do not know of which rank it is",
]


@pytest.mark.parametrize("said", SAID)
def test_first_sentence_above_a_dump_names_its_rank(tmp_path: Path, said: str) -> None:
    finding = first_of(say(tmp_path, GIL.format(3), said, "$ py-spy dump -n -p 9137", *OWNS))

    assert (finding.code, finding.culprits.ranks) == ("H114", [3])
    assert finding.confidence is Confidence.LIKELY


@pytest.mark.parametrize("said", NOT_SAID)
def test_sentence_that_tells_no_rank_of_a_dump_names_none(tmp_path: Path, said: str) -> None:
    report = say(tmp_path, "[rank1]: step 1 loss 2.1", said, "$ py-spy dump -p 9137", *OWNS)

    assert not any(place.rank == 1 for one in report.findings for place in one.where)


def test_watchdog_without_the_gil_alone_is_only_possible(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, GIL.format(2), "[rank0]: step 9 loss 2.1"))

    assert (finding.code, finding.confidence) == ("H114", Confidence.POSSIBLE)
    assert "stacks" in finding.remedies[0] or "gdb" in finding.remedies[0], finding.remedies


BUILDS = [
    'Thread 9137 (active+gil): "MainThread"',
    "    0x7f11d0a2c3b1 (libmesh_ops.so)",
    "    weld (libmesh_ops.so)",
    "    weld (w/mesh.py:29)",
    "    step (w/main.py:77)",
]
WAITING = [
    f'Thread {number} (idle): "{name}"\n    __futex_abs (libc.so.6)\n    take_gil (python3.11)'
    for number, name in ((9501, "Thread-2 (_pin_memory_loop)"), (9502, "pt_autograd_0"))
]
SHOWN = {
    "dump": ["$ py-spy dump --native --pid 9137"],
    "process": [
        "Process 9137: /usr/bin/python -u main.py",
        "Python v3.11.9 (/usr/bin/python3.11)",
        "",
    ],
    "said": ["and this is what it does meanwhile:", "$ sudo py-spy dump -n -p 9137"],
}


@pytest.mark.parametrize("shown", SHOWN)
@pytest.mark.parametrize("owner", [BUILDS, OWNS[:3]], ids=["library", "lines"])
def test_only_process_that_is_shown_is_the_one_whose_watchdog_got_no_gil(
    tmp_path: Path, shown: str, owner: list[str]
) -> None:
    report = say(tmp_path, GIL.format(3), *SHOWN[shown], *owner, *WAITING)
    finding = first_of(report)

    assert (finding.code, finding.culprits.ranks) == ("H114", [3])
    assert finding.confidence is Confidence.LIKELY


MONITORS = [
    "Heartbeat monitor timed out! Process will be terminated after dumping debug info.",
    "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress",
]
MONITOR = "[rank{0}]:[E108 23:50:12.004208115 ProcessGroupNCCL.cpp:1413] [PG ID 0 Rank {0}] "


@pytest.mark.parametrize("words", MONITORS)
@pytest.mark.parametrize("shown", SHOWN)
def test_only_process_that_is_shown_is_the_one_whose_watchdog_gives_no_sign(
    tmp_path: Path, shown: str, words: str
) -> None:
    lines = [*SHOWN[shown], *BUILDS, *WAITING]
    finding = first_of(say(tmp_path, MONITOR.format(3) + words, *lines))

    assert (finding.code, finding.culprits.ranks) == ("H114", [3])
    both = [MONITOR.format(rank) + words for rank in (1, 3)]
    assert all(3 not in one.culprits.ranks for one in say(tmp_path, *both, *lines).findings)
    others = [MONITOR.format(3) + words, *SHOWN[shown], *TRAINING, *WAITING]
    assert all(one.code != "H114" for one in say(tmp_path, *others).findings)


@pytest.mark.parametrize("library", ["libmesh_ops.so", "_bvh.cpython-311-x86_64-linux-gnu.so"])
def test_only_process_whose_owner_is_in_a_library_of_the_job(tmp_path: Path, library: str) -> None:
    owner = [line.replace("libmesh_ops.so", library) for line in BUILDS]
    finding = first_of(say(tmp_path, GIL.format(3), *SHOWN["dump"], *owner))

    assert (finding.code, finding.culprits.ranks) == ("H114", [3])
    for other in ("libtorch_cpu.so", "libc.so.6", "libcuda.so.1", "libtorch_python.so"):
        told = [line.replace("libmesh_ops.so", other) for line in BUILDS]
        report = say(tmp_path, GIL.format(3), *SHOWN["dump"], *told)
        assert first_of(report).confidence is Confidence.POSSIBLE
    report = say(tmp_path, MONITOR.format(3) + MONITORS[0], *SHOWN["dump"], *BUILDS)
    assert all(3 not in one.culprits.ranks for one in report.findings)


OF_ANOTHER = {
    "two watchdogs": [GIL.format(1), GIL.format(3), *SHOWN["dump"], *BUILDS, *WAITING],
    "two processes": [
        GIL.format(3),
        *SHOWN["dump"],
        *BUILDS,
        *WAITING,
        "$ py-spy dump --pid 9140",
        *TRAINING,
    ],
    "of another rank": [GIL.format(3), SHOWN["dump"][0] + "   # rank 1", *BUILDS, *WAITING],
    "one waits for torch": [
        GIL.format(3),
        *SHOWN["dump"],
        *(line.replace("libmesh_ops.so", "libtorch_cpu.so") for line in BUILDS),
        WAITING[0],
    ],
    "nobody has it": [GIL.format(3), *SHOWN["dump"], *TRAINING, *WAITING],
}


@pytest.mark.parametrize("case", OF_ANOTHER)
def test_process_that_may_be_another_one_makes_it_no_surer(tmp_path: Path, case: str) -> None:
    report = say(tmp_path, *OF_ANOTHER[case])

    held = [one for one in report.findings if one.code == "H114" and 3 in one.culprits.ranks]
    assert all(one.confidence is Confidence.POSSIBLE for one in held)


def test_owner_of_the_gil_in_one_look_is_nothing(tmp_path: Path) -> None:
    report = say(tmp_path, "$ py-spy dump --native -p 9137   # rank 3", *OWNS)

    assert all(one.code != "H114" for one in report.findings)


def test_rank_that_whystuck_held_at_its_exception_has_not_hung() -> None:
    job = Job().steps().of_kind("exit", command_exit=1)
    held = (
        at("/venv/whystuck/probe/wire.py", 48, "tell"),
        at("/venv/whystuck/probe/exit/exceptions.py", 118, "ExceptionKeeper._keep"),
        at("/venv/torch/distributed/distributed_c10d.py", 1928, "_distributed_excepthook"),
    )
    for rank in range(4):
        job.raises(rank, "KeyError", "'classes'", [at("/job/train.py", 6), MODULE])
        job.stands(rank, held).ends(rank, code=1)
    report = job.report()

    assert [finding.code for finding in report.findings] == ["C205"]


def test_rank_that_raised_and_is_leaving_when_it_was_looked_at_has_ended() -> None:
    job = Job().steps().of_kind("exit", command_exit=1)
    job.raises(1, "KeyError", "'classes'", [at("/job/train.py", 6), MODULE])
    job.stands(1, (at("/usr/lib/python3.11/threading.py", 1567, "_shutdown"),))
    job.ends(1, code=1)

    assert [finding.code for finding in job.report().findings] == ["C204"]


@pytest.mark.parametrize("note", ["(rank 6)", "# rank 6", "<-- rank=6"])
def test_rank_that_somebody_wrote_behind_a_process_is_its_own(tmp_path: Path, note: str) -> None:
    lines = [
        "$ ps -eo pid,stat,wchan:32,etime,args",
        "  88192 Rl   -                       05:21:02 python3 -u train.py  (rank 5)",
        f"  88193 Dl   rpc_wait_bit_killable   05:21:02 python3 -u train.py  {note}",
    ]
    (tmp_path / "paste.txt").write_text("\n".join(lines))
    events = read_evidence(tmp_path / "paste.txt").logs.events

    assert [event.rank for event in events] == [5, 6]


def test_rank_in_backward_is_not_blamed_beside_one_that_left_the_loop(tmp_path: Path) -> None:
    stacks = {
        0: ["backward (torch/_tensor.py:525)", "train_one_epoch (train.py:88)"],
        1: ["synchronize (torch/cuda/__init__.py:801)", "train_one_epoch (train.py:91)"],
        2: ["synchronize (torch/cuda/__init__.py:801)", "train_one_epoch (train.py:91)"],
        3: ["barrier (torch/distributed/distributed_c10d.py:3683)"],
    }
    lines = [
        line
        for rank, frames in stacks.items()
        for line in (
            f"# rank {rank}",
            f'Thread {900 + rank} (active): "MainThread"',
            *(f"    {frame}" for frame in frames),
            f"    main (train.py:{134 if rank == 3 else 131})",
        )
    ]
    report = say(tmp_path, *lines)

    assert not {rank for one in report.findings for rank in one.culprits.ranks} & {0, 1, 2}
