"""Logs of jobs that are well: their launcher says so, or they went on after some trouble."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Verdict

WARNED = [
    "[W socket.cpp:601] [c10d] The client socket has failed to connect to [n0]:29500 (errno: 111)",
    "libnccl-net.so: cannot open shared object file: No such file or directory",
    "Epoch 1/3: 100%|##########| 2210/2210 [41:02<00:00,  1.11s/it, loss=2.31]",
]
PASSED = [
    "[INFO] [default] worker group successfully finished. Waiting 300 seconds for other agents.",
    "elastic.agent.server.api: [INFO] Local worker group finished (WorkerState.SUCCEEDED).",
    "PyTorchJob bert/train-7 is successfully completed",
    "JobState=COMPLETED Reason=None",
    "sacct: 4410217  train  COMPLETED  0:0  elapsed 00:08:31",
    "$ sacct -j 77 says: 77 bert-large COMPLETED 0:0 04:11:08",
    "4410217 train COMPLETED (exit code 0:0)",
    "State: COMPLETED (exit code 0:0)",
    "[2026-11-14 02:17:12,551] [INFO] [launch.py:351:main] Process 88311 exits successfully.",
]
RAISED = ["Traceback (most recent call last):", '  File "/w/a.py", line 3, in f', "KeyError: 'x'"]


@pytest.mark.parametrize("passed", PASSED)
def test_job_whose_launcher_says_that_it_ended_well_is_healthy(tmp_path: Path, passed: str) -> None:
    report = say(tmp_path, *WARNED, passed)

    assert (report.verdict, [one.code for one in report.findings]) == (Verdict.HEALTHY, [])
    assert report.context["sentence"].endswith("row 4 says")


@pytest.mark.parametrize("passed", [*PASSED[:3], PASSED[4]])
def test_failure_beside_workers_that_ended_well_is_told(tmp_path: Path, passed: str) -> None:
    """They may be those of another node, or of another group."""
    report = say(tmp_path, *WARNED, passed, *(f"[rank3]: {line}" for line in RAISED))

    assert (first_of(report).code, first_of(report).culprits.ranks) == ("C204", [3])


def test_words_alone_end_no_job_well(tmp_path: Path) -> None:
    report = say(tmp_path, *WARNED, "the worker group did not finish", "a group has finished")

    assert report.verdict is Verdict.INCONCLUSIVE


OOM = "CUDA out of memory. Tried to allocate 7.83 GiB. GPU 0 has a total capacity of 39.39 GiB"
STEPS = [f"{{'loss': 1.{step}, 'epoch': 0.{step}}}" for step in range(9)]


@pytest.mark.parametrize(
    "told",
    [
        f"01/12/2025 19:40:21 - WARNING - train - rank 0 bs=32 failed: {OOM}",
        f"WARNING:root:batch size 32 does not fit: {OOM}; trying 16",
        f"OOM in validation, skipping this batch ({OOM})",
    ],
)
def test_memory_that_a_program_did_without_is_no_crash(tmp_path: Path, told: str) -> None:
    assert say(tmp_path, told, *STEPS).findings == []


@pytest.mark.parametrize(
    "lines",
    [
        [f"torch.OutOfMemoryError: {OOM}", *STEPS],
        [*STEPS, f"WARNING train failed: {OOM}"],
        [f"WARNING train failed: {OOM}", *STEPS[:3]],
    ],
    ids=["raised", "at the end", "what was on its way"],
)
def test_memory_that_may_have_ended_the_job_is_told(tmp_path: Path, lines: list[str]) -> None:
    assert "C206" in {one.code for one in say(tmp_path, *lines).findings}


DONE = [
    "INFO - Training completed.",
    "training finished, bye",
    "`Trainer.fit` stopped: `max_epochs=3`",
    "Training completed after 2001 iterations at 2025-05-14 08:22:51. Total running time: 22min",
    "{'train_runtime': 5123.2, 'train_samples_per_second': 41.1, 'epoch': 3.0}",
]
ASKED = [
    ["(.venv) u@ws:~/cls$ echo $?", "0"],
    ["$ echo $?", "0"],
    ['[u@gpu-1 run]$ echo "exit: $?"', "exit: 0"],
    ["echo $?", "0"],
    ["exit code 0"],
    ["train.py finished OK, exit status 0"],
    ["Process finished with exit code 0"],
    ["\tExit status: 0"],
    ["    Exit_status = 0"],
    ["the script exited with 0"],
    ["exit code: 0 (after 22 min)"],
]


@pytest.mark.parametrize("done", DONE)
@pytest.mark.parametrize("asked", ASKED)
def test_job_that_is_done_and_ended_with_0_is_healthy(
    tmp_path: Path, done: str, asked: list[str]
) -> None:
    report = say(tmp_path, "did I lose the model?", *WARNED, *STEPS, done, *asked)

    assert (report.verdict, report.findings) == (Verdict.HEALTHY, [])
    assert "ended with 0" in report.context["sentence"]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([DONE[0]], id="nobody asked"),
        pytest.param(ASKED[0], id="not done"),
        pytest.param([*ASKED[0], DONE[0]], id="of another program"),
        pytest.param([DONE[0], "$ echo $?", "1"], id="failed"),
        pytest.param([DONE[0], "$ echo $?", "130"], id="interrupted"),
        pytest.param([DONE[0], "$ ls ckpt; echo $?", "0"], id="of what stands before"),
        pytest.param([DONE[0], "$ echo $?", "model.pt", "0"], id="other output"),
        pytest.param([DONE[0], "it never returns, it hangs after that", *ASKED[0]], id="hangs"),
        pytest.param([DONE[0], *ASKED[0], *RAISED], id="raised"),
        pytest.param([DONE[0], "exit code 1"], id="failed, as is said"),
        pytest.param([DONE[0], "exit code -9"], id="killed, as is said"),
        pytest.param([DONE[0], "what should the exit code 0 mean"], id="asked"),
        pytest.param([DONE[0], "we never get to exit code 0"], id="never"),
        pytest.param([DONE[0], "exit 0"], id="of a script"),
        pytest.param(["why is it so slow?", DONE[0], "exit code 0"], id="slow"),
    ],
)
def test_status_that_does_not_tell_calls_no_job_well(tmp_path: Path, lines: list[str]) -> None:
    assert say(tmp_path, *WARNED, *STEPS, *lines).verdict is not Verdict.HEALTHY


@pytest.mark.parametrize(
    ("end", "is_well"),
    [
        ("torchrun exited with code 0", True),
        ("train.py: exit status 0", True),
        ("torchrun exited with code 1", False),
        ("exit code 0", False),
        ("tee exited with 0", False),
    ],
)
def test_program_that_ended_with_0_behind_its_steps_is_well(
    tmp_path: Path, end: str, *, is_well: bool
) -> None:
    report = say(tmp_path, *STEPS, end)

    assert (report.verdict is Verdict.HEALTHY) is is_well


@pytest.mark.parametrize("said", ["is it hung??", "it just hangs at step 0, I killed it twice"])
def test_program_that_ended_did_not_hang_whatever_was_said_above(tmp_path: Path, said: str) -> None:
    report = say(tmp_path, said, *STEPS, DONE[0], "exit code 0")

    assert (report.verdict, report.findings) == (Verdict.HEALTHY, [])


# ---------------------------------------------------------- steps at one pace, and an answer of RAS

TITAN = (
    "[rank0]:[titan] 2026-10-20 09:0{0}:{1:02},{2} - root - INFO - step: {3}  loss:  {4:.4f}  "
    "memory: 49.87GiB(63.10%)  tps: 7,07{5}"
)
PLAIN = "2026-10-20 09:0{0}:{1:02},{2} step {3} | loss {4:.4f} | tok/s 707{5}"
TIMES = [(2, 39), (3, 2), (3, 14), (3, 25), (3, 37), (3, 48)]
ANSWER = [
    "$ ncclras",
    "NCCL version 2.27.5 compiled with CUDA 12.9",
    "",
    "Communicators... (0.00s)",
    "=============",
    "",
    "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors",
    "    #  in group  per comm  per node  per comm  in group",
    "    0         8         1         2         2        16   {0}      {1}",
    "    1         2         2         4         8        16   RUNNING      OK",
    "",
    "Errors",
    "======",
    "{2}",
    "Warnings",
    "========",
    "{3}",
]


def steady(form: str, times: list[tuple[int, int]]) -> list[str]:
    return [
        form.format(minute, second, 120 + k, 10 * k, 12 - k, k)
        for k, (minute, second) in enumerate(times)
    ]


def answer(status: str = "RUNNING", errors: str = "OK", *told: str) -> list[str]:
    sections = (*told, "", "")[:2]
    return [line.format(status, errors, *sections) for line in ANSWER]


@pytest.mark.parametrize("form", [TITAN, PLAIN])
def test_steps_at_one_pace_and_ras_without_errors_are_those_of_a_healthy_job(
    tmp_path: Path, form: str
) -> None:
    report = say(tmp_path, *steady(form, TIMES), *answer())

    assert (report.verdict, report.findings) == (Verdict.HEALTHY, [])
    assert "RAS" in report.context["sentence"]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(steady(PLAIN, TIMES), id="nobody asked"),
        pytest.param(answer(), id="no steps"),
        pytest.param([*steady(PLAIN, TIMES[:3]), *answer()], id="few steps"),
        pytest.param([*steady(PLAIN, [*TIMES[:5], (9, 48)]), *answer()], id="uneven"),
        pytest.param([*answer(), *steady(PLAIN, TIMES)], id="asked before"),
        pytest.param([*steady(PLAIN, TIMES), *answer("RUNNING", "MISMATCH")], id="mismatch"),
        pytest.param([*steady(PLAIN, TIMES), *answer("ABORT")], id="aborted"),
        pytest.param(
            [
                *steady(PLAIN, TIMES),
                *answer("RUNNING", "OK", "INCOMPLETE", "  Missing communicator data"),
            ],
            id="incomplete",
        ),
        pytest.param(
            [*steady(PLAIN, TIMES), *answer("RUNNING", "OK", "", "  2 job processes are dead")],
            id="dead",
        ),
        pytest.param([*steady(PLAIN, TIMES), "since then it hangs", *answer()], id="hangs"),
        pytest.param([*steady(PLAIN, TIMES), *RAISED, *answer()], id="raised"),
    ],
)
def test_answers_that_leave_it_open_call_no_job_well(tmp_path: Path, lines: list[str]) -> None:
    assert say(tmp_path, *lines).verdict is not Verdict.HEALTHY


@pytest.mark.parametrize("end", ["reached max_steps, saving final model", "max_iters reached"])
@pytest.mark.parametrize("status", ["exit=0", "exit code: 0", "exit: 0"])
def test_status_that_a_script_prints_alone(tmp_path: Path, end: str, status: str) -> None:
    steps = [f"step {step} loss 3.{118 - step} dt 0.33 s" for step in range(5)]

    assert say(tmp_path, *steps, end, status).verdict is Verdict.HEALTHY
    assert say(tmp_path, *steps, end, status.replace("0", "3")).verdict is not Verdict.HEALTHY
