"""The signal that asks for stacks ends no process, whenever it comes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.probe.job import artifact, job_dir, start_rank

from whystuck.collect.scene import stacks_signal

CODE = 41
# What C registers runs when Python is gone: it sleeps as many seconds as the exit code says.
LEAVES = f"""
import ctypes
libc = ctypes.CDLL(None)
libc.on_exit(libc.sleep, None)
dist.destroy_process_group()
sys.exit({CODE})
"""
FORKS = """
import os, signal
pid = os.fork()
if pid == 0:
    os.kill(os.getpid(), signal.SIGRTMIN + 5)
    os._exit(9)
assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGRTMIN + 5
dist.destroy_process_group()
sys.exit(41)
"""


def is_asleep_at_the_end(pid: int) -> bool:
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    return Path(f"/proc/{pid}/wchan").read_text() == "hrtimer_nanosleep" and len(tasks) == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root sees where a process sleeps")
def test_signal_while_the_interpreter_is_gone_then_the_job_keeps_its_code(tmp_path: Path) -> None:
    with job_dir() as folder, start_rank(tmp_path, folder, LEAVES) as process:
        deadline_s = time.monotonic() + CODE
        while not is_asleep_at_the_end(process.pid):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        assert artifact(folder, "faulthandler", process).exists()
        os.kill(process.pid, stacks_signal())

        assert process.wait(60) == CODE


def test_signal_in_a_forked_child_does_what_it_does_without_us(tmp_path: Path) -> None:
    with job_dir() as folder, start_rank(tmp_path, folder, FORKS) as process:
        assert process.wait(120) == CODE
