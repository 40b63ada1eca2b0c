"""Where a job runs that needs less than the machine has: little memory, shared memory or network.

A container or a batch system does the same to its jobs. All of it needs root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
MIB = 1 << 20
SHM = (
    "unshare",
    "--mount",
    "sh",
    "-c",
    'mount -t tmpfs -o size=64m shm /dev/shm && exec "$@"',
    "sh",
)
NETWORK = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
NEEDED = {"memory": (), "shm": ("unshare", "mount"), "network": ("unshare", "ip")}


def find_lack(kind: str) -> str | None:
    """Tell why this machine cannot confine a job so; None when it can."""
    if os.geteuid() != 0:
        return f"a job with little {kind} needs root"
    for program in NEEDED[kind]:
        if shutil.which(program) is None:
            return f"there is no program `{program}`"
    if kind == "memory" and _memory_root() is None:
        return "no memory cgroup can be made"
    return None


@contextlib.contextmanager
def confining(kind: str | None, memory_mib: int) -> Iterator[tuple[str, ...]]:
    """Yield the words to put before a command, and clean up after it."""
    if kind == "memory":
        with _memory_group(memory_mib * MIB) as group:
            yield "sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"
    else:
        yield {"shm": SHM, "network": NETWORK, None: ()}[kind]


def _memory_root() -> Path | None:
    """The folder in which groups with a limit of memory can be made: version 2, else 1."""
    control = CGROUPS / "cgroup.subtree_control"
    if control.exists() and "memory" in control.read_text(encoding="ascii").split():
        return CGROUPS
    old = CGROUPS / "memory"
    return old if (old / "memory.limit_in_bytes").exists() and os.access(old, os.W_OK) else None


@contextlib.contextmanager
def _memory_group(limit: int) -> Iterator[Path]:
    root = _memory_root()
    assert root is not None
    group = root / f"bench-{uuid.uuid4().hex[:12]}"
    group.mkdir()
    new = (group / "memory.max").exists()
    try:
        (group / ("memory.max" if new else "memory.limit_in_bytes")).write_text(str(limit))
        yield group
    finally:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)
