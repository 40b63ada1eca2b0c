"""Jobs whose tensors are not as they must be, under ``whystuck run --inspect``.

On gloo alone: the jobs read weights of the host, or replace its kernels.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.launch.running import END, WHYSTUCK, clean_environment, run_whystuck, torchrun

from whystuck.pipeline import read_evidence

torch = pytest.importorskip("torch")

TRAIN = """
import hashlib, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
what, steps, pause_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
torch.manual_seed(rank)
for step in range(steps):
    optimizer.zero_grad()
    data = torch.randn(4, 8)
    if what == "nan" and rank == 2 and step == 4:
        data[0, 0] = float("nan")
    loss = model(data).pow(2).mean()
    loss.backward()
    optimizer.step()
    if what == "flip" and rank == 1 and step == 4:
        with torch.no_grad():
            model.module[2].weight.view(torch.int32)[1, 3] ^= 1
    shown = loss.detach().clone()
    dist.all_reduce(shown)
    time.sleep(pause_s)
state = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
sys.stdout.write(f"rank {rank} weights {hashlib.sha256(state).hexdigest()}\\n")
"""
TRAIN += END

PIPELINE = """
import sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, last = dist.get_rank(), dist.get_world_size() - 1
layer = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
for step in range(5):
    data = torch.randn(4, 8)
    if rank > 0:
        dist.recv(data, rank - 1)
    out = layer(data.requires_grad_())
    if sys.argv[1] == "nan" and rank == 1 and step == 3:
        out = out * float("nan")
    if rank < last:
        dist.send(out.detach(), rank + 1)
        grad = torch.empty(4, 8)
        dist.recv(grad, rank + 1)
        out.backward(grad)
    else:
        out.square().mean().backward()
    if rank > 0:
        dist.send(data.grad, rank - 1)
    optimizer.step()
    optimizer.zero_grad()
    if sys.argv[1] == "overflow":
        total = torch.full((8,), 60000.0 if step == 2 else 1.0, dtype=torch.float16)
        dist.all_reduce(total)
        dist.all_reduce(total.float() - total.float())
"""
PIPELINE += END


HALF = """
import sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
torch.manual_seed(rank)
for step in range(40):
    optimizer.zero_grad()
    data = torch.randn(4, 8)
    if sys.argv[1] == "one" and rank == 1 and step >= 2:
        data *= 1e6
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(data).float().pow(2).mean()
    if sys.argv[1] == "all" and step >= 2:
        loss = loss * float("inf")
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
HALF += END

# A kernel of the backend that damages one result on one rank, below all that whystuck sees.
DAMAGED = """
import os
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
calls = 0
op = torch.ops.c10d.allreduce_.default
sound = torch.library.get_kernel(op, "CPU")
unbox = torch._C._distributed_c10d.Work.unbox
def damaged(keys, tensors, *rest):
    global calls
    calls += 1
    result = sound.call_boxed(keys, tensors, *rest)
    if rank == 1 and calls == 6:
        unbox(result[1]).wait()
        result[0][0].view(torch.int32)[0] ^= 1 << 5
    return result
library = torch.library.Library("c10d", "IMPL", "CPU")
library.impl("allreduce_", damaged, with_keyset=True, allow_override=True)
dist.init_process_group("gloo")
for step in range(10):
    value = torch.full((4,), step + 1.0)
    dist.all_reduce(value)
    dist.broadcast(value, 0)
"""
DAMAGED += END


def _run(
    tmp_path: Path,
    ranks: int,
    spec: str,
    *arguments: str,
    train: str = TRAIN,
    options: Sequence[str] = (),
) -> tuple[int, str]:
    script = tmp_path / "train.py"
    script.write_text(train)
    done = run_whystuck(
        "run", "--evidence", "ev", "--inspect", spec, *options, "--",
        *torchrun(ranks, script, *arguments),
        cwd=tmp_path, timeout_s=250,
    )  # fmt: skip
    return done.returncode, (done.stdout + done.stderr).decode()


