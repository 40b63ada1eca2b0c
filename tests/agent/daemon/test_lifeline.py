"""The agent of a job ends with the job's supervisor, or when the job's folder is gone."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from whystuck.agent.lifeline import OWNER_FILE, Lifeline

LIMIT_S = 30


async def reason_of(job_dir: Path, act: object) -> str:
    """What a lifeline says after ``act`` was done."""
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    lifeline = Lifeline(job_dir, told.set_result)
    assert callable(act)
    act()
    try:
        return await asyncio.wait_for(told, LIMIT_S)
    finally:
        lifeline.close()


@pytest.fixture
def supervisor() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    assert process.stdin
    process.stdin.close()


def test_end_of_the_supervisor_is_told(tmp_path: Path, supervisor: subprocess.Popen[bytes]) -> None:
    (tmp_path / OWNER_FILE).write_text(str(supervisor.pid))

    reason = asyncio.run(reason_of(tmp_path, lambda: end(supervisor)))

    assert reason == "its supervisor has ended"


def test_end_of_the_supervisor_is_told_without_pidfd(
    tmp_path: Path, supervisor: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    (tmp_path / OWNER_FILE).write_text(str(supervisor.pid))

    reason = asyncio.run(reason_of(tmp_path, lambda: end(supervisor)))

    assert reason == "its supervisor has ended"


def test_supervisor_that_has_ended_before_is_told(
    tmp_path: Path, supervisor: subprocess.Popen[bytes]
) -> None:
    (tmp_path / OWNER_FILE).write_text(str(supervisor.pid))
    end(supervisor)

    reason = asyncio.run(reason_of(tmp_path, lambda: None))

    assert reason == "its supervisor has ended"


def test_job_folder_that_goes_is_told(tmp_path: Path) -> None:
    job_dir = tmp_path / "job"
    job_dir.mkdir()
    (job_dir / OWNER_FILE).write_text(str(os.getpid()))

    reason = asyncio.run(reason_of(job_dir, lambda: shutil.rmtree(job_dir)))

    assert reason == "the folder of its job is gone"


@pytest.mark.parametrize("text", [None, "", "x", "0", "-1"])
def test_supervisor_that_nothing_tells_of_has_ended(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / OWNER_FILE).write_text(text)

    reason = asyncio.run(reason_of(tmp_path, lambda: None))

    assert reason == "its supervisor has ended"
