"""Processes that get the pid of one that is gone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
_TRIES = 200


def start_sleeper() -> subprocess.Popen[bytes]:
    """Start a process without a probe, which ends with its standard input."""
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def start_with_pid(
    pid: int, start: Callable[[], subprocess.Popen[bytes]] = start_sleeper
) -> subprocess.Popen[bytes]:
    """Start a process that has the pid of one that is gone; skips where that cannot be.

    Args:
        pid: The pid.
        start: Starts the process. It is called again where another process takes the pid.
    """
    for _ in range(_TRIES):
        try:
            LAST_PID.write_text(str(pid - 1))
        except OSError:
            break
        process = start()
        if process.pid == pid:
            return process
        process.kill()
        process.communicate()
    pytest.skip("choosing a pid needs root, and no other process that takes it")
