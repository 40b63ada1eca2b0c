"""A report is made and said while the file system of the evidence does not answer."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.launch.running import WHYSTUCK, clean_environment
from tests.launch.simulated import simulated_job, wait_for
from tests.launch.test_shared_files import _wait_for_steps
from tests.shared_disk import SharedDisk, shared_disk

FAILS = """
import os, sys, time
print("READY", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
raise ZeroDivisionError("the cause of it")
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty folder of this machine."""
    (tmp_path / "local").mkdir()
    return tmp_path / "local"


@contextmanager
def failing_job(disk: SharedDisk, place: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a rank that fails when it may, with its evidence on a served disk."""
    (place / "job.py").write_text(FAILS)
    run = [*WHYSTUCK, "run", *options, "--evidence", str(disk.path / "ev"), "--"]
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    with subprocess.Popen(
        [*run, sys.executable, "job.py"], cwd=place, env=clean_environment(**rank),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"READY\n"
            yield process
        finally:
            disk.is_open.set()
            process.kill()


@pytest.mark.parametrize("options", [["--no-agent"], []])
def test_end_is_told_while_the_server_hangs(
    tmp_path: Path, place: Path, options: list[str]
) -> None:
    with shared_disk(tmp_path) as disk:
        backing = disk.path.with_name("backing") / "ev"
        with failing_job(disk, place, *options) as process:
            wait_for((backing / "job.json").exists)
            disk.is_open.clear()
            (place / "go").touch()
            assert process.wait(120) == 1
            assert process.stderr is not None
            said = b""
            while b"report: " not in said:  # what is still said does not end before the disk does
                line = process.stderr.readline()
                assert line, said
                said += line
            assert b"ZeroDivisionError" in said
            assert b"verdict: crashed" in said
            assert f"(until {disk.path / 'ev'} answers)".encode() in said
            assert not list(backing.glob("incidents/*"))
            disk.is_open.set()
            # The watcher, which has outlived the job, completes the evidence.
            report = backing / "incidents/000/report.json"
            wait_for(report.exists)
            assert json.loads(report.read_text())["verdict"] == "crashed"
            wait_for(lambda: b"ends with code 1" in (backing / "fault.log").read_bytes())
            assert json.loads((backing / "job.json").read_text())["exit_code"] == 1


def test_stall_is_told_while_the_server_hangs(tmp_path: Path, place: Path) -> None:
    with shared_disk(tmp_path) as disk:
        backing = disk.path.with_name("backing") / "ev"
        with simulated_job(place, disk.path / "ev", 2) as job:
            _wait_for_steps(job, backing)
            disk.is_open.clear()
            job.stall()
            wait_for(lambda: "evidence: " in job.output, 120)
            assert "verdict: " in job.output
            # Another node takes the number meanwhile.
            (backing / "incidents/000").mkdir(parents=True)
            disk.is_open.set()
            # 001, or 002 where the number that was asked for first comes, too late, before it.
            wait_for(lambda: list(backing.glob("incidents/00[12]/report.json")), 120)
            assert job.end(120) == 7
        notes = (backing / "fault.log").read_text()
        assert re.search(r"Incident 000 is kept as 00[12]: it was taken\.", notes)
        assert "Verdict of incident 000" in notes
