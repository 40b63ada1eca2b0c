"""AMD devices through AMD's own Python package; its library is a stand-in with fixed answers."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.agent.metrics.gpu.amd_library import build_amd_library

SOURCE = Path(__file__).with_name("stand_in_amd.c")
CODE = """
import json, os
os.environ["STAND_IN_PID"] = str(os.getpid())
import whystuck.agent.metrics.gpu.processes as gpu_processes
gpu_processes._sees_all = lambda: True
from whystuck.agent.metrics.gpu.amd import AmdSource
source = AmdSource(lambda pid: ("job", "5") if pid == os.getpid() else ("", ""))
list(source.collect())
samples = list(source.collect())
known = {family.name for family in source.families}
assert all(one.family.name in known for one in samples)
rows = [[one.family.name.removeprefix("whystuck_gpu_"), *one.labels, one.value] for one in samples]
print(json.dumps([rows, source.problem]))
"""
ZERO, ONE = ("0", "uuid-0", "amd", "job", "5"), ("1", "uuid-1", "amd", "", "")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a stand-in for ``libamd_smi.so``: what the package wants must all be there."""
    return build_amd_library(SOURCE, tmp_path_factory.mktemp("amd"))


def run(**environment: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_absent_library_is_a_problem_and_prints_nothing() -> None:
    rows, problem = run()

    assert rows == []
    assert "not installed" in problem or problem.endswith("is not on this machine")


def test_figures_are_in_base_units(library: Path) -> None:
    rows, problem = run(LD_LIBRARY_PATH=str(library))

    found = {tuple(row[:-1]): row[-1] for row in rows}
    expected = {
        "up": 1,
        "utilization_ratio": 0.87,
        "memory_utilization_ratio": 0.31,
        "memory_used_bytes": 1 << 30,
        "memory_total_bytes": 196592 << 20,
        "power_watts": 512,
        "power_limit_watts": 750,
        "energy_joules_total": 31,
        "sm_clock_hertz": 1.7e9,
        "sm_clock_max_hertz": 2.1e9,
        "memory_clock_hertz": 0.9e9,
        "temperature_celsius": 64,
        "memory_temperature_celsius": 51,
        "processes": 1,
        "process_memory_bytes": 3 << 30,
    }
    for name, value in expected.items():
        assert found[(name, *ZERO)] == pytest.approx(value), name
    assert found[("ecc_errors_total", *ZERO, "corrected")] == 5
    assert ("utilization_ratio", *ONE) not in found  # it says that it does not know
    assert ("temperature_celsius", *ONE) not in found
    assert problem == "we may not read the memory temperature of GPU 1"


def test_driver_that_is_not_loaded_is_a_problem(library: Path) -> None:
    rows, problem = run(LD_LIBRARY_PATH=str(library), STAND_IN_NO_DRIVER="1")

    assert rows == []
    assert problem.startswith("AMD's driver cannot be asked")
