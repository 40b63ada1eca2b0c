"""``whystuck snapshot`` of jobs that were started without whystuck.

On gloo alone: without a record of ops, the line of a host that waits for a device tells nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.launch.running import clean_environment, run_whystuck, torchrun
from tests.ports import find_port

from whystuck.collect.processes.discover import discover_jobs

BODY = """
import os, sys, time
import torch, torch.distributed as dist

def fetch_quota():
    print("STUCK", flush=True)
    time.sleep(300)

def train(rank, world_size, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    for step in range(5):
        dist.all_reduce(torch.ones(4))
    if rank == 1:
        fetch_quota()
    dist.all_reduce(torch.ones(4))
"""
BY_TORCHRUN = f"""{BODY}
train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["MASTER_PORT"])
"""
BY_SPAWN = f"""{BODY}
if __name__ == "__main__":
    import torch.multiprocessing as mp
    mp.spawn(train, args=(3, PORT), nprocs=3)
"""


@pytest.fixture(params=["torchrun", pytest.param("spawn", marks=pytest.mark.slow)])
def stuck_job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[psutil.Process]:
    """Start a job of three ranks, of which rank 1 sleeps in user code."""
    script = tmp_path / "train.py"
    script.write_text(
        BY_TORCHRUN if request.param == "torchrun" else BY_SPAWN.replace("PORT)", f"{find_port()})")
    )
    command = torchrun(3, script) if request.param == "torchrun" else [sys.executable, str(script)]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"STUCK\n"
    launcher = psutil.Process(process.pid)
    yield launcher
    below = launcher.children(recursive=True)
    for one in [*below, launcher]:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    process.stdout.close()
    process.wait()


def test_snapshot_when_a_rank_sleeps_then_names_it_and_its_line(
    tmp_path: Path, stuck_job: psutil.Process
) -> None:
    # the peers arrive in their collective a moment after rank 1 has gone to sleep
    time.sleep(1.0)
    done = run_whystuck(
        "snapshot", "--pid", str(stuck_job.pid), "--evidence", "ev", "--format", "json",
        cwd=tmp_path,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert done.returncode == 1, done.stderr.decode()
    assert report["verdict"] == "stuck"
    finding = report["findings"][0]
    assert (finding["code"], finding["culprits"]["ranks"]) == ("H101", [1])
    line = next(i for i, text in enumerate(BODY.splitlines(), 1) if "time.sleep(300)" in text)
    assert (Path(finding["where"][0]["file"]).name, finding["where"][0]["line"]) == (
        "train.py",
        line,
    )
    assert finding["victims"]["ranks"] == "0,2"
    assert (tmp_path / "ev/incidents/000/report.html").exists()
    # the job was only looked at
    assert all(p.status() != psutil.STATUS_STOPPED for p in stuck_job.children(recursive=True))


def test_discover_when_only_one_rank_is_named_then_it_stands_alone(
    stuck_job: psutil.Process,
) -> None:
    (job,) = discover_jobs([stuck_job.pid])
    assert [one.rank for one in job.ranks] == [0, 1, 2]
    (alone,) = discover_jobs([job.ranks[2].pid])
    assert [(one.rank, one.pid) for one in alone.ranks if not one.guessed] in (
        [(2, job.ranks[2].pid)],
        [],
    )


def test_snapshot_when_the_process_does_not_exist_then_says_so(tmp_path: Path) -> None:
    done = run_whystuck("snapshot", "--pid", "4194304", "--evidence", "ev", cwd=tmp_path)
    assert done.returncode == 2
    assert b"there is no process 4194304" in done.stderr
    assert b"hint: " in done.stderr


def _start_bare(command: Sequence[str | Path], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "job.log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=folder, env=clean_environment(), stdout=log, stderr=log
        )


def _wait_for(text: bytes, log: Path, process: subprocess.Popen[bytes]) -> None:
    while text not in log.read_bytes():
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    launcher = psutil.Process(process.pid)
    for one in [*launcher.children(recursive=True), launcher]:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()


def _take_report(process: subprocess.Popen[bytes], folder: Path) -> dict[str, Any]:
    done = run_whystuck(
        "snapshot", "--pid", str(process.pid), "--evidence", "ev", "--format", "json", cwd=folder
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.slow
def test_snapshot_of_the_example_names_the_line_that_only_one_rank_calls(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "examples/stuck/train.py"
    process = _start_bare(torchrun(4, script), tmp_path)
    try:
        # rank 0 has come through the barrier that it alone calls, in which it met the others
        _wait_for(b"saved step-10.pt", tmp_path / "job.log", process)
        report = _take_report(process, tmp_path)
    finally:
        _end(process)
    (finding,) = report["findings"]
    lines = script.read_text().splitlines()
    extra = next(i for i, text in enumerate(lines, 1) if "do not replace a file" in text)
    assert (finding["code"], finding["culprits"]["ranks"]) == ("H102", [0])
    assert finding["confidence"] == "likely"
    assert finding["where"][0]["line"] == extra


LEAVING = """
import threading
import torch, torch.distributed as dist

def check(step):
    if dist.get_rank() == 1 and step == 5:
        raise ValueError("the loss is not finite")

def main():
    dist.init_process_group("gloo")
    threading.Thread(target=threading.Event().wait).start()
    for step in range(100):
        check(step)
        dist.all_reduce(torch.ones(4))

main()
"""


def test_snapshot_reads_the_exception_of_a_rank_that_cannot_end_from_its_log(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(LEAVING)
    process = _start_bare(torchrun(2, script), tmp_path)
    try:
        _wait_for(b"ValueError: the loss", tmp_path / "job.log", process)
        report = _take_report(process, tmp_path)
    finally:
        _end(process)
    finding = report["findings"][0]
    assert (finding["code"], finding["culprits"]["ranks"]) == ("H120", [1])
    line = next(i for i, text in enumerate(LEAVING.splitlines(), 1) if "raise ValueError" in text)
    assert finding["where"][0]["line"] == line