def _report(tmp_path: Path) -> dict[str, Any]:
    (path,) = (tmp_path / "ev" / "incidents").glob("*/report.json")
    report: dict[str, Any] = json.loads(path.read_text())
    return report


@pytest.mark.slow
def test_job_when_a_bit_of_a_weight_flips_then_rank_tensor_and_step_are_named(
    tmp_path: Path,
) -> None:
    code, out = _run(tmp_path, 4, "weights,finite", "flip", "8", "0")
    assert code == 0, "the job's own code"
    report = _report(tmp_path)
    assert report["verdict"] == "diverged"
    finding = report["findings"][0]
    assert (finding["code"], finding["name"]) == ("V501", "weights-diverged")
    assert (finding["severity"], finding["confidence"]) == ("error", "certain")
    assert finding["culprits"]["ranks"] == [1]
    assert finding["details"]["tensor"] == "2.weight"
    assert (finding["details"]["step"], finding["details"]["tensors"]) == (5, 1)
    assert "rank 1 changed `2.weight` between step 5 and the next one" in " ".join(out.split())
    # the same from the evidence alone, and from the files of the round
    again = run_whystuck("diagnose", "ev", "--format", "json", cwd=tmp_path)
    assert (again.returncode, json.loads(again.stdout)["findings"][0]["code"]) == (1, "V501")
    kept = sorted((tmp_path / "ev" / "rounds").glob("*/*/rank-*/inspect.jsonl"))
    assert len(kept) == 4


@pytest.mark.slow
def test_job_when_one_rank_gives_nan_then_rank_op_and_step_are_named(tmp_path: Path) -> None:
    code, _ = _run(tmp_path, 4, "finite", "nan", "8", "0")
    assert code == 0
    report = _report(tmp_path)
    assert report["verdict"] == "diverged"
    finding = report["findings"][0]
    assert (finding["code"], finding["confidence"]) == ("V502", "likely")
    assert finding["culprits"]["ranks"] == [2]
    assert (finding["details"]["op"], finding["details"]["step"]) == ("all_reduce", 4)
    assert finding["victims"]["ranks"] == "0-1,3"


@pytest.mark.slow
def test_pipeline_when_one_stage_makes_nan_then_the_others_are_victims(tmp_path: Path) -> None:
    code, _ = _run(tmp_path, 3, "finite", "nan", train=PIPELINE)
    assert code == 0
    finding = _report(tmp_path)["findings"][0]
    assert (finding["code"], finding["confidence"]) == ("V502", "likely")
    assert finding["culprits"]["ranks"] == [1]
    assert (finding["details"]["op"], finding["details"]["step"]) == ("send", 3)


def test_job_when_a_sum_overflows_then_the_op_is_named_and_its_log_is_beside(
    tmp_path: Path,
) -> None:
    code, _ = _run(tmp_path, 2, "finite", "overflow", train=PIPELINE, options=["--marks"])
    assert code == 0
    report = _report(tmp_path)
    finding = report["findings"][0]
    assert (finding["code"], finding["confidence"]) == ("V502", "likely")
    assert finding["culprits"]["ranks"] == []
    assert (finding["details"]["side"], finding["details"]["step"]) == ("out", 3)
    again = run_whystuck("diagnose", "ev", "--format", "json", cwd=tmp_path)
    ops = {row["op"] for row in json.loads(again.stdout)["communication"]["rows"]}
    assert ops >= {"all_reduce", "send", "recv"}
    (incident,) = (tmp_path / "ev" / "incidents").iterdir()
    assert [log.rank for log in read_evidence(incident).marks.logs] == [0, 1]


def _hash(out: str) -> str:
    """Return the hash of the weights, which all ranks must share."""
    found = re.findall(r"rank \d weights ([0-9a-f]{64})", out)
    assert len(found) == 2, out
    assert len(set(found)) == 1
    return str(found[0])


