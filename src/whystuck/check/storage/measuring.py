"""Measures a file system: what is written comes back, how fast, and how long small things take.

The folder may be another user's, who changes what lies in it meanwhile: all is done by descriptors.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from whystuck.guarded.folders import FOLDER_FLAGS, list_names, make_file

BLOCK_BYTES = 1 << 20
_STAMP_BYTES = 16
_PAGE_BYTES = 4096
_MB = 1e6
_MOST_SYNCS = 32
_MOST_FILES = 256
_LEAST_SYNCS = 3
_DATA, _SYNC, _SMALL = _LEFT = "data", "sync", "small"
# One need not be able to list a folder to write into it; links on the way to it are the user's.
ABOVE_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass
class Measured:
    """What was measured; a rate of 0 was not.

    ``is_direct`` tells that the cache was passed by; else it was dropped before reading.
    ``wrong_block`` is the first that came back otherwise than it was written, -1 when none did.
    """

    written_bytes: int = 0
    write_mb_per_s: float = 0.0
    read_mb_per_s: float = 0.0
    sync_ms: float = 0.0
    sync_worst_ms: float = 0.0
    files_per_s: float = 0.0
    is_direct: bool = False
    wrong_block: int = -1
    wrong_blocks: int = 0


@contextmanager
def scratch_folder(folder: Path) -> Iterator[int]:
    """Make a folder for what is written, and remove it with what `measure` leaves in it.

    Yields:
        Its descriptor: what comes into its place is left alone.
    """
    name = f".whystuck-check-{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(4)}"
    above = os.open(folder, ABOVE_FLAGS)
    try:
        os.mkdir(name, 0o700, dir_fd=above)
        place = os.open(name, FOLDER_FLAGS, dir_fd=above)
        try:
            if list_names(place, 1):
                raise OSError(errno.EBUSY, "another user changes it meanwhile")
            try:
                yield place
            finally:
                for left in _LEFT:
                    with suppress(OSError):
                        os.unlink(left, dir_fd=place)
        finally:
            os.close(place)
            with suppress(OSError):
                os.rmdir(name, dir_fd=above)
    finally:
        os.close(above)


def measure(folder: Path, size_bytes: int, budget_s: float) -> Measured:
    """Write, read back and compare a file; sync small writes; make and remove files.

    Args:
        folder: Where; all that is written is removed again.
        size_bytes: As much is written, or less where the time is over first.
        budget_s: The time for each of the four parts.

    Raises:
        OSError: Something failed, as on a disk that is full or read-only.
    """
    found = Measured()
    with scratch_folder(folder) as place:
        _measure_data(place, size_bytes, budget_s, found)
        _measure_syncs(place, budget_s, found)
        _measure_files(place, budget_s, found)
    return found


@dataclass
class _Data:
    """A file whose blocks are all known: random bytes, with a stamp in each page."""

    fd: int
    buffer: mmap.mmap
    pattern: bytes
    nonce: bytes

    def stamp(self, buffer: mmap.mmap, block: int) -> None:
        """Make each page of a block differ from all others that were ever written."""
        for page in range(0, BLOCK_BYTES, _PAGE_BYTES):
            place = (block * BLOCK_BYTES + page).to_bytes(8, "big")
            buffer[page : page + _STAMP_BYTES] = self.nonce + place


def _measure_data(place: int, size_bytes: int, budget_s: float, found: Measured) -> None:
    buffer = mmap.mmap(-1, BLOCK_BYTES)  # direct access wants memory at the start of a page
    buffer[:] = pattern = os.urandom(BLOCK_BYTES)
    blocks = max(1, size_bytes // BLOCK_BYTES)
    # Some file systems refuse direct access at once, others when it is used, or some times only.
    for direct in (os.O_DIRECT, 0):
        found.is_direct = bool(direct)
        try:
            with _make_data(place, direct) as fd:
                data = _Data(fd, buffer, pattern, os.urandom(8))
                _measure_blocks(data, blocks, budget_s, found)
            break
        except OSError as error:
            if not direct or error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
    buffer.close()


@contextmanager
def _make_data(place: int, direct: int) -> Iterator[int]:
    """Make the file of the blocks, past the cache where ``direct`` is ``O_DIRECT``."""
    with suppress(FileNotFoundError):
        os.unlink(_DATA, dir_fd=place)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(_DATA, flags | direct, 0o600, dir_fd=place)
    try:
        yield fd
    finally:
        os.close(fd)


def _measure_blocks(data: _Data, blocks: int, budget_s: float, found: Measured) -> None:
    found.wrong_block, found.wrong_blocks = -1, 0
    written = _write(data, blocks, budget_s, found)
    if not found.is_direct:
        os.posix_fadvise(data.fd, 0, 0, os.POSIX_FADV_DONTNEED)
    _read(data, written, budget_s, found)


def _write(data: _Data, blocks: int, budget_s: float, found: Measured) -> int:
    """Write blocks until the time is over; return how many."""
    spent_s, done = 0.0, 0
    while done < blocks and (not done or spent_s < budget_s):
        data.stamp(data.buffer, done)
        begun_s = time.perf_counter()
        _write_whole(data.fd, data.buffer, done * BLOCK_BYTES)
        if not found.is_direct:
            os.fdatasync(data.fd)
        spent_s += time.perf_counter() - begun_s
        done += 1
    begun_s = time.perf_counter()
    os.fsync(data.fd)
    spent_s += time.perf_counter() - begun_s
    found.written_bytes = done * BLOCK_BYTES
    found.write_mb_per_s = found.written_bytes / _MB / max(spent_s, 1e-9)
    return done


def _write_whole(fd: int, buffer: mmap.mmap, offset: int) -> None:
    """Write a block; where only a part of it was written, the next part tells why."""
    done = 0
    while done < BLOCK_BYTES:
        with memoryview(buffer) as whole, whole[done:] as rest:
            count = os.pwrite(fd, rest, offset + done)
        if not count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done += count


def _read(data: _Data, blocks: int, budget_s: float, found: Measured) -> None:
    """Read blocks back and compare all of them; the time that comparing takes does not count."""
    expected = mmap.mmap(-1, BLOCK_BYTES)
    expected[:] = data.pattern
    spent_s, done = 0.0, 0
    while done < blocks and (not done or spent_s < budget_s):
        begun_s = time.perf_counter()
        count = os.preadv(data.fd, [data.buffer], done * BLOCK_BYTES)
        spent_s += time.perf_counter() - begun_s
        data.stamp(expected, done)
        if count != BLOCK_BYTES or data.buffer[:] != expected[:]:
            found.wrong_blocks += 1
            found.wrong_block = done if found.wrong_block < 0 else found.wrong_block
        done += 1
    expected.close()
    found.read_mb_per_s = done * BLOCK_BYTES / _MB / max(spent_s, 1e-9)


def _measure_syncs(place: int, budget_s: float, found: Measured) -> None:
    """Measure how long it takes until 4 KiB are on the disk."""
    times: list[float] = []
    data = os.urandom(_PAGE_BYTES)
    fd = make_file(place, _SYNC)
    try:
        while len(times) < _MOST_SYNCS and (len(times) < _LEAST_SYNCS or sum(times) < budget_s):
            begun_s = time.perf_counter()
            os.write(fd, data)
            os.fsync(fd)
            times.append(time.perf_counter() - begun_s)
    finally:
        os.close(fd)
    found.sync_ms = statistics.median(times) * 1e3
    found.sync_worst_ms = max(times) * 1e3


def _measure_files(place: int, budget_s: float, found: Measured) -> None:
    """Measure how many small files can be made, looked at and removed in a second."""
    begun_s, done = time.perf_counter(), 0
    while done < _MOST_FILES and (not done or time.perf_counter() - begun_s < budget_s):
        os.close(make_file(place, _SMALL))
        os.stat(_SMALL, dir_fd=place, follow_symlinks=False)
        os.unlink(_SMALL, dir_fd=place)
        done += 1
    found.files_per_s = done / max(time.perf_counter() - begun_s, 1e-9)
