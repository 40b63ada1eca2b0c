"""Inspection in real jobs: checks of users, breakpoints, scalers, and a probe that is broken."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest
from tests.backends import on_both_slowly
from tests.launch.running import END, clean_environment, torchrun
from tests.probe.inspect.inspected import Inspected, inspect_job
from tests.probe.job import PROBE_DIR, copy_probe, job_dir, start_rank

HEAD = """
import os, sys
import torch, torch.distributed as dist
"""
START = """
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
"""

CHECKS = """
import torch.distributed as dist
class Check:
    def before(self, op):
        assert op.site[0][1].endswith("train.py")
        dist.get_world_size()
        if op.seq == 1:
            op.inputs[0].mul_(10)  # as a fault
        if op.seq == 2:
            return f"saw {op.name} {op.seq} of {op.group} at {op.site[0][2]}"
    def after(self, op):
        if op.seq == 2:
            return f"got {op.outputs[0].tolist()}"
def broken(op):
    raise KeyError("mine")
def leaves(op):
    raise SystemExit(9)
def asks(op):
    dist.all_reduce(op.inputs[0].clone()) if op.seq < 3 else None
"""
CHECKED = (
    "import sys; sys.path.insert(0, '.')\n"
    + HEAD
    + START
    + """
t = torch.ones(2); dist.all_reduce(t); print(f"{t.tolist()}\\n", end="", flush=True)
try:
    dist.all_reduce(t)
except RuntimeError as error:
    print(f"RuntimeError {error}\\n", end="", flush=True)
    sys.exit(0)
t = torch.ones(2); dist.all_reduce(t); assert t.tolist() == [2.0, 2.0]
"""
    + END
)


def _check_job(tmp_path: Path, spec: str) -> Inspected:
    (tmp_path / "checks.py").write_text(CHECKS)
    return inspect_job(tmp_path, spec, CHECKED)


@on_both_slowly
def test_check_when_it_says_something_then_it_is_told_and_the_job_goes_on(tmp_path: Path) -> None:
    seen = _check_job(
        tmp_path,
        "call:checks:Check:on=1,call:checks:broken,call:checks:leaves:on=0,call:nowhere:X:on=0",
    )
    assert seen.code == 0, seen.out
    assert seen.out.count("[11.0, 11.0]") == 2  # the fault of rank 1
    texts = [line["text"] for line in seen.of_kind(1, "said")]
    assert texts[0].startswith("saw all_reduce 2 of 0 at ")
    assert texts[1] == "got [22.0, 22.0]"
    assert seen.of_kind(0, "said") == []
    # its own errors are shown once
    assert seen.out.count("checks:broken failed and is asked on: KeyError: 'mine'") == 2
    assert seen.out.count("checks:leaves failed and is asked on: SystemExit: 9") == 1
    assert seen.out.count("nowhere:X failed and is asked on: ModuleNotFoundError") == 1
    assert [line["call"] for line in seen.of_kind(0, "call-error")] == [
        "checks:broken",
        "checks:leaves",
        "nowhere:X",
    ]


@on_both_slowly
def test_check_when_it_is_to_raise_then_the_job_gets_a_runtime_error(tmp_path: Path) -> None:
    seen = _check_job(tmp_path, "call:checks:Check:action=raise")
    assert seen.code == 0, seen.out
    assert seen.out.count("RuntimeError whystuck: checks:Check: saw all_reduce 2 of 0") == 2


@on_both_slowly
def test_check_when_it_issues_ops_itself_then_these_are_not_inspected(tmp_path: Path) -> None:
    seen = _check_job(tmp_path, "stats,call:checks:asks")
    assert seen.code == 0, seen.out
    # number 2 is an op of the check itself
    assert [line["seq"] for line in seen.of_kind(0, "in")] == [1, 3, 4]


@on_both_slowly
def test_break_when_there_is_no_terminal_then_waits_at_a_socket(tmp_path: Path) -> None:
    (tmp_path / "checks.py").write_text("def stop(op):\n    return 'stop' if op.seq == 2 else ''\n")
    script = tmp_path / "train.py"
    script.write_text(CHECKED.replace("t = torch.ones(2);", "secret = 4711; t = torch.ones(2);", 1))
    with job_dir() as folder:
        state = {"generation": 1, "comm": "on", "inspect": "call:checks:stop:on=1:action=break"}
        (folder / "switch.json").write_text(json.dumps(state))
        job = subprocess.Popen(
            torchrun(2, script),
            cwd=tmp_path,
            env=clean_environment(WHYSTUCK_JOB_DIR=str(folder), PYTHONPATH=str(PROBE_DIR / "site")),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            answer = _visit(folder, job)
        finally:
            job_out, _ = job.communicate(timeout=60)
    assert "4711" in answer
    assert "train.py" in answer
    assert job.returncode == 0, job_out
    assert b"rank 1 waits at a breakpoint; attach with: nc -U " in job_out


def _visit(folder: Path, job: subprocess.Popen[bytes]) -> str:
    """Attach, ask for a value, and let the job go on."""
    deadline_s = time.monotonic() + 120
    while not (paths := list(folder.glob("pdb-*"))):
        assert time.monotonic() < deadline_s, "no breakpoint"
        assert job.poll() is None, job.communicate()
        time.sleep(0.05)
    with socket.socket(socket.AF_UNIX) as visitor:
        visitor.settimeout(60)
        while True:
            try:
                visitor.connect(os.fspath(paths[0]))
                break
            except ConnectionRefusedError:  # bound, and not listening yet
                time.sleep(0.02)
        visitor.sendall(b"p secret\nwhere\ncontinue\n")
        answer = b""
        while more := visitor.recv(4096):
            answer += more
    return answer.decode()


SCALED = (
    HEAD
    + START
    + """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(6):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.ones(2, 4)).float().sum()
    if step in (2, 3):
        loss = loss * float("inf")
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
os.write(1, f"scale {scaler.get_scale()}\\n".encode())
"""
    + END
)


def test_scaler_when_gradients_overflow_then_its_skipped_steps_are_told(tmp_path: Path) -> None:
    seen = inspect_job(tmp_path, "finite,amp", SCALED)
    assert seen.code == 0, seen.out
    assert seen.out.count("scale 256.0") == 2
    for rank in range(2):
        updates = seen.of_kind(rank, "amp")
        assert [(line["scale"], line["skipped"]) for line in updates if line["skipped"]] == [
            (1024.0, True),
            (512.0, True),
        ]
        assert [line["step"] for line in updates if line["skipped"]] == [2, 2]
        bad = [line["op"] for line in seen.of_kind(rank, "in")]
        assert bad, "overflowing gradients were seen"
        skipped = [line for line in updates if line["skipped"]]
        assert all(any(u["first_op"] <= op <= u["last_op"] for u in skipped) for op in bad)


@on_both_slowly
@pytest.mark.parametrize(
    ("name", "old"),
    [
        ("inspect/inspector.py", "        group = self._unbox("),
        pytest.param("inspect/reports.py", "        found: Figures = []", marks=pytest.mark.slow),
        pytest.param(
            "inspect/weights.py",
            "        watched = self._find(optimizer)",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_job_when_inspection_is_broken_then_goes_on(tmp_path: Path, name: str, old: str) -> None:
    site = copy_probe(tmp_path, name, old, "        1 / 0\n" + old)
    with job_dir() as folder:
        state = {"generation": 1, "comm": "on", "inspect": "stats,weights,sync"}
        (folder / "switch.json").write_text(json.dumps(state))
        process = start_rank(tmp_path, folder, "sys.exit(42)", site)
        out, err = process.communicate(timeout=100)
    assert (process.returncode, out, err) == (42, b"trained\n", b"")


PASSED_ON = (
    HEAD
    + START
    + """
