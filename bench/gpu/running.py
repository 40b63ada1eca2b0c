"""Runs the jobs of `jobs.py`, bare and under ``whystuck run``, and keeps what they said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from tests.backends import HEAD
from tests.nccl_like.building import Like, NotBuiltError, build

JOBS = str(Path(__file__).with_name("jobs.py"))


@dataclass(frozen=True)
class Job:
    """One job of `jobs.py`: bare, or with an ``evidence`` folder under whystuck."""

    words: tuple[str, ...]
    ranks: int = 2
    evidence: str = ""
    options: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)


def make_job(*words: str, ranks: int = 2, evidence: str = "", options: str = "") -> Job:
    """Return a job by the words of `jobs.py`; without ranks there is no launcher."""
    return Job(words, ranks, evidence, tuple(options.split()))


def find_stand_in() -> dict[str, str]:
    """Return what tells jobs to run on the backend that is like NCCL, or on gloo without it."""
    cache = Path(__file__).parents[2] / ".pytest_cache/d/nccl_like"
    try:
        like = build(cache)
    except NotBuiltError as error:
        print(f"note: jobs run on gloo: {error}")
        return {"ACCEPTANCE_DEVICE": "cpu"}
    return tell_jobs(like)


def tell_jobs(like: Like) -> dict[str, str]:
    """Return the variables by which jobs run on the backend that is like NCCL."""
    return {
        "ACCEPTANCE_DEVICE": "privateuseone",
        "ACCEPTANCE_LIKE": str(like.backend),
        "ACCEPTANCE_LOADER": str(HEAD),
    }


class Bench:
    """Runs jobs, bare and under ``whystuck run``, and keeps what they said."""

    def __init__(self, out: Path, *, is_stand_in: bool) -> None:
        self.out = out
        self.is_stand_in = is_stand_in
        self.environment = os.environ | (find_stand_in() if is_stand_in else {})
        # Where it cannot be built, jobs of the stand-in run on hosts with gloo.
        self.has_device = self.environment.get("ACCEPTANCE_DEVICE", "cuda") != "cpu"

    def command(self, job: Job) -> list[str]:
        """Return the words that start a job."""
        watch = [sys.executable, "-m", "whystuck", "run", "--stall-after", "12"]
        watch += [*job.options, "--evidence", str(self.out / job.evidence), "--"]
        start = [sys.executable]
        if job.ranks:
            start += ["-m", "torch.distributed.run", "--standalone"]
            start += ["--nproc-per-node", str(job.ranks)]
        return [*(watch if job.evidence else []), *start, JOBS, *job.words]

    def run(self, job: Job, limit_s: float = 90) -> Said:
        """Run a job to its end, or until its time is over."""
        with self.started(job) as process:
            begin_s = time.monotonic()
            try:
                out, errors = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGTERM)
                out, errors = process.communicate()
        return Said(process.returncode, out, errors, time.monotonic() - begin_s)

    @contextmanager
    def started(self, job: Job) -> Iterator[subprocess.Popen[str]]:
        """Start a job; whatever is left of it is ended."""
        alone = {}
        if not job.ranks:
            alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
            alone |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        process = subprocess.Popen(
            self.command(job),
            env=self.environment | alone | job.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                # Ranks have sessions of their own.
                leader = psutil.Process(process.pid)
                for one in [*leader.children(recursive=True), leader]:
                    with suppress(psutil.NoSuchProcess):
                        one.kill()
                process.communicate()

    def call(self, command: list[str]) -> int:
        """Run a command of whystuck in the folder of results; return its code."""
        done = subprocess.run(command, cwd=self.out, capture_output=True, check=False, timeout=150)
        return done.returncode

    def diagnose(self, evidence: str) -> dict[str, Any]:
        """Return the first finding of an evidence folder."""
        command = [sys.executable, "-m", "whystuck", "diagnose", str(self.out / evidence)]
        done = subprocess.run(
            [*command, "--format", "json"], capture_output=True, text=True, check=False, timeout=120
        )
        try:
            report = json.loads(done.stdout)
        except json.JSONDecodeError:
            return {"error": done.stderr[-500:]}
        (first, *_) = report["findings"] or [{}]
        return {
            "verdict": report["verdict"],
            "code": first.get("code", ""),
            "confidence": first.get("confidence", ""),
            "ranks": first.get("culprits", {}).get("ranks", []),
            "lines": [f"{Path(one['file']).name}:{one['line']}" for one in first.get("where", [])],
        }


@dataclass(frozen=True)
class Said:
    """What a job said, and how it ended."""

    code: int
    out: str
    errors: str
    wall_s: float

    @property
    def figures(self) -> dict[str, Any]:
        """All that the job told, the last one of each name."""
        told: dict[str, Any] = {"code": self.code}
        for line in self.out.splitlines():
            if "SAW " in line:
                told |= json.loads(line.partition("SAW ")[2])
        return told
