"""An archive of evidence: the files of one node in one file, for file systems that are shared.

``n3.evidence.tar`` stands for the folder ``n3`` beside it: the member ``n3/rank-0/fr.pickle`` is
read where ``n3/rank-0/fr.pickle`` would lie. It is a plain tar, not packed, so that each member is
a part of the file, and ``tar -xf`` makes the folder of it. Archives come from strangers like all
evidence: only plain files below that folder count, and a list of them has an end.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple

SUFFIX = ".evidence.tar"
MAX_MEMBERS = 100_000
# Below the folder of the node: `rank-K/worker-P/stacks-N.json`.
MAX_PARTS = 5
_BLOCK_BYTES = 512
# A name has 100 bytes in a header; ours get a number in front.
_NAME_BYTES = 80
_BUFFER_BYTES = 1 << 20
_MAX_TIME_S = 1 << 33


class Member(NamedTuple):
    """Where the bytes of a file lie in an archive, and when it was written last."""

    offset: int
    size: int
    modified_ns: int


@dataclass
class Members:
    """The files in an archive, by name; ``problem`` is why there may be more, empty otherwise."""

    by_name: dict[str, Member] = field(default_factory=dict)
    problem: str = ""


def folder_of(name: str) -> str:
    """Return the folder that an archive stands for, by its name; empty for any other file."""
    folder = name.removesuffix(SUFFIX)
    return "" if folder == name or folder in {".", ".."} else folder


def list_members(stream: BinaryIO | io.RawIOBase, size: int, folder: str) -> Members:
    """List the files in an archive.

    Args:
        stream: The archive; it can seek.
        size: How many bytes it has.
        folder: What it stands for: members outside of it are left out.

    Returns:
        The files. Of two with one name the later one counts, as tar has it.

    Raises:
        OSError: It cannot be read.
    """
    found, place, others, looked_at = Members(), 0, 0, 0
    while place + _BLOCK_BYTES <= size:
        stream.seek(place)
        head = stream.read(_BLOCK_BYTES) or b""
        if not head.strip(b"\0"):
            break
        try:
            info = tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
        except (tarfile.HeaderError, ValueError):
            found.problem = f"the archive is damaged at byte {place}"
            return found
        place += _BLOCK_BYTES
        if not 0 <= info.size <= size - place:
            found.problem = "the archive is cut off"
            return found
        if info.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and is_member(info.name, folder):
            modified_ns = int(min(max(0, info.mtime), _MAX_TIME_S)) * 10**9
            found.by_name[info.name] = Member(place, info.size, modified_ns)
        elif info.type != tarfile.DIRTYPE:
            others += 1
        looked_at += 1
        # Folders, and files of one name again, take as long.
        if looked_at >= MAX_MEMBERS:
            found.problem = f"of the archive, the first {MAX_MEMBERS} members are read"
            return found
        place += -(-info.size // _BLOCK_BYTES) * _BLOCK_BYTES
    if others:
        found.problem = f"{others} members of the archive are no plain files of `{folder}`"
    return found


def is_member(name: str, folder: str) -> bool:
    """Return whether a name is that of a file below a folder, and leads nowhere else."""
    first, *others = name.split("/")
    return (
        first == folder
        and 0 < len(others) <= MAX_PARTS
        and not {"", ".", ".."} & set(others)
        and name.isprintable()
    )


def write_archive(out: IO[bytes], folder: str, files: Iterable[tuple[str, Path]]) -> None:
    """Write an archive from its beginning to its end, and never go back in it.

    Args:
        out: Where it goes; it is written to and nothing else.
        folder: What it stands for.
        files: Names below that folder, and the files that get them. A file that is gone by then is
            left out, and one that has become shorter is filled up with zeros.

    Raises:
        OSError: It cannot be written, or a file cannot be read.
    """
    for name, path in files:
        try:
            file = path.open("rb")
        except FileNotFoundError:
            continue
        with file:
            info = tarfile.TarInfo(f"{folder}/{name}")
            status = os.fstat(file.fileno())
            info.size, info.mtime, info.mode = status.st_size, int(status.st_mtime), 0o600
            out.write(info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape"))
            left = info.size
            while left and (piece := file.read(min(left, _BUFFER_BYTES))):
                left -= out.write(piece)
            out.write(bytes(left + -info.size % _BLOCK_BYTES))
    out.write(bytes(2 * _BLOCK_BYTES))


def shorten(name: str) -> str:
    """Return a name of a file that fits into an archive, with its end as it is."""
    printable = "".join(char if char.isprintable() else "_" for char in name)
    return printable.encode()[-_NAME_BYTES:].decode(errors="ignore")