box = torch.ones(2)
if rank == 0:
    dist.send(box, 1)
    dist.isend(box, 1).wait()
else:
    dist.recv(box)
    dist.irecv(box, 0).wait()
dist.all_reduce(box)
os.write(1, f"sum {box.sum().item()}\\n".encode())
"""
    + END
)


# On gloo alone: NCCL has no receive from any rank.
@pytest.mark.parametrize("old", ['        if op.name == "send":\n', "    if peer < 0:\n"])
@pytest.mark.slow
def test_sends_when_counting_them_is_broken_then_the_job_goes_on(tmp_path: Path, old: str) -> None:
    site = copy_probe(tmp_path, "inspect/inspector.py", old, old.replace("if ", "if 1 / 0 or "))
    outs = [
        inspect_job(tmp_path, "finite", PASSED_ON, PYTHONPATH=str(one))
        for one in (site, PROBE_DIR / "site")
    ]
    assert [one.code for one in outs] == [0, 0], outs
    assert outs[0].out == outs[1].out == "sum 4.0\n" * 2


def test_spec_when_ops_are_not_recorded_then_says_so(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(CHECKED)
    with job_dir() as folder:
        (folder / "switch.json").write_text('{"generation": 1, "comm": "off", "inspect": "stats"}')
        done = subprocess.run(
            torchrun(1, script),
            cwd=tmp_path,
            env=clean_environment(WHYSTUCK_JOB_DIR=str(folder), PYTHONPATH=str(PROBE_DIR / "site")),
            capture_output=True,
            timeout=100,
            check=False,
        )
        (answer,) = folder.glob("switched-*")
        assert "ops are inspected only while they are recorded (comm=on)" in answer.read_text()
    assert done.returncode != 2, done.stderr
