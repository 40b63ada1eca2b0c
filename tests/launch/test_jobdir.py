"""Job folders of supervisors that were killed, and of those in other PID namespaces."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.launch.running import clean_environment
from tests.reused_pids import start_with_pid

from whystuck.launch.jobdir import list_job_dirs, make_job_dir

SUPERVISOR = """
from whystuck.launch.jobdir import make_job_dir
with make_job_dir() as folder:
    print(folder, flush=True)
    input()
"""


def start_supervisor(*before: str) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a process that has a job folder, and return both."""
    process = subprocess.Popen(
        [*before, sys.executable, "-c", SUPERVISOR],
        env=clean_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().decode().strip())


def test_folder_is_not_that_of_a_process_that_has_the_pid_of_its_supervisor() -> None:
    supervisor, folder = start_supervisor()
    assert folder in list_job_dirs()
    supervisor.kill()
    supervisor.communicate()
    assert folder.is_dir()

    other = start_with_pid(supervisor.pid)
    try:
        assert folder not in list_job_dirs()
        with make_job_dir():
            assert not folder.exists()
    finally:
        other.communicate()


def test_folder_of_a_supervisor_in_another_namespace_stays() -> None:
    """Containers often have ``/dev/shm`` of their node: there, a pid says nothing."""
    inside = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--propagation", "private"]
    if shutil.which("unshare") is None or subprocess.run([*inside, "true"], check=False).returncode:
        pytest.skip("making a PID namespace needs root")
    supervisor, folder = start_supervisor(*inside)
    try:
        assert folder.is_dir()
        # No process of ours has it.
        (folder / "owner").write_text(str(1 << 30))
        with make_job_dir():
            assert folder.is_dir()
    finally:
        supervisor.communicate(b"\n")
    assert not folder.exists()
