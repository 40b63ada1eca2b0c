"""A rank that makes its peers wait in each step: told while the job runs, or at its end."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.launch.running import END, run_whystuck, torchrun

from whystuck.collect.processes.cpu import CpuTracker
from whystuck.collect.processes.garbage import GarbageTracker
from whystuck.launch.incidents.slow_watch import SlowWatch
from whystuck.launch.processes.rank_table import RankTable

JOB = """
import os, sys, time
import torch, torch.distributed as dist
steps, onset, extra_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(steps):
    time.sleep(0.05 + (extra_s if dist.get_rank() == 1 and step >= onset else 0))
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
"""


def run(tmp_path: Path, *arguments: object, job: str = JOB) -> tuple[str, list[dict[str, Any]]]:
    script = tmp_path / "train.py"
    script.write_text(job + END)
    done = run_whystuck(
        "run", "--no-agent", "--evidence", "ev", "--",
        *torchrun(3, script, *map(str, arguments)), cwd=tmp_path, timeout_s=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    paths = sorted((tmp_path / "ev").glob("incidents/*/report.json"))
    return done.stderr.decode(), [json.loads(path.read_text()) for path in paths]


def check(tmp_path: Path, reports: list[dict[str, Any]]) -> None:
    """See that there is one report, and that the kept evidence says the same."""
    (report,) = reports
    for path in (".", "incidents/000"):
        again = run_whystuck("diagnose", tmp_path / "ev" / path, "--format", "json", cwd=tmp_path)
        for one in (report, json.loads(again.stdout)):
            assert one["verdict"] == "slow", path
            finding = one["findings"][0]
            assert (finding["code"], finding["culprits"]["ranks"]) == ("S301", [1])
            assert finding["victims"]["ranks"] == "0,2"


@pytest.mark.slow
def test_slow_rank_of_a_short_job_is_told_at_its_end(tmp_path: Path) -> None:
    errors, reports = run(tmp_path, 120, 30, 0.05)

    check(tmp_path, reports)
    assert errors.count("(S301)") == 1
    assert "whystuck: rank 1 is late in " in errors


@pytest.mark.slow
def test_rank_that_becomes_slow_is_told_while_the_job_runs(tmp_path: Path) -> None:
    errors, reports = run(tmp_path, 900, 200, 0.04)

    check(tmp_path, reports)
    assert errors.count("whystuck: rank 1 is late in ") == 1
    assert errors.count("whystuck: told while the job ran: rank 1 is late in ") == 1
    log = (tmp_path / "ev" / "fault.log").read_text()
    assert log.index("S301") < log.index("ends with code 0")


@pytest.mark.slow
def test_job_of_equal_ranks_is_not_called_slow(tmp_path: Path) -> None:
    errors, reports = run(tmp_path, 120, 0, 0)

    assert reports == []
    assert "S30" not in errors


# Rank 0 writes something to a slow disk after every tenth step.
NOW_AND_THEN = JOB.replace(
    "    optimizer.zero_grad()\n",
    "    optimizer.zero_grad()\n"
    "    time.sleep(0.9 if step % 10 == 9 and dist.get_rank() == 0 else 0)\n",
)


@pytest.mark.slow
def test_what_ranks_wait_for_now_and_then_is_told_at_the_end_of_a_long_job(tmp_path: Path) -> None:
    errors, reports = run(tmp_path, 200, 0, 0, job=NOW_AND_THEN)

    assert reports == [], "it is no alarm"
    assert errors.count("(S308)") == 1
    assert "rank 0 causes " in errors
    assert "not step after step (S308)" in errors.splitlines()[-1]


@pytest.mark.slow
def test_what_ranks_wait_for_in_a_job_of_some_seconds_is_not_told(tmp_path: Path) -> None:
    errors, reports = run(tmp_path, 40, 0, 0, job=NOW_AND_THEN)

    assert (reports, errors.count("S308")) == ([], 0)


def test_op_logs_that_cannot_be_read_are_a_note_and_no_word_to_the_user(tmp_path: Path) -> None:
    notes: list[str] = []
    table = RankTable(tmp_path, "n0")
    with subprocess.Popen(["sleep", "60"]) as first, subprocess.Popen(["sleep", "60"]) as second:
        for rank, process in enumerate((first, second)):
            table.add(rank=rank, pid=process.pid, world_size=2, is_member=True)
            (tmp_path / f"ops-{process.pid}").write_bytes(b"\0\xff")
        keeper: Any = None  # nothing may be said
        watch = SlowWatch(
            keeper, table, notes.append, CpuTracker("n0"), GarbageTracker("n0", lambda _: 0)
        )
        watch.look()
        watch.finish()
        first.kill()
        second.kill()

    assert len(notes) == 1
    assert not watch.is_due(1e12)
