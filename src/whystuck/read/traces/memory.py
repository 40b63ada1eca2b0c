"""How much memory the map may take, and how much a file will."""

from __future__ import annotations

import re
from pathlib import Path

import psutil

from whystuck.evidence.errors import UsageError
from whystuck.guarded.evidence_files import open_evidence, size_of
from whystuck.read.content import PACKED_SUFFIXES, is_packed, most_unpacked

_GZIP_MAGIC = b"\x1f\x8b"
# Of the memory that is free when the map starts: the reduce and other programs need some, too.
_SHARE = 0.6
# What a worker takes before it reads anything, and what it takes for each byte of JSON: an event
# has some 300 bytes there, takes 100 as columns, and as much again while it is measured.
BASE_BYTES = 160 << 20
_PER_BYTE = 0.7
# JSON of Kineto packs to a twentieth.
_PACKED_RATIO = 20
_LEAST_BYTES = 256 << 20
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", re.IGNORECASE)
_CGROUP = Path("/sys/fs/cgroup")


def parse_size(text: str) -> int:
    """Read a size such as ``4G``, ``500MB`` or ``1073741824``.

    Args:
        text: The size.

    Returns:
        Bytes; units are powers of 1,024.

    Raises:
        UsageError: It is no size, or too small for one file.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"`{text}` is no size", hint="e.g. `--memory 8G`")
    size = int(float(match[1]) * _UNITS[match[2].upper()])
    if size < _LEAST_BYTES:
        raise UsageError(
            f"`{text}` is too little memory to read a trace", hint="give at least `--memory 256M`"
        )
    return size


def choose_budget() -> int:
    """Return the bytes that all workers together may take: a share of what is free here."""
    free = [psutil.virtual_memory().available, *_free_in_cgroups()]
    return max(_LEAST_BYTES, int(_SHARE * min(free)))


def estimate_raw(place: Path) -> int:
    """Estimate how many bytes of JSON a file holds.

    Args:
        place: The file.

    Returns:
        Its size, and that of its content where it is packed; 0 when it cannot be looked at.
    """
    try:
        with open_evidence(place) as stream:
            size = size_of(stream)
            head = stream.read(16)
            if not is_packed(head):
                return size
            if head.startswith(_GZIP_MAGIC):
                stream.seek(-4, 2)
                # Of the last member, and without what is above 4 GiB.
                told = int.from_bytes(stream.read(4), "little")
                told = told if told > size else size * _PACKED_RATIO
                return min(told, most_unpacked(size))
            return size * _PACKED_RATIO
    except OSError:
        return 0


def estimate_raw_remote(name: str, size_bytes: int) -> int:
    """Estimate the same for a file that is not here, from its name and size."""
    return size_bytes * (_PACKED_RATIO if name.endswith(PACKED_SUFFIXES) else 1)


def estimate_peak(raw_bytes: int) -> int:
    """Estimate the memory that a worker takes for some bytes of JSON."""
    return BASE_BYTES + int(_PER_BYTE * raw_bytes)


def _free_in_cgroups() -> list[int]:
    """Return what the control groups of this process leave: a container has less than its host."""
    free = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder, limit, used = _CGROUP / path.lstrip("/"), "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            folder = _CGROUP / "memory" / path.lstrip("/")
            limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        for parent in (folder, *folder.parents):
            if not parent.is_relative_to(_CGROUP):
                break
            left = _read_number(parent / limit)
            if left is not None:
                free.append(max(0, left - (_read_number(parent / used) or 0)))
    return free


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # `max`, or no such control
        return None
