"""Starts ranks without a launcher: one process each, told apart by variables."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

WORLD = 4


def spawn_ranks(
    job: Path,
    seed: str,
    *,
    ranks: Sequence[int] = range(WORLD),
    changes: Mapping[int, Mapping[str, str]] | None = None,
    port: int = 0,
) -> int:
    """Start one process for each of ``ranks`` and wait for all; 1 when any of them failed.

    ``changes`` are variables that a rank is given in place of the right ones.
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
    return int(any([process.wait() for process in processes]))


def find_port() -> int:
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])
