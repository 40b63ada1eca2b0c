"""Starts ranks without a launcher: one process each, told apart by variables."""

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

WORLD = 4


def spawn_ranks(
    job: Path,
    seed: str,
    *,
    ranks: Sequence[int] = range(WORLD),
    changes: Mapping[int, Mapping[str, str]] | None = None,
    port: int = 0,
    patience: float = 30.0,
) -> int:
    """Start one process for each of ``ranks`` and wait for all; 1 when any of them failed.

    ``changes`` are variables that a rank is given in place of the right ones. When one has failed,
    the others get ``patience`` seconds, and then SIGTERM.
    """
    common = {
        "WORLD_SIZE": str(WORLD),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port or find_port()),
    }
    processes = []
    for rank in ranks:
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), **(changes or {}).get(rank, {})}
        command = [sys.executable, "-u", str(job), "--seed", seed]
        processes.append(subprocess.Popen(command, env=os.environ | common | own))
    return wait_for(processes, patience)


def wait_for(processes: Sequence[subprocess.Popen[bytes]], patience: float) -> int:
    deadline = float("inf")
    while any(process.poll() is None for process in processes):
        if deadline == float("inf") and any(process.poll() for process in processes):
            deadline = time.monotonic() + patience
        if time.monotonic() > deadline:
            for process in processes:
                process.terminate()
            deadline = float("inf")
            patience = 3600.0
        time.sleep(0.05)
    return int(any(process.returncode for process in processes))


def find_port() -> int:
    """Return a free port below those that Linux gives to clients, which could take it back."""
    while True:
        port = random.SystemRandom().randint(12000, 32000)
        with suppress(OSError), socket.create_server(("", port)):
            return port
