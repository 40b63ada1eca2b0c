"""NVIDIA's driver at a stall: ranks that loaded CUDA, and a library that stands in for NVML."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.agent.metrics.gpu.nvml import nvml_folder

from whystuck.collect.node.devices import WHAT, collect_devices
from whystuck.collect.processes.target import Target
from whystuck.collect.scene import Scene, ScenePlan
from whystuck.evidence.archive import SUFFIX, write_archive
from whystuck.evidence.nodes.devices import DevicesRecord
from whystuck.pipeline import read_paths

__all__ = ["nvml_folder"]
pytest.importorskip("pynvml")

RANK = """
import ctypes, sys, time
if sys.argv[1]:
    ctypes.CDLL(sys.argv[1])
print("ready", flush=True)
time.sleep(600)
"""
Start = Callable[..., Target]


@pytest.fixture
def start(nvml_folder: Path) -> Iterator[Start]:
    """Start processes as ranks, which have loaded CUDA unless told not to."""
    started: list[subprocess.Popen[bytes]] = []

    def run(rank: int = 0, *, has_cuda: bool = True, **environment: str) -> Target:
        library = str(nvml_folder / "libcuda.so.1") if has_cuda else ""
        process = subprocess.Popen(
            [sys.executable, "-c", RANK, library],
            env=os.environ | environment,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return Target(rank, process.pid, "n0")

    yield run
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def driver(nvml_folder: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let the process that asks find the stand-in."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_folder))
    return monkeypatch


def read(folder: Path) -> DevicesRecord:
    return msgspec.json.decode((folder / "n0/devices.json").read_bytes(), type=DevicesRecord)


def test_two_looks_at_each_device(start: Start, driver: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = start(3)
    driver.setenv("STAND_IN_PROCESS", str(target.pid))
    assert collect_devices([target], tmp_path) == []

    record = read(tmp_path)
    assert (record.node, len(record.devices)) == ("n0", 2)
    first, second = record.devices
    assert (first.index, first.uuid, first.ranks, first.is_guessed) == ("0", "GPU-0000", [3], False)
    assert (first.bus, second.bus) == ("00000000:9B:00.0", "00000000:9C:00.0")
    assert second.ranks == []
    before, after = first.looks
    assert (after.utilization, after.power, after.power_limit) == (0.87, 412.5, 700)
    assert (after.sm_clock, after.memory_clock, after.temperature) == (1.755e9, 2.619e9, 61)
    assert after.throttled == ["power_cap", "hw_thermal"]
    assert (after.ecc_corrected, after.ecc_uncorrected, after.xid_errors) == (12, 1, 0)
    assert before.sm_active is None
    assert after.sm_active is not None
    assert not after.is_lost


def test_ranks_without_cuda_ask_nobody(
    start: Start, driver: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert collect_devices([start(has_cuda=False)], tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_machine_without_the_driver_is_a_gap(start: Start, tmp_path: Path) -> None:
    (gap,) = collect_devices([start()], tmp_path)

    assert gap.what == WHAT
    assert gap.reason.startswith("NVIDIA's driver cannot be asked")
    assert list(tmp_path.iterdir()) == []


def test_absent_package_is_a_gap_that_says_what_to_install(
    start: Start, driver: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "pynvml.py").write_text("raise ImportError\n")
    driver.setenv("PYTHONPATH", str(hidden))
    (gap,) = collect_devices([start()], tmp_path)

    assert "pip install 'whystuck[nvidia]'" in gap.reason
    assert not (tmp_path / "n0").exists()


def test_driver_that_hangs_costs_a_gap(
    start: Start, driver: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver.setenv("STAND_IN_HANGS", "nvmlDeviceGetPowerUsage")
    begin_s = time.monotonic()
    (gap,) = collect_devices([start()], tmp_path, 2.0)

    assert gap.reason == "NVIDIA's driver did not answer in 2 s"
    assert time.monotonic() - begin_s < 60
    assert not (tmp_path / "n0").exists()


def test_driver_that_crashes_costs_a_gap(
    start: Start, driver: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver.setenv("STAND_IN_CRASHES", "nvmlDeviceGetPowerUsage")
    (gap,) = collect_devices([start()], tmp_path)

    assert gap.reason == "the process that asks NVIDIA's driver failed"


def test_device_that_is_lost_is_told(
    start: Start, driver: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver.setenv("STAND_IN_LOST", "1")
    (gap,) = collect_devices([start(0, LOCAL_RANK="0"), start(1, LOCAL_RANK="1")], tmp_path)

    first, second = read(tmp_path).devices
    assert not any(look.is_lost for look in first.looks)
    assert second.looks
    assert all(look.is_lost for look in second.looks)
    assert (second.ranks, second.is_guessed) == ([1], True)
    assert gap.what == WHAT


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"LOCAL_RANK": "1"}, 1),
        ({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "1,0"}, 0),
        ({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "1"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1000"}, 1),
        ({"LOCAL_RANK": "7"}, None),
        ({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": ""}, None),
        ({}, None),
    ],
)
def test_environment_tells_whose_a_device_is(
    environment: dict[str, str],
    place: int | None,
    start: Start,
    driver: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name in ("LOCAL_RANK", "CUDA_VISIBLE_DEVICES"):
        driver.delenv(name, raising=False)
    assert collect_devices([start(5, **environment)], tmp_path) == []

    told = {index: one.is_guessed for index, one in enumerate(read(tmp_path).devices) if one.ranks}
    assert told == ({} if place is None else {place: True})


@pytest.mark.parametrize("is_packed", [False, True])
def test_scene_has_the_devices_and_they_are_read(
    start: Start, driver: pytest.MonkeyPatch, tmp_path: Path, is_packed: bool
) -> None:
    target = start(0, LOCAL_RANK="0")
    plan = ScenePlan(samples=1, interval_s=0.0, beside=(collect_devices,))
    scene = Scene(tmp_path, [target])
    scene.take(plan)
    if is_packed:
        with (tmp_path / f"n0{SUFFIX}").open("wb") as out:
            write_archive(out, "n0", [("devices.json", tmp_path / "n0/devices.json")])
        shutil.rmtree(tmp_path / "n0")
    evidence = read_paths([tmp_path])

    assert [one.entry.index for one in evidence.devices] == ["0", "1"]
    assert evidence.devices[0].artifact == "n0/devices.json"
    assert (evidence.devices[0].node, evidence.devices[1].row) == ("n0", 1)
