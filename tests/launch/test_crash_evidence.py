"""Real jobs that end badly: what `whystuck run` keeps of them, and reads again.

The ranks have no torch, so that they start at once; `bench/faults` has the same with training.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from bench.faults import confine
from tests.launch.running import WHYSTUCK, clean_environment, run_whystuck

from whystuck.collect.node.kernel_log import counts_as_kernel
from whystuck.evidence.model import Evidence
from whystuck.pipeline import read_evidence

MIB = 1 << 20

# Starts RANKS of `rank.py` side by side, waits for all, and ends with the first bad code.
LAUNCH = """
import os, signal, subprocess, sys
ranks = [int(one) for one in sys.argv[1].split(",")]
common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
started = [
    subprocess.Popen(
        [sys.executable, "rank.py"],
        env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        stdin=subprocess.DEVNULL,
    )
    for rank in ranks
]
codes = [process.wait() for process in started]
sys.exit(next((code if code > 0 else 128 - code for code in codes if code), 0))
"""


def _run(
    folder: Path,
    rank: str,
    *,
    ranks: str = "0,1",
    prefix: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    (folder / "rank.py").write_text(rank)
    (folder / "launch.py").write_text(LAUNCH)
    return subprocess.run(
        [*prefix, *WHYSTUCK, "run", "--evidence", "ev", "--", sys.executable, "launch.py", ranks],
        cwd=folder,
        env=clean_environment(**(environment or {})),
        capture_output=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def _read(folder: Path) -> Evidence:
    return read_evidence(folder / "ev")


LEAK = """
import os, time
kept = []
for step in range(400 if os.environ["RANK"] == "1" else 20):
    time.sleep(0.05)
    if os.environ["RANK"] == "1":
        kept.append(bytearray(4 << 20))
"""


@pytest.mark.skipif(
    confine.find_lack("memory") is not None, reason="no memory cgroup can be made here"
)
def test_run_when_the_kernel_ends_a_rank_for_want_of_memory_then_all_signs_of_it_are_kept(
    tmp_path: Path,
) -> None:
    with confine.confining("memory", 260) as prefix:
        done = _run(tmp_path, LEAK, prefix=prefix)
    assert done.returncode == 128 + signal.SIGKILL, done.stderr.decode()
    evidence = _read(tmp_path)
    (ended,) = [one for one in evidence.exits if one.rank == 1]
    assert ended.signal == signal.SIGKILL
    start, end = evidence.hosts
    assert end.oom_kills - start.oom_kills >= 1
    limits = {group.path: group.limit for group in end.groups}
    before = {group.path: group for group in start.groups}
    (group,) = [one for one in end.groups if one.limit == 260 * MIB]
    assert group.oom_kills - before[group.path].oom_kills == 1
    assert group.limit_hits > before[group.path].limit_hits
    assert group.peak > 250 * MIB
    (series,) = [one for one in evidence.memory if one.rank == 1]
    assert series.pid == ended.pid
    assert limits[series.cgroup] == 260 * MIB
    first, last = series.points[0], series.points[-1]
    # On a busy machine the last look may be some looks before the end.
    assert last.rss - first.rss > 20 * MIB
    assert last.time_ns < ended.ended_ns
    kernel = next((tmp_path / "ev/incidents").glob("*/*/kernel.log")).read_text()
    (line,) = [text for text in kernel.splitlines() if f"Killed process {ended.pid} " in text]
    assert "Memory cgroup out of memory" in line


LIMITED = """
import os, resource, time
if os.environ["RANK"] == "1":
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, resource.RLIM_INFINITY))
    time.sleep(1.5)  # a few looks
    kept = bytearray(2 << 30)  # here
"""


def test_run_when_a_rank_breaks_its_own_limit_then_the_limit_is_known(tmp_path: Path) -> None:
    assert _run(tmp_path, LIMITED).returncode == 1
    evidence = _read(tmp_path)
    (series,) = [one for one in evidence.memory if one.rank == 1]
    assert series.address_limit == 1 << 30
    assert all(one.address_limit == 0 for one in evidence.memory if one.rank == 0)
    (error,) = evidence.exceptions
    assert (error.rank, error.type, error.source) == (1, "MemoryError", "excepthook")


TALK = """
import os, sys
print("Traceback (most recent call last):\\n  File \\"train.py\\", line 3, in load\\n"
      "    open(path)\\nOSError: early and alone", file=sys.stderr)
for line in range(8000):
    print(f"step {line} loss {1 / (line + 1):.6f} and so on and on and on", flush=False)
sys.stdout.flush()
if os.environ["RANK"] == "1":
    os._exit(7)
