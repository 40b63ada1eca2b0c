"""Jobs of which only the op log tells what is wrong, run as a user does; and one that is well."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from tests.backends import on_both_slowly
from tests.launch.running import END, run_whystuck, torchrun

HEAD = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, world, t = dist.get_rank(), dist.get_world_size(), torch.ones(4)
for _ in range(5):
    dist.all_reduce(t)
    dist.reduce_scatter_tensor(torch.ones(2), torch.ones(2 * world))
"""
RING = """
def exchange():
    dist.recv(t, (rank + 1) % world, tag=3)  # <- here
exchange()
"""
UNMATCHED = """
def exchange():
    if rank == 1:
        dist.recv(t, 0)
    dist.all_reduce(t)  # <- here
exchange()
"""
SPLITS = """
for step in range(4):
    given, taken = [2] * world, [2] * world
    if step == 3 and rank == 1:
        given[2] += 3
    dist.all_to_all_single(torch.ones(sum(taken)), torch.ones(sum(given)), taken, given)  # <- here
"""
TAGS = """
for step in range(10, 20):
    tag = step + 3 if rank == 1 and step == 14 else step
    if rank == 0:
        dist.send(t, 1, tag=tag)
    else:
        dist.recv(t, 0, tag=tag)  # <- here
    dist.all_reduce(t)
"""
FUNCTIONAL = """
from torch.distributed import _functional_collectives as functional
for step in range(4):
    size = 6 if rank == 2 and step == 3 else 4
    functional.all_gather_tensor(torch.ones(size), 0, dist.group.WORLD).sum()  # <- here
"""
PEER = """
for step in range(40):
    for dst in (1, 2):
        if rank == 0:
            dist.send(t, 1 if step == 20 else dst)  # <- here
        elif rank == dst:
            dist.recv(t, 0)
"""
MESH = """
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
for step in range(20):
    dim = "dp" if rank == 3 and step == 12 else "tp"
    dist.all_reduce(torch.ones(5), group=mesh.get_group(dim))  # <- here
    for _ in range(3):
        dist.all_reduce(torch.ones(64), group=mesh.get_group("dp"))
"""
GROUPS = """
if rank != 2:
    dist.new_group([0, 2])  # <- here
for _ in range(4):
    dist.all_reduce(t)
"""
EXIT = """
import sys
def on_step_end(step):
    if rank == 1 and step == 3:
        sys.exit(STATUS)  # <- here
def fit(callback):
    for step in range(10):
        dist.all_reduce(t)
        callback(step)
fit(on_step_end)
t.tolist()  # a host that is ahead of its device waits for it
"""
WELL = """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(20):
    model(torch.ones(4, 256)).sum().backward()
    optimizer.step()
    works = dist.batch_isend_irecv([
        dist.P2POp(dist.isend, t, (rank + 1) % world),
        dist.P2POp(dist.irecv, torch.ones(4), (rank - 1) % world),
    ])
    [work.wait() for work in works]
    dist.all_gather_object([None] * world, rank)
    dist.monitored_barrier()
"""
WELL += END


def run_job(folder: Path, script: str, ranks: int) -> int:
    path = folder / "train.py"
    path.write_text(HEAD + script)
    done = run_whystuck(
        "run", "--stall-after", "6", "--on-stall", "kill", "--evidence", "ev", "--",
        *torchrun(ranks, path), cwd=folder,
    )  # fmt: skip
    return done.returncode


def read_finding(folder: Path, script: str) -> tuple[dict[str, Any], bool]:
    """Return the first finding, and whether it names the line that is marked."""
    (report,) = (folder / "ev" / "incidents").glob("*/report.json")
    finding: dict[str, Any] = json.loads(report.read_text())["findings"][0]
    lines = (HEAD + script).splitlines()
    marked = next(number for number, line in enumerate(lines, 1) if line.endswith("# <- here"))
    return finding, marked in [place["line"] for place in finding["where"]]


@pytest.mark.slow
def test_ring_of_receives_is_certain(tmp_path: Path) -> None:
    assert run_job(tmp_path, RING, 3) == 124
    finding, has_line = read_finding(tmp_path, RING)

    assert (finding["code"], finding["confidence"]) == ("H109", "certain")
    assert finding["culprits"]["ranks"] == [0, 1, 2]
    assert has_line
    assert "ops.ring.gz" in finding["because"][0]["artifact"]


