"""Modules that lie in the working directory, which may be evidence of others, are never run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import whystuck

WHYSTUCK = Path(sysconfig.get_path("scripts")) / "whystuck"
# Larger than what is read without worker processes.
PAD_BYTES = 40 << 20
START = re.compile(r"\[\s*sys\.executable,\s*([^,]*)")
EVENT = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 10, "dur": 5}
OTHERS = ("msgspec", "numpy", "click", "psutil", "pyarrow", "whystuck", "torch", "sitecustomize")


@pytest.fixture(scope="module")
def traps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with modules of all names that Python may look for; each leaves a mark."""
    folder = tmp_path_factory.mktemp("traps")
    line = f"import posix; posix.close(posix.open({str(folder / 'mark')!r}, 65, 0o600))\n"
    for name in {*sys.stdlib_module_names, *OTHERS}:
        (folder / f"{name}.py").write_text(line)
    return folder


def run_in(folder: Path, *arguments: str) -> str:
    """Run a command there; return the name of the first trap that was run, "" for none."""
    mark = folder / "mark"
    mark.unlink(missing_ok=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [str(WHYSTUCK), *arguments],
        cwd=folder,
        env={**environment, "PATH": f"{WHYSTUCK.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return "a module was run" if mark.exists() else ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("doctor",),
        ("run", "--no-agent", "--nccl-net-plugin", "other", "--", "true"),
        ("run", "--", "sh", "-c", "exit 3"),
        ("diagnose", "."),
    ],
    ids=" ".join,
)
def test_no_command_runs_a_module_of_the_working_directory(
    traps: Path, arguments: tuple[str, ...]
) -> None:
    assert not run_in(traps, *arguments)


def test_as_a_module_of_python_it_runs_none_of_the_working_directory_either(
    tmp_path: Path,
) -> None:
    for name in ("queue", "random", "profile", "msgspec", "psutil"):
        (tmp_path / f"{name}.py").write_text("raise ValueError('a module of the job')")
    command = [sys.executable, "-m", "whystuck", "run", "--no-agent", "--", "sh", "-c", "exit 3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (3, "")
    assert "a module of the job" not in done.stderr


def test_traces_are_read_by_processes_that_run_no_module_beside_them(traps: Path) -> None:
    for rank in range(2):
        trace = {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": [EVENT]}
        text = json.dumps(trace | {"pad": " " * PAD_BYTES})
        (traps / f"rank{rank}.json").write_text(text)

    assert not run_in(traps, "trace", "analyze", ".", "--workers", "2")


def test_every_python_of_ours_is_started_without_the_working_directory() -> None:
    sources = list(Path(whystuck.__file__).parent.rglob("*.py"))
    starts = [one for path in sources for one in START.findall(path.read_text())]

    assert len(starts) > 5
    assert [one for one in starts if not one.startswith(('"-P"', '"-I"'))] == []
