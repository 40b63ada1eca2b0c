"""Collectives that torch swallows after a failed coalescing manager, in real jobs.

On gloo alone: NCCL can coalesce, so that no manager fails.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.launch.running import END, clean_environment, run_whystuck, torchrun

from whystuck.report.json import report_schema

WORLD = 3
SCRIPT = """\
import sys
import torch, torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager, _world
dist.init_process_group("gloo")
rank, how = dist.get_rank(), sys.argv[1]

def warm_up():
    try:
        with _coalescing_manager(device=torch.device("cpu")):  # manager
            pass
    except RuntimeError:
        if how == "repaired":
            _world.pg_coalesce_state.pop(dist.group.WORLD)

def mean(value):
    dist.all_reduce(value)  # lost
    return value.item() / dist.get_world_size()

for step in range(6):
    if step == 2 and (rank == 1 or how != "one"):
        warm_up()
    with _coalescing_manager() if how == "repaired" else torch.no_grad():
        dist.all_reduce(torch.ones(1)) if how == "repaired" else None
    got = mean(torch.ones(1))
    if rank == 0:
        print(f"step {step} {round(got, 3)}\\n", end="", flush=True)
dist.barrier()
"""
SCRIPT += END


def _line(mark: str) -> int:
    lines = enumerate(SCRIPT.splitlines(), 1)
    return next(number for number, text in lines if text.endswith(f"# {mark}"))


def _write(folder: Path) -> Path:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    return script


def _run(folder: Path, how: str) -> subprocess.CompletedProcess[bytes]:
    return run_whystuck(
        "run", "--stall-after", "5", "--on-stall", "kill", "--evidence", "ev", "--",
        *torchrun(WORLD, _write(folder), how), cwd=folder,
    )  # fmt: skip


def _read_report(folder: Path) -> dict[str, Any]:
    (incident,) = (folder / "ev/incidents").iterdir()
    report: dict[str, Any] = json.loads((incident / "report.json").read_text())
    jsonschema.validate(report, report_schema())
    return report


def _places(finding: dict[str, Any]) -> list[tuple[int, int]]:
    return [(place["rank"], place["line"]) for place in finding["where"]]


def _diagnose(folder: Path) -> list[object]:
    done = run_whystuck("diagnose", "ev", "--format", "json", cwd=folder)
    assert done.returncode == 1, done.stderr.decode()
    return _shorten(json.loads(done.stdout))


def _shorten(report: dict[str, Any]) -> list[object]:
    """Return what a report says; paths of artifacts depend on the folder that was named."""
    kept = ("code", "confidence", "summary", "culprits", "victims", "where", "details")
    return [report["verdict"], *([one[key] for key in kept] for one in report["findings"])]


def test_one_rank_that_lost_calls_is_named_as_the_cause_of_the_hang(tmp_path: Path) -> None:
    done = _run(tmp_path, "one")
    report = _read_report(tmp_path)

    assert done.returncode == 124, done.stderr.decode()
    assert report["verdict"] == "stuck"
    (finding,) = report["findings"]
    assert (finding["code"], finding["name"]) == ("H124", "collective-not-issued")
    assert (finding["severity"], finding["confidence"]) == ("error", "certain")
    assert finding["culprits"]["ranks"] == [1]
    assert finding["victims"]["ranks"] == "0,2"
    assert _places(finding) == [(1, _line("lost")), (1, _line("manager"))]
    # The four calls that are left, before the barrier in which the rank waits.
    assert (finding["details"]["calls"], finding["details"]["ops"]) == (4, {"all_reduce": 4})
    assert "dist.all_reduce(value)  # lost" in finding["details"]["code"].values()
    assert _diagnose(tmp_path) == _shorten(report)


@pytest.mark.slow
def test_job_whose_ranks_all_lost_calls_ends_well_and_is_told_of(tmp_path: Path) -> None:
    alone = subprocess.run(
        torchrun(WORLD, _write(tmp_path), "all"),
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        check=True,
    )
    done = _run(tmp_path, "all")
    report = _read_report(tmp_path)

    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == alone.stdout
    assert b"step 1 1.0\nstep 2 0.333\n" in done.stdout
    assert report["verdict"] == "diverged"
    (finding,) = report["findings"]
    assert (finding["code"], finding["confidence"]) == ("H124", "certain")
    assert finding["culprits"]["ranks"] == [0, 1, 2]
    assert finding["victims"]["ranks"] == ""
    assert set(_places(finding)) == {
        (rank, line) for rank in range(WORLD) for line in (_line("lost"), _line("manager"))
    }
    assert finding["details"]["calls"] == 4 * WORLD
    assert "error[H124]" in done.stderr.decode()
    assert _diagnose(tmp_path) == _shorten(report)


def test_job_that_repairs_its_state_and_coalesces_is_healthy(tmp_path: Path) -> None:
    done = _run(tmp_path, "repaired")

    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.splitlines()[-1] == b"step 5 1.0"
    assert not (tmp_path / "ev/incidents").exists()
    assert done.stderr == b""
