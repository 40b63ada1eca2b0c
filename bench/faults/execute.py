"""Runs one job under whystuck and cleans up whatever is left of it."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from bench.faults import confine
from bench.faults._train.spawn import find_port
from bench.faults.cases import ROOT, WORLD, Case

COMMAND = (
    *("{torchrun}", "--standalone", "--nproc-per-node", "{world}"),
    *("{folder}/job.py", "--seed", "{seed}"),
)
TOKEN = "BENCH_TOKEN"
STAMPS = "BENCH_STAMP_FILE"
GRACE = 5.0


@dataclass(frozen=True)
class Tools:
    """The commands under test and the limit they are given."""

    whystuck: str
    torchrun: str
    stall_after: str


@dataclass(frozen=True)
class Run:
    """What one job left behind."""

    exit_code: int | None  # None: the hard limit ended it
    seconds: float
    evidence: Path
    stalled_at: float | None
    leftovers: int


def find_tool(name: str) -> str:
    """Prefer the environment that runs the benchmark over PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is neither beside {sys.executable} nor on PATH")
    return found


def run_case(case: Case, seed: int, tools: Tools, folder: Path) -> Run:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    evidence, stamps = folder / "evidence", folder / "stamps"
    token = uuid.uuid4().hex
    # The cases import their shared training from here, as user code from a repository.
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        TOKEN: token,
        STAMPS: str(stamps),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    begin = time.monotonic()
    with (
        (folder / "output.log").open("wb") as output,
        confine.confining(case.within, case.memory_mib) as prefix,
    ):
        process = subprocess.Popen(
            [*prefix, *build_command(case, seed, tools, evidence)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        exit_code = _wait(process, case.hard_limit)
        seconds = time.monotonic() - begin
        leftovers = _end_leftovers(token, forgive=exit_code is None)
        process.wait()
    return Run(exit_code, seconds, evidence, read_first_stamp(stamps), leftovers)


def build_command(case: Case, seed: int, tools: Tools, evidence: Path) -> list[str]:
    words = {
        "torchrun": tools.torchrun,
        "python": sys.executable,
        "folder": str(case.folder),
        "seed": str(seed),
        "world": str(WORLD),
        "port": str(find_port()),
    }
    return [
        *(tools.whystuck, "run", "--evidence", str(evidence)),
        *("--stall-after", case.stall_after or tools.stall_after, "--on-stall", case.on_stall),
        *(("--inspect", case.inspect) if case.inspect else ()),
        *("--", *(word.format(**words) for word in case.command or COMMAND)),
    ]


def read_first_stamp(path: Path) -> float | None:
    """When the fault began, in seconds since the epoch."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return min((int(line.split()[1]) / 1e9 for line in lines), default=None)


def _wait(process: subprocess.Popen[bytes], limit: float) -> int | None:
    try:
        return process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        return None


def _end_leftovers(token: str, *, forgive: bool) -> int:
    """End every process that carries the token; tell how many should not have been there.

    Ranks run in sessions of their own and orphans change their parent, so neither the process
    group nor the tree finds them all: the environment does.
    """
    deadline = time.monotonic() + (0.0 if forgive else GRACE)
    while (found := _find_by_token(token)) and time.monotonic() < deadline:
        time.sleep(0.2)
    count = len(found)
    while found:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)
        found = _find_by_token(token)
    return 0 if forgive else count


def _find_by_token(token: str) -> list[int]:
    wanted = f"{TOKEN}={token}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # A zombie has an empty environment and is not found.
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found
