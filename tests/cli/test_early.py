"""A hang-up does not end an agent that is still being imported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

CODE = """
import json, os, signal, sys
sys.argv = json.loads(sys.argv[1])
signal.signal(signal.SIGHUP, getattr(signal, sys.argv.pop()))

class WhenClickIsImported:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGHUP)

sys.meta_path.insert(0, WhenClickIsImported())
import whystuck.cli
print("alive", signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)
"""


def hang_up(argv: list[str], before: str = "SIG_DFL", stderr: int = subprocess.PIPE) -> str:
    """What a process with these arguments says that gets the signal while it starts."""
    command = [sys.executable, "-c", CODE, json.dumps([*argv, before])]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, check=False)
    return done.stdout.decode().strip() or signal.Signals(-done.returncode).name


@pytest.mark.parametrize(
    "argv",
    [
        ["/venv/bin/whystuck", "agent", "--config", "x"],
        ["whystuck", "--color", "always", "agent"],
        ["/lib/whystuck/__main__.py", "agent"],
        ["-m", "agent"],
        ["/venv/bin/dynolog", "--enable_ipc_monitor"],
    ],
)
def test_agent_that_starts_outlives_a_hang_up(argv: list[str]) -> None:
    assert hang_up(argv) == "alive False"


@pytest.mark.parametrize(
    "argv",
    [["whystuck", "run", "--", "agent"], ["pytest", "agent"], ["whystuck"], ["dyno", "status"]],
)
def test_others_end(argv: list[str]) -> None:
    assert hang_up(argv) == "SIGHUP"


def test_signal_that_is_ignored_stays_so() -> None:
    assert hang_up(["whystuck", "agent"], "SIG_IGN") == "alive True"


def test_agent_whose_terminal_is_closed_ends() -> None:
    mine, terminal = os.openpty()
    try:
        assert hang_up(["whystuck", "agent"], stderr=terminal) == "SIGHUP"
    finally:
        os.close(mine)
        os.close(terminal)
