from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil

from whystuck.collect.processes.target import Target
from whystuck.collect.scene import Scene, ScenePlan
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


def _start(code: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", f"print('ready', flush=True); {code}"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def _look_on(folder: Path, process: subprocess.Popen[bytes], seconds: float) -> ProcRecord:
    try:
        scene = Scene(folder, [Target(0, process.pid, "n0")])
        scene.take(PLAN)
        scene.look_on(seconds, PLAN)
    finally:
        process.kill()
        process.communicate()
    proc = (folder / "n0/rank-0/proc.json").read_bytes()
    return msgspec.json.decode(proc, type=ProcRecord)


def test_look_at_a_process_that_rests_lasts_as_long_as_asked(tmp_path: Path) -> None:
    process = _start("import sys; sys.stdin.read()")
    while psutil.Process(process.pid).status() != psutil.STATUS_SLEEPING:
        time.sleep(0.01)  # it says that it is ready a moment before it rests
    record = _look_on(tmp_path, process, 1.5)
    first, last = record.samples[0], record.samples[-1]
    assert last.taken_ns - first.taken_ns >= 1_500_000_000
    assert first.switches == last.switches >= 0
    stacks = list((tmp_path / "n0/rank-0").glob("stacks-*.json"))
    assert len(record.samples) > len(stacks) == PLAN.samples


def test_look_ends_when_a_process_that_rested_moves(tmp_path: Path) -> None:
    # it rests for longer than two samples take, and then moves for good
    code = "import time; time.sleep(3); [time.sleep(0.01) for _ in range(10000)]"
    record = _look_on(tmp_path, _start(code), 60.0)
    first, last = record.samples[0], record.samples[-1]
    assert last.taken_ns - first.taken_ns < 60_000_000_000
