"""A job that ends well, though something beside its ranks has printed a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.launch.running import END, run_whystuck, torchrun

pytest.importorskip("torch")

JOB = """
import subprocess, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(20):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    subprocess.run([sys.executable, "-c", "import os; os.kill(2**22 - 1, 15)"])
dist.barrier()
"""
JOB += END


def test_traceback_of_a_helper_is_no_crash_of_a_job_that_ended_with_0(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(JOB)
    done = run_whystuck(
        "run", "--evidence", "ev", "--", *torchrun(2, tmp_path / "train.py"), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"ProcessLookupError" in done.stderr
    assert not list((tmp_path / "ev").glob("incidents/*"))

    again = run_whystuck("diagnose", "ev", "--format", "json", cwd=tmp_path)
    report = json.loads(again.stdout)
    assert report["verdict"] not in {"crashed", "stuck"}
    assert report["findings"] == []


# Without a process group: gloo does not find its peers again after a restart.
FAILS_ONCE = """
import os, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["RANK"] == "1":
        raise ConnectionError("the store refused")
    time.sleep(600)
"""


def test_crash_before_a_restart_of_the_launcher_is_past_in_a_job_that_ended_well(
    tmp_path: Path,
) -> None:
    # GIVEN a job that torchrun has started again, and that ended well then
    (tmp_path / "train.py").write_text(FAILS_ONCE)
    command = torchrun(2, tmp_path / "train.py")
    command.insert(1, "--max-restarts=1")
    done = run_whystuck("run", "--evidence", "ev", "--", *command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    said = "whystuck: the job finished with code 0 after 1 restart; before: C204: rank 1 raised "
    assert said in done.stderr.decode()

    # THEN its evidence says the same the morning after
    again = run_whystuck("diagnose", "ev", "--format", "json", cwd=tmp_path)
    report = json.loads(again.stdout)
    assert again.returncode == 0
    assert report["verdict"] == "healthy"
    assert report["job"]["ended"] == "finished with code 0 after 1 restart"
    (finding,) = report["findings"]
    assert (finding["code"], finding["severity"]) == ("C204", "note")
    assert finding["summary"].startswith("attempt 0, before a restart: rank 1 raised ConnectionErr")
    # AND the incident keeps its own verdict
    incident = run_whystuck("diagnose", "ev/incidents/000", "--format", "json", cwd=tmp_path)
    assert json.loads(incident.stdout)["verdict"] == "crashed"
