"""Jobs of Slurm that have fewer processors than tasks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

SLOW = "0.8 s/step by hand on the same node, 5.9 s/step under srun; GPUs are at 10 %"
ALLOWED = ["$ srun --overlap bash -c 'grep Cpus_allowed_list /proc/self/status'"]
WHOLE = [
    "JobId=4410 JobName=pretrain",
    "   JobState=RUNNING Reason=None Dependency=(null)",
    "   NumNodes=1 NumCPUs={cpus} NumTasks={tasks} CPUs/Task=N/A ReqB:S:C:T=0:0:*:*",
]
GREP = ["$ scontrol show job 4410 | grep -o 'Num[CT][^ ]*'", "NumCPUs={cpus}", "NumTasks={tasks}"]


def show(form: list[str], cpus: int, tasks: int) -> list[str]:
    return [line.format(cpus=cpus, tasks=tasks) for line in form]


@pytest.mark.parametrize("form", [WHOLE, GREP], ids=["whole", "grep"])
@pytest.mark.parametrize(("cpus", "tasks"), [(2, 8), (1, 4), (16, 32)])
def test_tasks_that_share_processors_are_starved(
    tmp_path: Path, form: list[str], cpus: int, tasks: int
) -> None:
    lines = [SLOW, *ALLOWED, "Cpus_allowed_list:\t0-1", *show(form, cpus, tasks)]
    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.culprits.ranks) == ("S306", [])
    assert f"{tasks} tasks" in finding.summary


@pytest.mark.parametrize("form", [WHOLE, GREP], ids=["whole", "grep"])
@pytest.mark.parametrize(("cpus", "tasks"), [(64, 8), (8, 8), (96, 1)])
def test_tasks_with_processors_of_their_own_are_not(
    tmp_path: Path, form: list[str], cpus: int, tasks: int
) -> None:
    assert say(tmp_path, SLOW, "Cpus_allowed_list:\t0-1", *show(form, cpus, tasks)).findings == []


def test_counts_of_two_jobs_are_not_compared(tmp_path: Path) -> None:
    lines = [*show(WHOLE, 64, 8)[:2], "   NumCPUs=2", *["   Features=a100"] * 9, "   NumTasks=8"]

    assert say(tmp_path, SLOW, *lines).findings == []


LOADS = [" 10:02:11 up 3 days, load average: 40.11, 39.90, 38.02", "40.11 39.90 38.02 41/900 7110"]
BOUND = {
    "counted": ["     64 Cpus_allowed_list:\t3"],
    "each": ["Cpus_allowed_list:\t3"] * 16,
    "taskset": [f"pid {8800 + at}'s current affinity list: 3" for at in range(12)],
    "range": ["    130 Cpus_allowed_list:\t0-3,8-11"],
}


@pytest.mark.parametrize("form", BOUND)
@pytest.mark.parametrize("load", [*LOADS, ""])
def test_processes_that_are_bound_to_few_processors_are_starved(
    tmp_path: Path, form: str, load: str
) -> None:
    finding = first_of(say(tmp_path, SLOW, *BOUND[form], load))

    assert (finding.code, finding.culprits.ranks) == ("S306", [])
    is_busy = bool(load) and form != "range"
    assert finding.confidence == ("likely" if is_busy else "possible")


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(
            [f"      8 Cpus_allowed_list:\t{8 * at}" for at in range(8)], id="each its own"
        ),
        pytest.param(["    104 Cpus_allowed_list:\t0-127"], id="all processors"),
        pytest.param(["      4 Cpus_allowed_list:\t0"], id="few processes"),
        pytest.param(["    104 Cpus_allowed_list:\t0-99999999999"], id="far"),
        pytest.param(["node3: Cpus_allowed_list:\t0", "node4: Cpus_allowed_list:\t0"], id="hosts"),
    ],
)
def test_processes_with_processors_enough_are_not_starved(tmp_path: Path, lines: list[str]) -> None:
    assert say(tmp_path, SLOW, *lines, LOADS[0]).findings == []
