"""Inspection in real jobs: right figures, the job as it was, and checks of users."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from tests.launch.running import clean_environment, torchrun
from tests.probe.inspected import Inspected, inspect_job
from tests.probe.job import PROBE_DIR, copy_probe, job_dir, start_rank

pytestmark = pytest.mark.torch

HEAD = """
import os, sys, warnings
import torch, torch.distributed as dist
from torch.distributed import all_reduce as early_import, distributed_c10d
warnings.simplefilter("ignore")
"""
START = """
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
"""
END = """
dist.destroy_process_group()
"""

# Every habit that a recipe of monkey patches breaks, in one job that checks itself.
HABITS = (
    HEAD
    + """
if not dist.is_initialized(): pass  # nothing of ours may ask for a rank before there is one
"""
    + START
    + """
ones = lambda n=4: torch.ones(n)
t = ones(); dist.all_reduce(t); assert t.tolist() == [world] * 4
t = ones(); early_import(t); assert t.tolist() == [world] * 4
t = ones(); distributed_c10d.all_reduce(t); assert t.tolist() == [world] * 4
assert distributed_c10d.all_reduce is dist.all_reduce
assert dist.all_reduce.__name__ == "all_reduce" and "whystuck" not in dist.all_reduce.__module__
# by keyword, with names that a wrapper would have to know
got = [ones(), ones()]
dist.all_gather(tensor_list=got, tensor=ones() * rank)
assert [one.tolist()[0] for one in got] == [0.0, 1.0]
# of an async op, what it gives is not there before it is over
t = ones() * (rank + 1)
work = dist.all_reduce(t, async_op=True)
work.wait()
assert t.tolist() == [3.0] * 4
t += 100
# batches compare functions by identity
box = torch.full((4,), float("nan"))
for work in dist.batch_isend_irecv(
    [dist.P2POp(dist.isend, ones() * rank, 1 - rank), dist.P2POp(dist.irecv, box, 1 - rank)]
):
    work.wait()
assert box.tolist() == [1 - rank] * 4
# buffers that are only filled, with what was there before
dirty = lambda: torch.full((4,), float("nan"))
into = torch.full((8,), float("nan"))
dist.all_gather_into_tensor(into, ones())
b = ones() if rank == 0 else dirty(); dist.broadcast(b, 0)
dist.send(ones() * 5, 1) if rank == 0 else dist.recv(dirty(), 0)
out = dirty(); dist.reduce_scatter(out, [ones(), ones()]); assert out.tolist() == [2.0] * 4
out = dirty(); dist.scatter(out, [ones(), ones()] if rank == 0 else None, src=0)
dist.gather(ones(), [dirty(), dirty()] if rank == 1 else None, dst=1)
dist.barrier()
dist.all_gather_object([None, None], {"rank": rank})
dist.all_reduce_coalesced([ones(), ones(2)])
sub = dist.new_group([1])
if rank == 1:
    dist.all_reduce(ones() * 7, group=sub)
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
ddp(torch.ones(2, 4)).sum().backward()
import torch.distributed._functional_collectives as funcol
assert funcol.wait_tensor(funcol.all_reduce(ones(), "sum", dist.group.WORLD)).tolist() == [2.0] * 4
group = dist.group.WORLD
compiled = torch.compile(lambda x: funcol.all_reduce(x, "sum", group) * 2, backend="eager")
assert compiled(ones()).tolist() == [4.0] * 4
assert torch.is_grad_enabled()
print("done", flush=True)
"""
    + END
)


@pytest.fixture(scope="module")
def habits(tmp_path_factory: pytest.TempPathFactory) -> Inspected:
    return inspect_job(
        tmp_path_factory.mktemp("habits"), "stats,finite,weights:grads,amp,print", HABITS
    )


def _means(tensors: list[dict[str, Any]]) -> list[float]:
    return [tensor["mean"] for tensor in tensors]


def test_job_when_all_is_inspected_then_runs_as_without(habits: Inspected) -> None:
    # B1 no error of ours ends it; B3 no device is needed; B4 no rank is asked for too early;
    # B5 keywords work; B6 batches work; B7 functions are those of torch; B15 all is there
    assert habits.code == 0, habits.out
    assert habits.errors == ["", ""]
    assert habits.out.count("done") == 2
    assert "UserWarning" not in habits.out
    assert "Traceback" not in habits.out


def test_ops_when_issued_in_any_way_then_are_all_seen(habits: Inspected) -> None:
    # B7 however an op is issued, from C++ too; B8 every kind of op; B10 on every rank
    for rank in range(2):
        names = {line["name"] for line in habits.of_kind(rank, "in", "out", "gap")}
        assert {
            "all_reduce", "all_gather", "all_gather_base", "broadcast", "reduce_scatter", "scatter",
            "gather", "send", "all_reduce_coalesced",
        } <= names | {"send", "scatter"}  # fmt: skip
        # by the package, an early import, its module, with async_op, DDP's, funcol's, compiled
        assert len(habits.find(rank, "in", "all_reduce")) >= 7
    assert {line["group"] for line in habits.of_kind(1, "in")} > {"0"}
    # B2 counts are kept by op and go on
    printed = re.findall(r"rank 1 step 0 all_reduce \d+ .* call (\d+)", habits.out)
    assert printed == [str(number) for number in range(1, len(printed) + 1)]
    assert len(printed) >= 8


def test_outputs_when_an_op_is_async_then_are_those_after_its_end(habits: Inspected) -> None:
    # B9 1.5 before and 3.0 after; never 103.0, which is what the job made of it later
    for rank in range(2):
        op = next(
            line
            for line in habits.of_kind(rank, "in")
            if line["name"] == "all_reduce" and _means(line["tensors"]) == [rank + 1.0]
            and line["seq"] == 5
        )  # fmt: skip
        (after,) = [line for line in habits.of_kind(rank, "out") if line["op"] == op["op"]]
        assert _means(after["tensors"]) == [3.0]


def test_inputs_when_a_buffer_is_only_filled_then_are_not_read(habits: Inspected) -> None:
    # B12 the buffers hold NaN, which no input has
    for rank in range(2):
        assert all(
            tensor["nan"] == 0 for line in habits.of_kind(rank, "in") for tensor in line["tensors"]
        )
        assert all(
            tensor["nan"] == 0 for line in habits.of_kind(rank, "out") for tensor in line["tensors"]
        )
    assert habits.find(1, "in", "recv") == []
    assert habits.find(1, "in", "scatter") == []
    assert _means(habits.find(0, "out", "reduce_scatter")) == [2.0]
    assert _means(habits.find(1, "out", "scatter")) == [1.0]


def test_files_of_the_probe_when_read_then_trace_no_lines_and_sync_no_device() -> None:
    # B3, B11, B14 (nothing is wrapped by name), B16: none of the calls that do so is there
    text = "".join(
        path.read_text()
        for path in (PROBE_DIR / "inspect").glob("*.py")
        if path.name != "breaks.py"
    )
    assert "settrace" not in text
    assert text.count("synchronize()") == 1, "where the user asks for `sync`"
    assert ".float()" in text
    assert "distributed_c10d.all_reduce" not in text


CHECK_ERROR = """
class Check:
    def on_error(self, op, error):
        assert isinstance(error, Exception)
        return "it failed"