@pytest.mark.slow
def test_first_receive_without_a_send_is_likely(tmp_path: Path) -> None:
    assert run_job(tmp_path, UNMATCHED, 2) == 124
    finding, has_line = read_finding(tmp_path, UNMATCHED)

    assert (finding["code"], finding["confidence"]) == ("H110", "likely")
    assert finding["culprits"]["ranks"] == [0]
    assert has_line


@pytest.mark.slow
def test_tag_that_departs_from_the_earlier_ones_is_certain(tmp_path: Path) -> None:
    assert run_job(tmp_path, TAGS, 2) == 124
    finding, has_line = read_finding(tmp_path, TAGS)

    assert (finding["code"], finding["confidence"]) == ("H110", "certain")
    assert finding["culprits"]["ranks"] == [1]
    assert finding["details"]["tags"] == {"used": 17, "expected": 14}
    assert has_line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "ranks", "code", "culprit"),
    [(PEER, 3, "H110", 0), (MESH, 4, "H102", 3), (GROUPS, 4, "H127", 2)],
    ids=["a wrong peer", "a wrong dimension of a mesh", "a group that one rank does not set up"],
)
def test_rank_that_parts_is_named_and_not_whom_it_meets(
    tmp_path: Path, script: str, ranks: int, code: str, culprit: int
) -> None:
    assert run_job(tmp_path, script, ranks) != 0
    finding, has_line = read_finding(tmp_path, script)

    assert (finding["code"], finding["confidence"]) == (code, "likely")
    assert finding["culprits"]["ranks"] == [culprit]
    assert has_line


@pytest.mark.slow
def test_functional_collective_of_another_shape_is_no_crash(tmp_path: Path) -> None:
    assert run_job(tmp_path, FUNCTIONAL, 3) in {1, 124}
    finding, has_line = read_finding(tmp_path, FUNCTIONAL)

    assert (finding["code"], finding["confidence"]) == ("H106", "certain")
    assert finding["culprits"]["ranks"] == [2]
    assert finding["details"]["shapes"] == {"0": [4], "1": [4], "2": [6]}
    assert has_line


# On gloo alone: its recorder, which the other backend has, calls ops over whose peer is gone.
@pytest.mark.slow
@pytest.mark.parametrize(("status", "code"), [("0", "H103"), ("3", "C204")])
def test_exit_in_a_callback_has_its_line(tmp_path: Path, status: str, code: str) -> None:
    script = EXIT.replace("STATUS", status)
    assert run_job(tmp_path, script, 2) in {0, 1, 3, 124}
    finding, has_line = read_finding(tmp_path, script)

    assert (finding["code"], finding["culprits"]["ranks"]) == (code, [1])
    assert finding["details"]["call"] == "sys.exit"
    assert has_line


@on_both_slowly
@pytest.mark.slow
def test_splits_that_do_not_fit_are_certain(tmp_path: Path) -> None:
    assert run_job(tmp_path, SPLITS, 4) in {1, 124}
    finding, has_line = read_finding(tmp_path, SPLITS)

    assert (finding["code"], finding["confidence"]) == ("H108", "certain")
    assert finding["culprits"]["ranks"] == [1]
    assert finding["details"]["pair"] == [1, 2]
    assert (finding["details"]["sent"], finding["details"]["expected"]) == (5, 2)
    assert has_line


# On gloo alone: ops on devices have no times, and NCCL has no barrier that watches.
def test_job_that_ended_well_tells_what_communication_cost(tmp_path: Path) -> None:
    assert run_job(tmp_path, WELL, 3) == 0
    done = run_whystuck("diagnose", "ev", "--tables", "out", "--format", "json", cwd=tmp_path)

    assert done.returncode == 0, done.stderr.decode()
    report = json.loads(done.stdout)
    # It does nothing but communicate, and may wait for a third of its time.
    assert report["verdict"] in {"healthy", "slow"}
    assert [one["code"] for one in report["findings"] if one["severity"] != "note"] == []
    calls = {row["op"]: row["calls"] for row in report["communication"]["rows"]}
    assert calls["monitored_barrier"] == 20
    assert calls["send"] == calls["recv"] == 60
    with (tmp_path / "out" / "ops.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    barriers = [row for row in rows if row["op"] == "monitored_barrier"]
    assert sorted({row["rank"] for row in barriers}) == ["0", "1", "2"]
    assert all(int(row["ended_ns"]) > int(row["enqueued_ns"]) for row in barriers[:-3])
