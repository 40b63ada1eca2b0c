"""Python stacks of a process from outside, by py-spy, without pausing it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sysconfig
from pathlib import Path

from whystuck.collect.programs import run_program

_TIMEOUT_S = 8.0
_ATTEMPTS = 3


class StacksError(Exception):
    """py-spy gave no stacks; the message says why."""


def find_py_spy() -> str | None:
    """Return the py-spy of our own installation, else one on the PATH."""
    own = Path(sysconfig.get_path("scripts")) / "py-spy"
    return str(own) if own.is_file() else shutil.which("py-spy")


def collect_stacks(pid: int, *, with_arguments: bool = False) -> bytes:
    """Return all Python threads of a process as py-spy's JSON.

    Args:
        pid: The process.
        with_arguments: Whether frames have the values of their variables too. These are the
            user's data: they are not to be kept.

    Returns:
        The JSON.

    Raises:
        StacksError: py-spy is missing, not allowed, or does not answer.
    """
    py_spy = find_py_spy()
    if py_spy is None:
        message = "py-spy is not installed"
        raise StacksError(message)
    command = [py_spy, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    if with_arguments:
        command.append("--locals")
    try:
        # nonblocking reads memory that moves: a sample now and then fails, the next one works
        best = b""
        for _ in range(_ATTEMPTS):
            done = run_program(command, _TIMEOUT_S)
            if done.returncode == 0 and done.stdout.strip():
                best = done.stdout
                if not _is_main_torn(best, pid):
                    return best
        if best:
            return best
    except subprocess.TimeoutExpired as error:
        message = f"py-spy did not answer in {_TIMEOUT_S:.0f} s"
        raise StacksError(message) from error
    except OSError as error:
        message = f"py-spy could not be started: {error.strerror}"
        raise StacksError(message) from error
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    message = next((line for line in lines if line.startswith("Error")), "py-spy failed")
    raise StacksError(message)


def _is_main_torn(dump: bytes, pid: int) -> bool:
    """Tell whether the main thread has no frames: its stack changed while it was read."""
    try:
        threads = json.loads(dump)
        return any(one["os_thread_id"] == pid and not one["frames"] for one in threads)
    except (ValueError, TypeError, KeyError):
        return False
