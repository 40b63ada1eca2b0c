"""Runs one job under whystuck and cleans up whatever is left of it."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
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
# So long after the fault a snapshot is taken: its peers have come to wait for it by then.
SETTLE = 10.0


@dataclass(frozen=True)
class Tools:
    """The commands under test and the limit they are given."""

    whystuck: str
    torchrun: str
    stall_after: str
    # Whether the user ends a stuck job with Ctrl-C once its report is there, in place of whystuck,
    # and then runs another command with the same evidence folder.
    interrupts: bool = False


@dataclass(frozen=True)
class Run:
    """What one job left behind."""

    exit_code: int | None  # None: the hard limit ended it
    seconds: float
    evidence: Path
    stalled_at: float | None
    leftovers: int
    was_interrupted: bool = False


def find_tool(name: str) -> str:
    """Prefer the environment that runs the benchmark over PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is neither beside {sys.executable} nor on PATH")
    return found


def run_case(case: Case, seed: int, tools: Tools, folder: Path) -> Run:
    evidence, stamps = folder / "evidence", folder / "stamps"
    token, environment = _prepare(folder, stamps)
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
        if interrupts(case, tools):
            _interrupt_when_told(process, evidence, case.hard_limit)
        exit_code = _wait(process, case.hard_limit)
        seconds = time.monotonic() - begin
        leftovers = _end_leftovers(token, forgive=exit_code is None or case.leaves_ranks)
        process.wait()
    if interrupts(case, tools):
        again = [tools.whystuck, "run", "--no-agent", "--evidence", str(evidence), "--", "true"]
        subprocess.run(again, check=True, stdin=subprocess.DEVNULL)
    stalled_at, was_interrupted = read_first_stamp(stamps), interrupts(case, tools)
    return Run(exit_code, seconds, evidence, stalled_at, leftovers, was_interrupted)


def interrupts(case: Case, tools: Tools) -> bool:
    """Return whether this job is one that the user ends: one that whystuck would end."""
    return tools.interrupts and case.timed


def _interrupt_when_told(process: subprocess.Popen[bytes], evidence: Path, limit: float) -> None:
    deadline = time.monotonic() + limit
    while process.poll() is None and time.monotonic() < deadline:
        if any(_is_told(path) for path in evidence.glob("incidents/*/report.json")):
            process.send_signal(signal.SIGINT)
            return
        time.sleep(0.2)


def _is_told(report: Path) -> bool:
    return json.loads(report.read_bytes())["verdict"] not in ("waiting", "inconclusive")


def _prepare(folder: Path, stamps: Path) -> tuple[str, dict[str, str]]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    token = uuid.uuid4().hex
    # The cases import their shared training from here, as user code from a repository.
    return token, os.environ | {
        "PYTHONPATH": str(ROOT),
        TOKEN: token,
        STAMPS: str(stamps),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def run_bare(case: Case, seed: int, tools: Tools, folder: Path) -> Run:
    """Start a job as a user does who knows nothing of whystuck, and take a snapshot of it."""
    evidence, stamps = folder / "evidence", folder / "stamps"
    token, environment = _prepare(folder, stamps)
    begin = time.monotonic()
    with (folder / "output.log").open("wb") as output:
        process = subprocess.Popen(
            _fill(case.command or COMMAND, case, seed, tools),
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait_for_fault(process, stamps, folder / "output.log", case)
            with (folder / "snapshot.log").open("wb") as said:
                done = subprocess.run(
                    [
                        *(tools.whystuck, "snapshot"),
                        *("--pid", str(process.pid)),
                        *("--evidence", str(evidence)),
                    ],
                    cwd=folder,
                    env=environment,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    check=False,
                    timeout=case.hard_limit,
                )
        finally:
            seconds = time.monotonic() - begin
            _end_leftovers(token, forgive=True)
            process.wait()
    return Run(done.returncode, seconds, evidence, read_first_stamp(stamps), 0)


def _wait_for_fault(
    process: subprocess.Popen[bytes], stamps: Path, output: Path, case: Case
) -> None:
    """Wait until the fault has been there for a while, or a healthy job makes steps."""
    deadline = time.monotonic() + case.hard_limit
    while time.monotonic() < deadline and process.poll() is None:
        if case.healthy and b"step " in output.read_bytes():
            return
        if not case.healthy and stamps.exists():
            time.sleep(SETTLE)
            return
        time.sleep(0.1)


def build_command(case: Case, seed: int, tools: Tools, evidence: Path) -> list[str]:
    return [
        *(tools.whystuck, "run", "--evidence", str(evidence)),
        *("--stall-after", case.stall_after or tools.stall_after),
        *("--on-stall", "report" if interrupts(case, tools) else case.on_stall),
        *(("--inspect", case.inspect) if case.inspect else ()),
        *("--", *_fill(case.command or COMMAND, case, seed, tools)),
    ]


def _fill(command: Sequence[str], case: Case, seed: int, tools: Tools) -> list[str]:
    words = {
        "torchrun": tools.torchrun,
        "python": sys.executable,
        "folder": str(case.folder),
        "seed": str(seed),
        "world": str(WORLD),
        "port": str(find_port()),
    }
    return [word.format(**words) for word in command]


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
