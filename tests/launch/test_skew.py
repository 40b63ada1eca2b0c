"""Probes of other releases and in other PID namespaces, runs in runs, and upgrades in mid-run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.launch.running import WHYSTUCK, clean_environment, run_whystuck
from tests.probe.job import artifact, copy_probe, job_dir, read_until_trained, start_rank

from whystuck.collect.op_logs import OpLogError, read_op_log
from whystuck.collect.processes.target import Target
from whystuck.collect.scene import Scene, ScenePlan
from whystuck.launch.processes.rank_table import RankTable
from whystuck.parse.errors import ParseError
from whystuck.parse.ops.inspection import parse_inspection

RANK = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
layer = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
one = torch.ones(1)
for _ in range(3):
    dist.all_reduce(one)
    optimizer.step()
print("trained", os.getpid(), flush=True)
time.sleep(float(sys.argv[1]))
os._exit(7)
"""
# Until there is a report: a job without a pending op goes on when nobody can tell what it does.
WAIT = """
import glob
while not glob.glob(sys.argv[1]):
    time.sleep(0.1)
"""


def _as_rank(**more: str) -> dict[str, str]:
    return {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", **more}


def _can_make_namespaces() -> bool:
    command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "true"]
    return (
        shutil.which("unshare") is not None and subprocess.run(command, check=False).returncode == 0
    )


def test_rank_in_another_pid_namespace_is_found_with_its_files(tmp_path: Path) -> None:
    if not _can_make_namespaces():
        pytest.skip("making a PID namespace needs root")
    script = tmp_path / "rank.py"
    script.write_text(RANK.replace("time.sleep(float(sys.argv[1]))", WAIT))
    # Private mounts: the /proc of the machine stays as it is.
    inside = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--propagation", "private"]
    done = run_whystuck(
        *("run", "--no-agent", "--stall-after", "6", "--evidence", "e", "--"),
        *(*inside, sys.executable, str(script), "e/incidents/*/report.json"),
        cwd=tmp_path,
        timeout_s=280,
        environment=_as_rank(),
    )
    out = done.stdout.decode()
    assert "trained" in out, done.stderr.decode()
    assert int(out.split("trained ")[1].split()[0]) < 100, "it has a number of its own there"
    assert done.returncode == 7, done.stderr.decode()
    (folder,) = tmp_path.glob("e/incidents/000/*/rank-0")
    beat = json.loads((folder / "beat.json").read_bytes())
    assert beat["optimizer_steps"] == 3
    assert beat["pid"] > 100
    assert (folder / "stacks-0.json").exists()
    assert (folder / "ops.ring.gz").exists()


def test_two_processes_of_one_number_have_files_of_nobody(tmp_path: Path) -> None:
    table = RankTable(tmp_path, "n0")
    sleepers = [subprocess.Popen(["sleep", "100"]) for _ in range(2)]
    try:
        for rank, one in enumerate(sleepers):
            table.add(rank=rank, pid=one.pid, world_size=2, is_member=False, file_pid=7)
        paths = [one.artifact("beat") for one in table.targets(alive_only=True)]
        assert len(paths) == 2
        assert not any(path is None or path.name == "beat-7" for path in paths)
    finally:
        for one in sleepers:
            one.kill()
            one.wait()


@pytest.mark.parametrize("number", ["00", pytest.param("02", marks=pytest.mark.slow)])
def test_rank_with_a_heartbeat_of_another_layout_is_a_gap(tmp_path: Path, number: str) -> None:
    site = copy_probe(tmp_path, "beat.py", 'MAGIC = b"WSBEAT01"', f'MAGIC = b"WSBEAT{number}"')
    with job_dir() as folder:
        process = start_rank(tmp_path, folder, "time.sleep(300)", site)
        try:
            read_until_trained(process)
            scene = Scene(tmp_path / "scene", [Target(0, process.pid, "n0", folder)])
            scene.take(ScenePlan(samples=1))
        finally:
            process.kill()
            process.communicate()
    assert not list((tmp_path / "scene").rglob("beat.json"))
    (gap,) = [one for one in scene.gaps if "another version" in one.reason]
    assert f"(heartbeats of version {number})" in gap.reason


def test_records_of_another_version_are_refused(tmp_path: Path) -> None:
    ring = tmp_path / "ops"
    ring.write_bytes(b"WSOPS009" + bytes(8192))
    with pytest.raises(OpLogError, match="another version"):
        read_op_log(ring)
    line = b'{"kind":"start","version":9,"spec":"stats"}\n'
    with pytest.raises(ParseError, match="version 9"):
        parse_inspection(line, rank=0, artifact="a")


def test_switch_of_another_version_changes_nothing(tmp_path: Path) -> None:
    with job_dir() as folder:
        (folder / "switch.json").write_text('{"version": 9, "generation": 1, "comm": "on"}')
        process = start_rank(tmp_path, folder, "time.sleep(300)")
        try:
            read_until_trained(process)
            told = artifact(folder, "switched", process)
            deadline_s = time.monotonic() + 100
            while not told.exists() and time.monotonic() < deadline_s:
                time.sleep(0.1)
            answer = json.loads(told.read_bytes())
        finally:
            process.kill()
            process.communicate()
    assert answer["comm"] == "off"
    assert answer["error"] == "the file is of version 9, this probe knows 1"


def test_upgrade_while_the_job_runs_mixes_nothing(tmp_path: Path) -> None:
    site = copy_probe(tmp_path, "beat.py", "MAGIC", "MAGIC")
    with job_dir() as folder:
        (folder / "switch.json").unlink()
        # As it would come with another release.
        then = "while not os.path.exists('end'): optimizer.step(); time.sleep(0.05)\nsys.exit(42)"
        process = start_rank(tmp_path, folder, f"import os\n{then}", site)
        read_until_trained(process)
        for path in site.parent.rglob("*.py"):
            text = path.read_text()
            path.unlink()
            path.write_text(f"raise SystemExit('of another release')\n{text}")
        (folder / "switch.json").write_text('{"generation": 3, "comm": "on"}')
        told = artifact(folder, "switched", process)
        deadline_s = time.monotonic() + 100
        while not (told.exists() and json.loads(told.read_bytes())["generation"] == 3):
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        answer = json.loads(told.read_bytes())
        (tmp_path / "end").touch()
        assert process.communicate(timeout=100) == (b"", b"")
        assert process.returncode == 42
    assert answer["comm"] == "off"
    assert "whystuck was replaced on disk while this job ran" in answer["error"]


@pytest.mark.slow
def test_run_inside_run_changes_nothing_and_the_inner_one_has_the_ranks(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    command = [sys.executable, str(script), "1"]
    bare = subprocess.run(
        command, cwd=tmp_path, env=clean_environment(**_as_rank()), capture_output=True, check=False
    )
    options = ["--no-agent", "--evidence"]
    done = run_whystuck(
        *("run", *options, "outer", "--", *WHYSTUCK, "run", *options, "inner", "--", *command),
        cwd=tmp_path,
        timeout_s=250,
        environment=_as_rank(),
    )
    assert (done.returncode, bare.returncode) == (7, 7), done.stderr.decode()
    assert (done.stdout[:8], bare.stdout[:8]) == (b"trained ", b"trained "), done.stderr.decode()
    assert list(tmp_path.glob("inner/**/rank-0/ops.ring.gz"))
    assert not list(tmp_path.glob("outer/**/rank-0/ops.ring.gz"))
    assert not list(tmp_path.glob("outer/**/rank-0"))