"""
HANG = (
    "import sys; sys.path.insert(0, '.')\n"
    + HEAD
    + START
    + """
import threading
if rank == 1:
    threading.Event().wait(3)
    os._exit(1)
dist.all_reduce(torch.ones(4))  # nobody comes
"""
)


def test_job_when_an_op_hangs_then_its_input_is_on_record(tmp_path: Path) -> None:
    # B13 what is known of an op is written before it blocks; B14 it outlives the error
    (tmp_path / "checks.py").write_text(CHECK_ERROR)
    seen = inspect_job(tmp_path, "stats,sync,call:checks:Check", HANG)
    assert seen.code != 0
    assert _means(seen.find(0, "in", "all_reduce")) == [1.0]
    assert seen.find(0, "out", "all_reduce") == []
    (said,) = seen.of_kind(0, "said")
    assert said["text"] == "it failed"


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
t = torch.ones(2); dist.all_reduce(t); print(t.tolist(), flush=True)
try:
    dist.all_reduce(t)
except RuntimeError as error:
    print("RuntimeError", error, flush=True)
    sys.exit(0)
t = torch.ones(2); dist.all_reduce(t); assert t.tolist() == [2.0, 2.0]
"""
    + END
)


def _check_job(tmp_path: Path, spec: str) -> Inspected:
    (tmp_path / "checks.py").write_text(CHECKS)
    return inspect_job(tmp_path, spec, CHECKED)


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


def test_check_when_it_is_to_raise_then_the_job_gets_a_runtime_error(tmp_path: Path) -> None:
    seen = _check_job(tmp_path, "call:checks:Check:action=raise")
    assert seen.code == 0, seen.out
    assert seen.out.count("RuntimeError whystuck: checks:Check: saw all_reduce 2 of 0") == 2


def test_check_when_it_issues_ops_itself_then_these_are_not_inspected(tmp_path: Path) -> None:
    seen = _check_job(tmp_path, "stats,call:checks:asks")
    assert seen.code == 0, seen.out
    # number 2 is an op of the check itself
    assert [line["seq"] for line in seen.of_kind(0, "in")] == [1, 3, 4]


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
os.write(1, f"scale {scaler.get_scale()}\n".encode())
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


@pytest.mark.parametrize(
    ("name", "old"),
    [
        ("inspect/inspector.py", "        group = self._unbox("),
        ("inspect/reports.py", "        found: Figures = []"),
        ("inspect/weights.py", "        watched = self._find(optimizer)"),
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
