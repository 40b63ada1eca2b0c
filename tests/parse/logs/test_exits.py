"""The ends of processes are read as each launcher and scheduler writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.parse.logs.jobs import read_files, read_job

from whystuck.evidence.live import ExitRecord
from whystuck.evidence.logs.lines import UNKNOWN_RANK

TABLE = """\
E0304 10:12:31.550000 4000 torch/distributed/elastic/multiprocessing/api.py:1003] failed \
(exitcode: -9) local_rank: 2 (pid: 4103) of binary: /usr/bin/python3
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-03-04_10:12:31
  host      : n0
  rank      : 3 (local_rank: 3)
  exitcode  : -15 (pid: 4104)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 4104
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-03-04_10:12:31
  host      : n0
  rank      : 2 (local_rank: 2)
  exitcode  : -9 (pid: 4103) (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 4103
============================================================
"""
CLOSING = (
    "W0304 10:12:31.350000 4000 torch/distributed/elastic/multiprocessing/api.py:1029] "
    "Sending process 4104 closing signal SIGTERM\n"
)


def read_exits(text: str) -> list[ExitRecord]:
    return sorted(read_job(train=text).exits, key=lambda item: item.rank)


def test_table_of_torchrun_tells_all_ranks_once() -> None:
    found = read_exits(CLOSING + TABLE)

    assert [(item.rank, item.pid, item.signal, item.node) for item in found] == [
        (2, 4103, 9, "n0"),
        (3, 4104, 15, "n0"),
    ]
    # The launcher's own kill.
    assert [item.after_launcher_kill for item in found] == [False, True]
    assert all(item.time is not None for item in found)


@pytest.mark.parametrize("prefix", ["", "n0: ", "2026-03-04T10:12:32.5Z stderr F "])
def test_table_is_read_behind_prefixes_and_between_other_lines(prefix: str) -> None:
    lines = [f"{prefix}{line}\n{prefix}step 3 loss 2.1" for line in TABLE.splitlines()]

    assert [item.rank for item in read_exits("\n".join(lines))] == [2, 3]


def test_table_of_older_versions_is_read() -> None:
    text = """\
Root Cause (first observed failure):
[0]:
  time: 2022-03-04_10:12:31
  rank: 2 (local_rank: 2)
  exitcode: 1 (pid: 43)
"""
    assert [(item.rank, item.code, item.pid) for item in read_exits(text)] == [(2, 1, 43)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("srun: error: gpu-03: task 5: Killed", [(5, None, 9, "gpu-03")]),
        ("srun: error: gpu-03: task 5: Exited with exit code 3", [(5, 3, None, "gpu-03")]),
        ("srun: error: gpu-03: task 5: Exited with exit code 137", [(5, None, 9, "gpu-03")]),
        ("srun: error: gpu-03: task 5: Out Of Memory", [(5, None, 9, "gpu-03")]),
        ("srun: error: n1: tasks 0-1,3: Aborted (core dumped)", [(0, None, 6, "n1")]),
        ("srun: error: n1: task 2: Segmentation fault (core dumped)", [(2, None, 11, "n1")]),
        (
            "mpirun noticed that process rank 4 with PID 77 on node n2 exited on signal 9.",
            [(4, None, 9, "n2")],
        ),
        (
            "prterun noticed that process rank 4 with PID 77 on node n2 exited on signal 11.",
            [(4, None, 11, "n2")],
        ),
        ("  Process name: [[51234,1],3]\n  Exit code:    7", [(3, 7, None, "")]),
        ("   Process name: [prterun-n0-9@1,3]\n   Exit code:    7", [(3, 7, None, "")]),
        ("ProcessExitedException: process 2 terminated with signal SIGKILL", [(2, None, 9, "")]),
        ("process 2 terminated with exit code 5", [(2, 5, None, "")]),
    ],
)
def test_end_of_a_task_is_read(text: str, expected: list[tuple[object, ...]]) -> None:
    found = read_exits(text)

    assert [(item.rank, item.code, item.signal, item.node) for item in found][:1] == expected


def test_all_tasks_of_a_list_are_told() -> None:
    found = read_exits("srun: error: gpu-06: tasks 0-2,4,7: Terminated")

    assert [item.rank for item in found] == [0, 1, 2, 4, 7]


@pytest.mark.parametrize(
    "says",
    [
        "srun: Terminating StepId=5.0",
        "srun: launch/slurm: _step_signal: Terminating StepId=5.0",
        "srun: Terminating job step 5.0",
    ],
)
def test_kills_at_the_end_of_a_step_are_the_schedulers(says: str) -> None:
    found = read_exits(
        f"srun: error: n0: task 5: Killed\n{says}\nsrun: error: n0: tasks 0-1: Terminated\n"
    )

    assert {item.rank: item.after_launcher_kill for item in found} == {0: True, 1: True, 5: False}


def deepspeed(local: int, code: int) -> str:
    killing = "".join(
        f"[2025-03-07 23:55:16,357] [INFO] [launch.py:316:sigkill_handler] Killing subprocess {p}\n"
        for p in (5200, 5201, 5202, 5203)
    )
    return killing + (
        "[2025-03-07 23:55:16,757] [ERROR] [launch.py:322:sigkill_handler] ['/usr/bin/python3', "
        f"'-u', 'sft.py', '--local_rank={local}'] exits with return code = {code}\n"
    )


def test_return_code_of_deepspeed_is_of_the_rank_it_names() -> None:
    (item,) = read_exits(deepspeed(1, -6))

    assert (item.rank, item.signal) == (1, 6)


def test_last_command_of_deepspeed_names_nobody() -> None:
    # The launcher prints the command it started last, whichever process failed.
    (item,) = read_exits(deepspeed(3, 1))

    assert (item.rank, item.code) == (UNKNOWN_RANK, 1)


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_last_command_of_deepspeed_names_nobody_where_lines_are_cut_out(kept: int) -> None:
    lines = deepspeed(3, -9).splitlines(keepends=True)

    (item,) = read_exits("".join([*lines[:kept], "...\n", lines[-1]]))

    assert (item.rank, item.signal) == (UNKNOWN_RANK, 9)


def test_last_command_of_deepspeed_is_the_last_of_its_own_node() -> None:
    nodes = [
        "".join(f"worker-{node}: {line}" for line in deepspeed(3, -9).splitlines(keepends=True))
        for node in range(2)
    ]

    assert {item.rank for item in read_exits("".join(nodes))} == {UNKNOWN_RANK}


@pytest.mark.parametrize(("signal", "rank"), [(11, 5), (9, UNKNOWN_RANK)])
def test_bad_termination_of_hydra_names_a_rank_that_crashed(signal: int, rank: int) -> None:
    # Hydra kills the others, and has a block for each.
    [found] = read_exits(
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
        "=   RANK 5 PID 99120 RUNNING AT x1\n"
        f"=   KILLED BY SIGNAL: {signal} (some name)\n"
    )

    assert (found.rank, found.signal, found.node) == (rank, signal, "x1")


def test_pod_that_is_described_ended_with_a_reason() -> None:
    text = """\
Name:             train-worker-3
Node:             gke-h100-pool-7/10.128.0.31
Containers:
  pytorch:
    State:          Waiting
      Reason:       CrashLoopBackOff
    Last State:     Terminated
      Reason:       OOMKilled
      Exit Code:    137
      Finished:     Sat, 14 Feb 2026 08:00:09 +0000
"""
    (item,) = read_files({"describe.txt": text, "train-worker-3.log": "rank 3 of 4\n"}).exits

    assert (item.rank, item.node, item.signal, item.reason) == (3, "train-worker-3", 9, "OOMKilled")
    assert item.time is not None
    assert item.time.is_zoned


def test_end_of_a_process_is_of_the_rank_that_has_it() -> None:
    text = """\
n0:4105:9105 [5] NCCL INFO comm 0x5 rank 5 nranks 8 cudaDev 5 busId 9b000 - Init COMPLETE
Child process with PID 4105 terminated with code 1. Forcefully terminating all other processes
./run.sh: line 12: 4105 Killed                  python train.py
"""
    found = read_exits(text)

    assert [(item.rank, item.code, item.signal) for item in found] == [(5, 1, None), (5, None, 9)]


def test_exit_of_a_command_without_a_rank_is_of_nobody() -> None:
    (item,) = read_exits(
        "subprocess.CalledProcessError: Command '['a']' died with <Signals.SIGKILL: 9>."
    )

    assert (item.rank, item.signal) == (UNKNOWN_RANK, 9)


def test_local_ranks_of_two_hosts_are_not_mixed_up() -> None:
    def table(host: str, rank: int) -> str:
        return f"""\
Root Cause (first observed failure):
  time      : 2026-03-04_10:12:31
  host      : {host}
  rank      : {rank} (local_rank: 1)
  exitcode  : 1 (pid: 43)
============
"""

    head = "torch/distributed/elastic/multiprocessing/api.py:1003] failed (exitcode: 1) "
    line = f"E0304 10:12:31.550000 4000 {head}local_rank: 1 (pid: 43) of binary: python\n"
    found = read_files({"node-n0.log": line + table("n0", 1), "node-n1.log": line + table("n1", 9)})

    assert sorted((item.rank, item.node) for item in found.exits) == [(1, "n0"), (9, "n1")]


@pytest.mark.parametrize(
    "text",
    [
        "Failures: 0",
        "srun: error: Unable to create step for job 5",
        "validation: 3 tasks: done",
        "Killing time: line 3: 44 minutes",
        "exit code 0",
    ],
)
def test_other_lines_tell_no_end(text: str) -> None:
    assert read_exits(text) == []


@given(st.text(alphabet=st.sampled_from("srun: error: n0: tasks 0-9,: Killed\n"), max_size=200))
def test_any_list_of_tasks_is_read(text: str) -> None:
    read_exits("srun: error: n0: tasks " + text)


def test_huge_lists_are_bounded() -> None:
    found = read_exits("srun: error: n0: tasks 0-99999999: Killed")

    assert 0 < len(found) <= 40_000


# --------------------------------------------------------------- tables that were cut, containers

ROW = "  host      : trn-9\n  rank      : 11 (local_rank: 3)\n  exitcode  : -9 (pid: 20133)\n"


@pytest.mark.parametrize("prefix", ["", "trn-9: ", "2026-03-04T10:12:32.5Z stderr F "])
def test_rows_of_a_table_without_its_head_tell_the_rank(prefix: str) -> None:
    text = "".join(f"{prefix}{line}\n" for line in ["starting", "starting", *ROW.splitlines()])

    (found,) = read_exits(text)
    assert (found.rank, found.pid, found.signal) == (11, 20133, 9)


def test_local_rank_of_the_agents_line_is_that_of_the_table() -> None:
    (found,) = read_exits(
        TABLE.splitlines()[0].replace("local_rank: 2", "local_rank: 3")
        + "\n"
        + ROW.replace("20133", "4103")
    )
    assert found.rank == 11


@pytest.mark.parametrize(
    "text",
    ["rank: 11 of 16 (local_rank: 3)", "best rank : 3 (local_rank: 1)", "rank : x (local_rank: y)"],
)
def test_lookalike_of_a_row_begins_no_table(text: str) -> None:
    assert read_exits(f"{text}\nexitcode : -9 (pid: 5)\n") == []


@pytest.mark.parametrize(
    "text", ["node-b-1 exited with code 137", "container a-2 exited with code 1"]
)
def test_container_of_compose_tells_its_end(text: str) -> None:
    (found,) = read_exits(text)
    assert (found.node, found.rank) == (text.split()[-5], UNKNOWN_RANK)


@pytest.mark.parametrize(
    "text",
    ["the tool exited with code 137", "step-1 exited with code path A", "x-1 exited with code"],
)
def test_lookalike_of_the_end_of_a_container_is_none(text: str) -> None:
    assert read_exits(text) == []
