"""A real job of two ranks, of which one gets slow: the agent takes a trace of that one."""

import gzip
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.launch.running import END, WHYSTUCK, clean_environment, torchrun

JOB = """\
import datetime
import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
rank = dist.get_rank()
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
value = torch.zeros(8)
began_s = time.monotonic()
while not value[0]:
    time.sleep(0.02)
    if rank == 1 and time.monotonic() - began_s > 40:
        time.sleep(0.05)
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    value[0] = float(rank == 0 and os.path.exists("stop"))
    dist.all_reduce(value)
"""
JOB += END
CONFIG = """\
[metrics]
ranks_every_s = 1.0

[[trigger]]
name = "slow rank"
when = "rank-slow"
for_s = 30
iterations = 3
"""
LIMIT_S = 240


STUCK_JOB = """\
import datetime
import os
import time

import torch
import torch.distributed as dist


def load_batch(step):
    while step == 100 and dist.get_rank() == 1 and not os.path.exists("stop"):
        time.sleep(0.1)


dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=600))
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(120):
    load_batch(step)
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    dist.all_reduce(torch.zeros(8))
"""
STUCK_JOB += END
STALL = """\
[metrics]
ranks_every_s = 1.0

[[trigger]]
name = "stuck"
when = "stall"
threshold = 30
"""


@contextmanager
def running_job(folder: Path, script: str, config: str, *options: str) -> Iterator[dict[str, Any]]:
    """Run a job with rules; yield the record of the first trace, and see that the job ends well."""
    (folder / "job.py").write_text(script)
    (folder / "agent.toml").write_text(config)
    run = [*WHYSTUCK, "run", "--evidence", "evidence", *options]
    environment = clean_environment(WHYSTUCK_AGENT_CONFIG=str(folder / "agent.toml"))
    with subprocess.Popen(
        [*run, "--", *torchrun(2, Path("job.py"), is_traced=True)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as job:
        try:
            yield wait_for_record(job, folder)
        finally:
            (folder / "stop").touch()
            output, _ = job.communicate(timeout=120)
    assert job.returncode == 0, output.decode()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rank_that_gets_slow_is_traced(tmp_path: Path) -> None:
    with running_job(tmp_path, JOB, CONFIG) as record:
        pass

    assert record["rule"] == "slow rank"
    assert record["ranks"] == [1], record
    assert record["values"]["peers_waiting_percent"] > record["values"]["waiting_percent"] + 20
    (trace,) = record["traces"]
    assert (trace["rank"], trace["state"]) == (1, "written"), trace
    file = Path(trace["file"])
    assert file.is_file()
    assert file.parent.name == "rank-1"
    assert file.parents[2].parent == tmp_path / "evidence" / "incidents"
    check_trace(file, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_traces_of_a_stall_lie_in_its_incident_and_leave_its_verdict_alone(tmp_path: Path) -> None:
    with running_job(tmp_path, STUCK_JOB, STALL, "--stall-after", "10") as record:
        done = subprocess.run(
            [*WHYSTUCK, "diagnose", "evidence", "--format", "json"],
            cwd=tmp_path,
            env=clean_environment(),
            capture_output=True,
            check=False,
            timeout=120,
        )

    assert record["ranks"] == [0, 1], record
    assert [trace["state"] for trace in record["traces"]] == ["written", "written"], record
    incident = tmp_path / "evidence" / "incidents" / "000"
    assert (incident / "incident.json").is_file()
    assert {Path(trace["file"]).parents[2] for trace in record["traces"]} == {incident}
    report = json.loads(done.stdout)
    assert (report["verdict"], report["findings"][0]["code"]) == ("stuck", "H101")
    assert report["findings"][0]["culprits"]["ranks"] == [1]


def wait_for_record(job: subprocess.Popen[bytes], folder: Path) -> dict[str, Any]:
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        assert job.poll() is None
        for path in folder.glob("evidence/incidents/*/trigger.json"):
            found: dict[str, Any] = json.loads(path.read_text())
            return found
        time.sleep(0.2)
    logs = [path.read_text() for path in folder.glob("evidence/rounds/*/*/agent.log")]
    pytest.fail(f"no trace was taken in {LIMIT_S} s; the agent says: {logs}")


def check_trace(file: Path, folder: Path) -> None:
    """The trace knows its rank, and whystuck can read it where it lies."""
    content = json.loads(gzip.decompress(file.read_bytes()))
    assert content["distributedInfo"]["rank"] == 1
    assert any("all_reduce" in event.get("name", "") for event in content["traceEvents"])

    command = [*WHYSTUCK, "trace", "analyze", str(file.parents[2])]
    done = subprocess.run(
        command, cwd=folder, env=clean_environment(), capture_output=True, check=False, timeout=120
    )
    assert b"read 1 of 2 ranks" in done.stdout, done.stderr.decode()
