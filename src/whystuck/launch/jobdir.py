"""The job folder: a private, short-lived place for sockets and heartbeats (not the evidence)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

PREFIX = "whystuck-"
_OWNER_FILE = "owner"


@contextmanager
def make_job_dir() -> Iterator[Path]:
    """Make the folder, readable by its owner only, and remove it in the end.

    It lies in memory where that is possible: beats must not wake a disk. The path is short
    because the name of a unix socket has at most 108 bytes.
    """
    root = _root()
    _reap(root)
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getuid()}-", dir=root))
    (folder / _OWNER_FILE).write_text(str(os.getpid()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _root() -> Path:
    memory = Path("/dev/shm")  # noqa: S108 - mkdtemp makes the folder private
    return memory if memory.is_dir() and os.access(memory, os.W_OK) else Path(tempfile.gettempdir())


def _reap(root: Path) -> None:
    """Remove folders of supervisors that were killed."""
    for folder in root.glob(f"{PREFIX}{os.getuid()}-*"):
        try:
            owner = int((folder / _OWNER_FILE).read_text())
        except (OSError, ValueError):
            continue
        if not psutil.pid_exists(owner):
            shutil.rmtree(folder, ignore_errors=True)