@pytest.mark.slow
def test_job_when_all_is_inspected_and_healthy_then_computes_the_same_and_nothing_is_told(
    tmp_path: Path,
) -> None:
    code, out = _run(tmp_path, 2, "stats,weights:grads,amp", "none", "20", "0")
    assert code == 0
    assert not list((tmp_path / "ev").glob("incidents/*"))
    plain = subprocess.run(
        torchrun(2, tmp_path / "train.py", "none", "20", "0"),
        cwd=tmp_path, env=clean_environment(), capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    assert _hash(out) == _hash(plain.stdout.decode())


@pytest.mark.slow
def test_job_when_inspection_flips_all_the_time_then_computes_the_same(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    (tmp_path / "on").mkdir()
    on = _run(tmp_path / "on", 2, "stats,weights:grads,amp", "none", "200", "0")
    plain = subprocess.run(
        torchrun(2, script, "none", "200", "0"),
        cwd=tmp_path, env=clean_environment(), capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    file = tmp_path / "switch.json"
    job = subprocess.Popen(
        [
            *WHYSTUCK, "run", "--evidence", "ev", "--switch-file", str(file), "--",
            *torchrun(2, script, "none", "200", "0.1"),
        ],
        cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    flips = 0
    while job.poll() is None:
        flips += 1
        spec = "stats,weights:grads,amp" if flips % 2 else "off"
        file.write_text(json.dumps({"comm": "on" if flips % 2 else "off", "inspect": spec}))
        time.sleep(2.3)  # both the supervisor and the rank look once a second
    out = job.communicate()[0].decode()
    assert flips > 4
    lines = next((tmp_path / "ev").glob("rounds/*/*/rank-0/inspect.jsonl")).read_text()
    assert lines.count('"kind":"start"') >= 2
    assert _hash(on[1]) == _hash(plain.stdout.decode()) == _hash(out)


@pytest.mark.parametrize(
    ("who", "culprits"), [pytest.param("all", [], marks=pytest.mark.slow), ("one", [1])]
)
def test_job_when_its_scaler_skips_most_steps_then_says_so_at_the_end(
    tmp_path: Path, who: str, culprits: list[int]
) -> None:
    code, out = _run(tmp_path, 2, "finite,weights", who, train=HALF)
    assert code == 0, "the job's own code"
    report = _report(tmp_path)
    assert report["verdict"] == "diverged"
    finding, *others = report["findings"]
    assert (finding["code"], finding["name"]) == ("V503", "updates-skipped"), report["findings"]
    # A machine on which other tests run may be told to be slow.
    assert all(one["code"].startswith(("S", "N")) for one in others), others
    assert (finding["severity"], finding["culprits"]["ranks"]) == ("error", culprits)
    assert finding["details"]["skipped"] >= 36
    assert finding["details"]["scale_to"] < 1e-5
    assert f"skipped {finding['details']['skipped']} of the last 40 optimizer" in out
    assert any(row["overflow"] + row["nan"] > 0.5 for row in report["values"])
    assert "values in the tensors of ops:" in out
    again = run_whystuck("diagnose", "ev", "--format", "json", cwd=tmp_path)
    assert again.returncode == 1
    assert json.loads(again.stdout)["findings"][0]["summary"] == finding["summary"]


@pytest.mark.slow
def test_job_when_a_backend_damages_a_result_then_rank_and_op_are_named(tmp_path: Path) -> None:
    if not hasattr(torch.library, "get_kernel"):
        pytest.skip("this torch has no way to stand in for a kernel of a backend")
    code, _ = _run(tmp_path, 3, "results", train=DAMAGED)
    assert code == 0
    finding, *notes = _report(tmp_path)["findings"]
    assert {one["severity"] for one in notes} <= {"note"}
    assert (finding["code"], finding["confidence"]) == ("V501", "likely")
    assert finding["culprits"]["ranks"] == [1]
    assert finding["victims"]["ranks"] == "0,2"
    assert (finding["details"]["when"], finding["details"]["op"]) == ("result", "all_reduce")
    assert "rank 1 got another result from all_reduce #" in finding["summary"]
