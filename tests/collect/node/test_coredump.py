"""Dumps of devices on demand: real pipes, and processes that answer as CUDA's driver does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from whystuck.collect.node.coredump import WHAT, collect_coredump
from whystuck.collect.processes.target import Target
from whystuck.launch.environment.coredumps import coredump_environment
from whystuck.pipeline import read_paths

RANK = Path(__file__).with_name("gpu_rank.py")
KERNELS = """\
[Current focus set to CUDA kernel 0, grid 37, block (0,0,0), thread (0,0,0), device 0, sm 0]
  Kernel Parent Dev Grid Status                                  SMs Mask  GridDim BlockDim Invocation
*      0      -   0   37 Active 0x000000000000000000000000000000000000001  (1,1,1) (32,1,1) spin_kernel(long *)=(0x7f)
       1      -   0   38 Active 0x0000000000000000000000000000000000000f0 (24,1,1) (544,1,1) ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096>)
"""  # noqa: E501 - as cuda-gdb has it
Start = Callable[..., Target]


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    folder.mkdir()
    return folder


@pytest.fixture
def start(job_dir: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def run(mode: str = "dumps", rank: int = 0, size: int = 64, **environment: str) -> Target:
        before = os.environ | environment
        process = subprocess.Popen(
            [sys.executable, str(RANK), mode, str(size)],
            env=before | coredump_environment(before, job_dir),
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return Target(rank, process.pid, "n0", job_dir)

    yield run
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def gdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a cuda-gdb on the path that prints what was recorded, if it is given a dump."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "cuda-gdb"
    (folder / "kernels").write_text(KERNELS)
    program.write_text(f'#!/bin/sh\ntest -s gpu.cudacore && cat "{folder}/kernels"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return program


def test_dump_of_the_first_rank_that_listens_is_kept(
    start: Start, job_dir: Path, gdb: Path, tmp_path: Path
) -> None:
    targets = [start("deaf", 0), start(rank=1), start(rank=2)]
    incident = tmp_path / "incident"
    assert collect_coredump(targets, incident) == []

    assert [path.name for path in sorted((incident / "n0").iterdir())] == ["rank-1"]
    assert (incident / "n0/rank-1/gpu.cudacore").stat().st_size == 64 << 10
    assert not list(job_dir.glob("gpu-core*"))
    evidence = read_paths([incident])
    assert [(one.rank, one.name) for one in evidence.kernels] == [
        (1, "spin_kernel"),
        (1, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
    ]
    assert not [gap for gap in evidence.gaps if gap.rank == 1]


def test_rank_that_would_end_by_its_dump_is_not_asked(start: Start, tmp_path: Path) -> None:
    target = start(CUDA_COREDUMP_GENERATION_FLAGS="skip_global_memory")

    (gap,) = collect_coredump([target], tmp_path / "incident")

    assert "skip_abort" in gap.reason
    assert not (tmp_path / "incident").exists()


def test_without_cuda_gdb_the_gap_has_its_command(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = start()
    monkeypatch.setenv("PATH", "/nowhere")
    (gap,) = collect_coredump([target], tmp_path / "incident")

    assert "'target cudacore gpu.cudacore'" in gap.reason
    assert (tmp_path / "incident/n0/rank-0/gpu.cudacore").exists()


def test_cuda_gdb_that_fails_costs_the_kernels_alone(
    start: Start, gdb: Path, tmp_path: Path
) -> None:
    gdb.write_text("#!/nowhere\n")
    (gap,) = collect_coredump([start()], tmp_path / "incident")

    assert gap.reason == "cuda-gdb did not read it"
    assert (tmp_path / "incident/n0/rank-0/gpu.cudacore").exists()


def test_driver_that_never_dumps_costs_a_gap(start: Start, gdb: Path, tmp_path: Path) -> None:
    (gap,) = collect_coredump([start("hangs")], tmp_path / "incident", 1.0)

    assert (gap.rank, gap.what) == (0, WHAT)
    assert gap.reason == "the driver did not write it in time"
    assert not (tmp_path / "incident").exists()


def test_dump_that_is_too_large_is_not_kept(
    start: Start, job_dir: Path, gdb: Path, tmp_path: Path
) -> None:
    (gap,) = collect_coredump([start(size=2048)], tmp_path / "incident", 60.0, 1 << 20)

    assert gap.reason == "it has more than 1 MiB"
    assert not list(job_dir.glob("gpu-core*"))


def test_places_of_the_user_are_used_and_his_files_stay(
    start: Start, gdb: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    target = start(CUDA_COREDUMP_PIPE=f"{own}/pipe", CUDA_COREDUMP_FILE=f"{own}/core.%p")
    assert collect_coredump([target], tmp_path / "incident") == []

    assert (own / f"core.{target.pid}").stat().st_size == 64 << 10
    assert (tmp_path / "incident/n0/rank-0/gpu.cudacore").exists()


@pytest.mark.parametrize(
    "environment",
    [
        {"CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "0"},
        {"CUDA_COREDUMP_FILE": "core.%p"},
    ],
)
def test_settings_that_forbid_it_are_a_gap(
    environment: dict[str, str], start: Start, tmp_path: Path
) -> None:
    (gap,) = collect_coredump([start("deaf", **environment)], tmp_path / "incident", 1.0)

    assert gap.reason.startswith("no rank has a pipe for it")


def test_file_or_link_in_the_place_of_the_pipe_is_left_alone(
    start: Start, job_dir: Path, tmp_path: Path
) -> None:
    target = start("hangs")
    (pipe,) = job_dir.glob("gpu-pipe*")
    pipe.unlink()
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    for make in (os.symlink, os.link):
        make(victim, pipe)
        (gap,) = collect_coredump([target], tmp_path / "incident", 1.0)
        assert gap.reason.startswith("no rank has a pipe for it")
        pipe.unlink()
    assert victim.read_bytes() == b"mine"


def test_what_the_user_set_stays(tmp_path: Path) -> None:
    made = coredump_environment({"CUDA_COREDUMP_GENERATION_FLAGS": "skip_abort"}, tmp_path)

    assert sorted(made) == [
        "CUDA_COREDUMP_FILE",
        "CUDA_COREDUMP_PIPE",
        "CUDA_ENABLE_USER_TRIGGERED_COREDUMP",
    ]
    assert set(coredump_environment(made, tmp_path)) == {"CUDA_COREDUMP_GENERATION_FLAGS"}
