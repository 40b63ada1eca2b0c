"""File systems that are too small, full or frozen: what happens then must be tested."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_FIFREEZE, _FITHAW = 0xC0045877, 0xC0045878
_DISK_BYTES = 32 << 20


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
                fill(Path(name) / "filler")
            yield Path(name)
        finally:
            subprocess.run(["umount", "-l", name], check=True)


def fill(path: Path) -> None:
    """Write a file until there is no room."""
    with path.open("wb", buffering=0) as filler, suppress(OSError):
        while filler.write(b"x" * 4096):
            pass


class Disk:
    """A small ext4 of its own, mounted at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def freeze(self) -> None:
        """Let every write hang until :meth:`thaw`."""
        self._ask(_FIFREEZE)

    def thaw(self) -> None:
        """Let writes go on; do nothing when it is not frozen."""
        with suppress(OSError):
            self._ask(_FITHAW)

    def fill(self) -> None:
        """Leave no room."""
        with suppress(OSError), (self.path / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))

    def _ask(self, request: int) -> None:
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, request, 0)
        finally:
            os.close(fd)


@contextmanager
def freezable_disk(folder: Path) -> Iterator[Disk]:
    """Make and mount a disk below ``folder``; skip the test where that is not allowed."""
    image, place = folder / "image", folder / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(_DISK_BYTES)
    mkfs = shutil.which("mkfs.ext4") or "/sbin/mkfs.ext4"
    for command in ([mkfs, "-q", str(image)], ["mount", "-o", "loop", str(image), str(place)]):
        try:
            done = subprocess.run(command, capture_output=True, check=False, text=True)
        except FileNotFoundError:
            pytest.skip(f"no {command[0]} on this machine")
        if done.returncode:
            pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    disk = Disk(place)
    try:
        yield disk
    finally:
        disk.thaw()
        # What hung on it may need a moment; lazily, so that it is gone from here at once.
        subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True)
