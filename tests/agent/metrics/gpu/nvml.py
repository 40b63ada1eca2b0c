"""Runs `NvidiaSource` in a process of its own, on a library that stands in for the driver's."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).with_name("stand_in_nvml.c")
PRELUDE = """
import ctypes, json, os, sys
from whystuck.agent.metrics.gpu.families import GpuTable
from whystuck.agent.metrics.gpu.nvidia import NvidiaSource

def load():
    return ctypes.CDLL("libnvidia-ml.so.1")  # the one that pynvml finds

table = GpuTable()
source = NvidiaSource(lambda pid: ("job-7", "3") if pid == os.getpid() else ("", ""), table)

def look(source=source):
    return {
        (one.family.name.removeprefix("whystuck_gpu_"), *one.labels): one.value
        for one in source.collect()
    }

def told(samples):
    return [[list(labels), value] for labels, value in sorted(samples.items())]
"""
Told = dict[tuple[str, ...], float]


@pytest.fixture(scope="session")
def nvml_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a stand-in for ``libnvidia-ml.so.1``."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build a stand-in for NVIDIA's library")
    folder = tmp_path_factory.mktemp("nvml")
    library = folder / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True, capture_output=True)
    # What a process that uses a GPU has loaded too.
    shutil.copy(library, folder / "libcuda.so.1")
    return folder


def run(folder: Path | None, code: str) -> Any:
    """Run code after the prelude; return what it prints as JSON."""
    environment = {"PATH": "/usr/bin:/bin"}
    if folder is not None:
        environment["LD_LIBRARY_PATH"] = str(folder)
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def as_told(rows: list[Any]) -> Told:
    """Samples by name and labels, from the JSON of ``told``."""
    return {tuple(labels): value for labels, value in rows}
