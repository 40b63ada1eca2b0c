"""How a run ends on the terminal, and what its kept evidence says the morning after."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.backends import on_both_slowly
from tests.launch.running import WHYSTUCK, clean_environment, run_whystuck, torchrun

STUCK = Path(__file__).parents[2] / "examples/stuck/train.py"
# Two ranks that step for ever, and say so.
MOVING = """
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(10_000):
    dist.all_reduce(torch.ones(4))
    time.sleep(0.02)
    if step == 50 and dist.get_rank() == 0:
        print("MOVING", flush=True)
"""
# Rank 1 hangs; what interrupts it lets it make one more op, a second before the others hear of it.
HELD = """
import os, signal, time
from pathlib import Path
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(100):
    dist.all_reduce(torch.ones(4))
    time.sleep(0.02)
    if step == 50 and dist.get_rank() == 1:
        Path("held").write_text(str(os.getpid()))
        try:
            time.sleep(3600)
        except KeyboardInterrupt:
            dist.all_reduce(torch.ones(4))
            time.sleep(1)
            os.kill(int(Path("front").read_text()), signal.SIGINT)
            raise
"""
FAILING = "import torch\n\nraise ValueError('a bad option')\n"


@contextmanager
def start(cwd: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start whystuck in a folder; its output goes to the file ``output`` there."""
    with (cwd / "output").open("ab") as output:
        process = subprocess.Popen(
            [*WHYSTUCK, *arguments],
            cwd=cwd,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def wait_for(path: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until a file holds a text; fail when the process ends before."""
    deadline_s = time.monotonic() + 120
    while not path.is_file() or text not in path.read_text(errors="replace"):
        assert process.poll() is None, f"it ended with {process.returncode}"
        assert time.monotonic() < deadline_s, f"no {text!r}"
        time.sleep(0.05)


def diagnose(path: Path) -> dict[str, Any]:
    done = run_whystuck("diagnose", path, "--format", "json", cwd=path)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def answer(path: Path) -> tuple[str, str, list[int]]:
    first = diagnose(path)["findings"][0]
    return first["code"], first["confidence"], first["culprits"]["ranks"]


def list_lines_of_ours(cwd: Path) -> list[str]:
    lines = (cwd / "output").read_text(errors="replace").splitlines()
    return [line for line in lines if line.startswith(("whystuck: ", "report: "))]


@pytest.mark.slow
def test_stalled_job_that_the_user_interrupts_keeps_its_answer(tmp_path: Path) -> None:
    run = ["run", "--stall-after", "6", "--", *torchrun(4, STUCK)]
    with start(tmp_path, *run) as process:
        wait_for(tmp_path / "output", "verdict: stuck", process)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 1  # what torchrun makes of SIGINT

    said, report = list_lines_of_ours(tmp_path)[-2:]
    assert said.startswith("whystuck: the job ended while it was stuck; H102: rank 0 made an extra")
    assert report.endswith("/incidents/000/report.html")
    [home] = (tmp_path / "whystuck").iterdir()
    for path in (home, home / "incidents/000", home / "rounds/0", home.parent, tmp_path):
        assert answer(path) == ("H102", "certain", [0]), path
    assert diagnose(home)["job"]["ended"] == "ended with code 1"


@on_both_slowly
def test_what_moves_for_a_moment_when_it_is_interrupted_was_stuck(tmp_path: Path) -> None:
    (tmp_path / "held.py").write_text(HELD)
    run = ["run", "--stall-after", "6", "--", *torchrun(2, tmp_path / "held.py")]
    with start(tmp_path, *run) as process:
        (tmp_path / "front").write_text(str(process.pid))
        wait_for(tmp_path / "output", "verdict: stuck", process)
        os.kill(int((tmp_path / "held").read_text()), signal.SIGINT)
        assert process.wait(timeout=120) == 1

    assert "moving again" not in (tmp_path / "output").read_text()
    assert answer(tmp_path) == ("H101", "likely", [1])


@pytest.mark.slow
def test_later_runs_in_one_folder_are_never_mixed_with_older_ones(tmp_path: Path) -> None:
    """A stall that whystuck ends, then an exception, then a run that its user interrupts."""
    (tmp_path / "failing.py").write_text(FAILING)
    (tmp_path / "moving.py").write_text(MOVING)
    stall = ["--stall-after", "6", "--on-stall", "kill", "--evidence", "ev", "--"]
    done = run_whystuck("run", *stall, *torchrun(4, STUCK), cwd=tmp_path)
    assert done.returncode == 124
    home = tmp_path / "ev"
    for path in (home, home / "incidents", home / "rounds", home / "rounds/0", tmp_path):
        assert answer(path) == ("H102", "certain", [0]), path
    logs = run_whystuck("logs", home, "--format", "json", cwd=tmp_path)
    assert "C207" not in logs.stdout.decode()

    script = torchrun(2, tmp_path / "failing.py")
    done = run_whystuck("run", "--evidence", "ev", "--", *script, cwd=tmp_path)
    assert done.returncode == 1
    *_, said, report = done.stderr.decode().splitlines()
    assert said.startswith("whystuck: the job ended with code 1; C205: ")
    assert report.endswith("/incidents/001/report.html")
    assert answer(home)[0] == "C205"

    with start(
        tmp_path, "run", "--evidence", "ev", "--", *torchrun(2, tmp_path / "moving.py")
    ) as run:
        wait_for(tmp_path / "output", "MOVING", run)
        run.send_signal(signal.SIGINT)
        assert run.wait(timeout=120) == 1
    assert list_lines_of_ours(tmp_path) == []
    assert sorted(path.name for path in (home / "incidents").iterdir()) == ["000", "001"]
    report_now = diagnose(home)
    # On a busy machine one of the two ranks may really be late.
    assert report_now["verdict"] in {"healthy", "slow"}
    listed = [one["path"] for one in report_now["job"]["other_runs"]]
    assert listed == ["rounds/1", "rounds/0"]
    assert answer(home / "rounds/0") == ("H102", "certain", [0])
    assert answer(home / "rounds/1")[0] == "C205"


def test_reports_say_when_which_job_which_command_and_which_torch(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    command = torchrun(2, tmp_path / "failing.py")
    begin = time.strftime("%Y-%m-%dT%H:%M", time.gmtime())
    run_whystuck(
        "run", "--evidence", "ev", "--", *command, cwd=tmp_path,
        environment={"SLURM_JOB_ID": "4711"},
    )  # fmt: skip
    incident = tmp_path / "ev/incidents/000"
    job = json.loads((incident / "report.json").read_bytes())["job"]
    assert job["command"] == " ".join(command)
    assert (job["id"], job["cwd"]) == ("4711", str(tmp_path))
    assert job["started"][:13] == begin[:13]
    assert job["time"] >= job["started"]
    assert job["torch_version"].startswith("2.")
    for name in ("report.txt", "report.html"):
        text = " ".join((incident / name).read_text().split())
        assert "job 4711" in text
        assert f"torch {job['torch_version']}" in text
