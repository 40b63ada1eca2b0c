from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from whystuck.collect.scene import Scene, ScenePlan
from whystuck.collect.target import Target
from whystuck.evidence.records import ProcRecord

PLAN = ScenePlan(samples=2, interval_s=0.05)


def _list_samples(folder: Path) -> tuple[list[str], int]:
    rank = folder / "n0" / "rank-0"
    record = msgspec.json.decode((rank / "proc.json").read_bytes(), type=ProcRecord)
    return sorted(path.name for path in rank.glob("stacks-*.json")), len(record.samples)


def test_samples_of_a_job_that_moved_meanwhile_are_dropped(tmp_path: Path) -> None:
    code = "print('ready', flush=True); import time; time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        scene = Scene(tmp_path, [Target(0, process.pid, "n0")])
        scene.take(PLAN)
        before = _list_samples(tmp_path)

        assert not scene.take_more(PLAN, is_void=lambda: True)
        assert _list_samples(tmp_path) == before
        assert scene.take_more(PLAN)
        assert _list_samples(tmp_path)[1] == before[1] + 2
    finally:
        process.kill()
        process.communicate()
