"""Runs a job of a few ranks with inspection on, and reads what its ranks wrote."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.launch.running import clean_environment, torchrun
from tests.probe.job import PROBE_DIR, job_dir


@dataclass
class Inspected:
    """What came of a job: its code and output, and the lines of each rank."""

    code: int
    out: str
    stdout: str = ""
    lines: dict[int, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    errors: list[str] = field(default_factory=list)

    def of_kind(self, rank: int, *kinds: str) -> list[dict[str, Any]]:
        return [line for line in self.lines[rank] if line["kind"] in kinds]

    def find(self, rank: int, side: str, name: str) -> list[dict[str, Any]]:
        """Return the tensors of all ops of a name, in their order, one list an op."""
        found = [line for line in self.of_kind(rank, side) if line["name"] == name]
        return [tensor for line in found for tensor in line["tensors"]]


def inspect_job(
    tmp_path: Path,
    spec: str,
    script: str,
    ranks: int = 2,
    keep: Path | None = None,
    **extra: str,
) -> Inspected:
    """Run a script under torchrun, inspected from the start; op logs are copied to ``keep``."""
    path = tmp_path / "train.py"
    path.write_text(script)
    with job_dir() as folder:
        state = {"generation": 1, "comm": "on", "inspect": spec}
        (folder / "switch.json").write_text(json.dumps(state))
        environment = clean_environment(
            WHYSTUCK_JOB_DIR=str(folder),
            TORCH_CPP_LOG_LEVEL="ERROR",
            **{"PYTHONPATH": str(PROBE_DIR / "site"), **extra},
        )
        done = subprocess.run(
            torchrun(ranks, path),
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            timeout=200,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        out = done.stdout.decode()
        made = Inspected(done.returncode, out + done.stderr.decode(), out)
        if keep is not None:
            for file in folder.glob("ops-*"):
                shutil.copy(file, keep)
        for file in folder.glob("inspect-*"):
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            made.lines[lines[0]["rank"]] += lines
        made.errors = [
            json.loads(file.read_text())["error"] for file in sorted(folder.glob("switched-*"))
        ]
    return made