"""


def test_run_when_a_rank_has_said_a_lot_then_its_whole_log_is_read(tmp_path: Path) -> None:
    assert _run(tmp_path, TALK).returncode == 7
    (incident,) = (tmp_path / "ev/incidents").iterdir()
    own = next(incident.glob("*/rank-1/log.txt"))
    assert "early and alone" not in own.read_text(), "the incident has the end only"
    for base in (tmp_path / "ev", incident):
        artifacts = {item.artifact for item in read_evidence(base).exceptions if item.rank == 1}
        (artifact,) = artifacts
        log = (base / artifact).resolve()
        assert "early and alone" in log.read_text()
        assert log.is_relative_to(tmp_path / "ev/rounds/0")


TWICE = """
import os, time
print("I am", os.getpid(), flush=True)
time.sleep(2)
raise SystemExit(3)
"""


def test_run_when_two_processes_claim_one_rank_then_both_are_on_record(tmp_path: Path) -> None:
    assert _run(tmp_path, TWICE, ranks="1,1").returncode == 3
    evidence = _read(tmp_path)
    first, second = evidence.claims
    assert (first.rank, second.rank) == (1, 1)
    assert first.pid != second.pid
    assert (first.world_size, first.code, second.code) == (2, 3, 3)
    assert dict(first.environment)["MASTER_PORT"] == "29500"
    assert "python" in first.parent
    logs = sorted((tmp_path / "ev/rounds").rglob("rank-1/log*.txt"))
    said = [log.read_text().split() for log in logs]
    assert {int(words[-1]) for words in said} == {first.pid, second.pid}
    assert [len(words) for words in said] == [5, 5]


def test_run_when_the_job_is_ended_from_outside_then_the_sender_is_known(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text("import time; print('READY', flush=True); time.sleep(60)")
    (tmp_path / "launch.py").write_text(LAUNCH)
    process = subprocess.Popen(
        [*WHYSTUCK, "run", "--evidence", "ev", "--", sys.executable, "launch.py", "0"],
        cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == b"READY\n"
    # Another job on this machine crashes meanwhile, and the kernel says so.
    foreign = subprocess.run(
        [sys.executable, "-c", "import ctypes; ctypes.string_at(0)"], check=False
    )
    assert foreign.returncode == -signal.SIGSEGV
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    process.stdout.close()
    for log in (tmp_path / "ev").rglob("kernel.log"):
        assert not counts_as_kernel() or "segfault" not in log.read_text()
    incident = _read(tmp_path).incident
    assert incident.outside_signal == signal.SIGTERM
    assert incident.sender_pid == os.getpid()
    assert incident.sender.startswith(sys.executable)
    assert not incident.is_typed
    assert 0 < incident.outside_ns < incident.opened_ns
    assert (incident.round, incident.attempt) == (0, 0)
    notes = (tmp_path / "ev/fault.log").read_text()
    assert f"SIGTERM came from process {os.getpid()} (" in notes


def test_run_when_the_launcher_has_a_bad_option_then_its_words_are_kept_and_read(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", "import argparse; argparse.ArgumentParser().parse_args()"]
    done = run_whystuck("run", "--evidence", "ev", "--", *command, "--no-such", cwd=tmp_path)
    assert done.returncode == 2
    log = next((tmp_path / "ev/rounds").rglob("launcher.txt")).read_text()
    assert "unrecognized arguments: --no-such" in log
    incident = json.loads((tmp_path / "ev/incidents/000/incident.json").read_text())
    assert incident["command_exit"] == 2
    assert _read(tmp_path).incident.command_exit == 2


def test_run_when_shared_memory_is_full_then_says_so_and_keeps_the_code(tmp_path: Path) -> None:
    if (lack := confine.find_lack("shm")) is not None:
        pytest.skip(lack)
    fill = (
        "import os, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    with open('/dev/shm/full', 'wb') as file:\n"
        "        try:\n"
        "            while True:\n"
        "                file.write(bytes(1 << 20)); file.flush()\n"
        "        finally:\n"
        "            time.sleep(6)  # a few looks, on a busy machine, too\n"
        "            os.unlink('/dev/shm/full')\n"
    )
    with confine.confining("shm", 0) as prefix:
        done = _run(tmp_path, fill, prefix=prefix)
    assert done.returncode == 1
    assert b"No space left on device" in done.stderr
    evidence = _read(tmp_path)
    (error,) = evidence.exceptions
    assert (error.rank, error.type, error.source) == (1, "OSError", "excepthook")
    _, end = evidence.hosts
    (volume,) = [one for one in end.volumes if one.path == "/dev/shm"]
    assert volume.size == 64 * MIB
    assert volume.lowest == 0
    assert volume.free > 60 * MIB, "what was written is gone"


def test_fault_log_tells_the_whole_story(tmp_path: Path) -> None:
    assert _run(tmp_path, "import os; os.kill(os.getpid(), 9)", ranks="1").returncode == 128 + 9
    lines = [line[20:] for line in (tmp_path / "ev/fault.log").read_text().splitlines()]
    assert lines[0] == f"Start of round 0: {sys.executable} launch.py 1"
    (end,) = [line for line in lines if line.startswith("Rank 1 ")]
    assert end.endswith("ended by SIGKILL")
    verdict = lines.index("Verdict of incident 000: crashed")
    assert lines[verdict + 1].startswith("error: C20")
    (report,) = [line for line in lines if line.startswith("Report: ")]
    assert Path(report.removeprefix("Report: ")).read_text()
    assert lines[-1] == "Round 0 ends with code 137."
    section = (tmp_path / "ev/incidents/000/fault.log").read_text()
    assert "ended by SIGKILL" in section
