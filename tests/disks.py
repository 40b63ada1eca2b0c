"""File systems that are too small, for tests of what happens when a disk is full."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(options: str, *, is_full: bool = False) -> Iterator[Path]:
    """Mount a file system in memory; skips the test where that is not allowed.

    Args:
        options: Those of tmpfs, such as ``size=16k``.
        is_full: Whether one file takes all of it.
    """
    with tempfile.TemporaryDirectory(prefix="ws") as name:
        mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", name]
        if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
            pytest.skip("mounting a small file system needs root")
        try:
            if is_full:
                _fill(Path(name) / "filler")
            yield Path(name)
        finally:
            subprocess.run(["umount", "-l", name], check=True)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as filler, suppress(OSError):
        while filler.write(b"x" * 4096):
            pass
