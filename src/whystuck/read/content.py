"""The bytes of a file, unpacked where it is packed, and never more than some."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whystuck.guarded.evidence_files import open_evidence, size_of
from whystuck.parse.errors import ParseError
from whystuck.read.packed import (
    BOMB,
    BZIP2_MAGIC,
    GZIP_MAGIC,
    PIECE_BYTES,
    XZ_MAGIC,
    ZSTD_MAGIC,
    Unpacked,
    open_bytes,
    open_packed,
)

# The largest op logs have as much.
MAX_FILE_BYTES = 192 * 1024 * 1024
HEAD_BYTES = 65536
_FIRST_BYTES = 8192
_PICKLE_MAGIC = b"\x80"
_SOUND_HEAD_BYTES = 2048
# Logs, dumps and traces pack to a twentieth. What packs to less than half of that is made to be
# unpacked, unless it is small then: a ring that was hardly used is all zeros.
_MOST_RATIO = 40
FREE_BYTES = 64 * 1024 * 1024
# What may come out of all files of one analysis beyond that ratio. The op logs of 1,024 ranks with
# room for 16,384 ops, hardly used, take 2.6 GiB.
_ALL_FREE_BYTES = 1 << 32
_LEAST_FREE_BYTES = 1 << 20
PACKED_SUFFIXES = (".gz", ".zst", ".bz2", ".xz")


@dataclass
class FreeBytes:
    """What may still come out of the packed files of one analysis beyond forty times their size."""

    left: int = _ALL_FREE_BYTES

    @property
    def of_one(self) -> int:
        """What may come out of the next file."""
        return min(FREE_BYTES, self.left)

    def take(self, packed_bytes: int, unpacked_bytes: int) -> None:
        """Count what came out of a file."""
        self.left = max(0, self.left - max(0, unpacked_bytes - _MOST_RATIO * packed_bytes))


def share_free(count: int, most: int = FREE_BYTES, total: int = _ALL_FREE_BYTES) -> int:
    """Share what may come out of packed files beyond forty times their size.

    Args:
        count: How many files share it.
        most: The most that one of them gets.
        total: What they may have together, but for 1 MiB that each of very many gets.

    Returns:
        The bytes that each may have.
    """
    return min(most, max(_LEAST_FREE_BYTES, total // max(1, count)))


def read_content(
    path: Path, limit: int = MAX_FILE_BYTES, *, free: FreeBytes | None = None
) -> bytes:
    """Read a file whole, and unpack it when it is packed: gzip, bzip2, xz or zstd.

    Args:
        path: The file.
        limit: The most bytes to accept, packed or not.
        free: What may come out of it and of others; as much as of any one when left out.

    Returns:
        Its content.

    Raises:
        ParseError: It is larger than that, damaged, or nothing here can unpack it.
        OSError: It cannot be read, is no regular file, or lies behind a link.
    """
    with open_evidence(path) as stream:
        size = size_of(stream)
        if size > limit:
            raise ParseError(f"the file has {size} bytes, more than {limit}")
        data = stream.read()
    if not is_packed(data):
        return data
    # A file of gzip ends with the size of its last member; one that does not is damaged.
    if data.startswith(GZIP_MAGIC) and int.from_bytes(data[-4:], "little") > limit:
        raise ParseError(f"cannot be unpacked (it is cut off, or has more than {limit} bytes)")
    free = free or FreeBytes()
    most = most_unpacked(len(data), free.of_one)
    content = _unpack(data, min(limit, most) + 1)
    free.take(len(data), len(content))
    if len(content) > limit:
        raise ParseError(f"unpacked, the file has more than {limit} bytes")
    if len(content) > most:
        raise ParseError(BOMB)
    return content


def most_unpacked(packed_bytes: int, free: int = FREE_BYTES) -> int:
    """Return how many bytes may come out of so many packed ones, of which some are free."""
    return max(free, _MOST_RATIO * packed_bytes)


def read_head(path: Path) -> bytes:
    """Read the first bytes of a file, unpacked; what is damaged ends there.

    Args:
        path: The file.

    Returns:
        At most `HEAD_BYTES`.

    Raises:
        ParseError: Nothing here can unpack it.
        OSError: It cannot be read, is no regular file, or lies behind a link.
    """
    with open_evidence(path) as stream:
        data = stream.read(_FIRST_BYTES)
        # A pickle shows what it is at once; a log may do so late.
        if not data.startswith(_PICKLE_MAGIC):
            data += stream.read(HEAD_BYTES - len(data))
    return _unpack(data, HEAD_BYTES, partial=True) if is_packed(data) else data


def is_packed(head: bytes) -> bool:
    """Tell whether a file is packed from its first bytes."""
    return head.startswith((GZIP_MAGIC, ZSTD_MAGIC, XZ_MAGIC)) or (
        # A text can begin with these three letters; the size of blocks follows them.
        head.startswith(BZIP2_MAGIC) and head[3:4].isdigit() and head[4:6] in (b"1A", b"\x17r")
    )


def strip_packed_suffix(name: str) -> str:
    """Give the name that a packed file has when it is unpacked."""
    for suffix in PACKED_SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def _unpack(data: bytes, limit: int, *, partial: bool = False) -> bytes:
    """Unpack at most ``limit`` bytes; with ``partial``, as far as the content is sound."""
    stream: Any = open_bytes(data)
    # Only `read1` hands out what it has before it meets an early end.
    read, most = (stream.read1, _SOUND_HEAD_BYTES) if partial else (stream.read, PIECE_BYTES)
    # Unlike a list of pieces that is joined, it hands out what it holds without a copy.
    found, size = io.BytesIO(), 0
    try:
        while size < limit and (piece := read(min(most, limit - size))):
            size += found.write(piece)
    except Exception as error:  # each library has its own
        if not partial:
            reason = str(error) or type(error).__name__
            raise ParseError(f"cannot be unpacked ({reason[:120]})") from error
    return found.getvalue()


@contextmanager
def open_content(
    path: Path, most: int | None = None, *, free: FreeBytes | None = None
) -> Iterator[io.BufferedReader | io.RawIOBase]:
    """Open a file to read it piece by piece, unpacked.

    Args:
        path: The file.
        most: How many bytes may come out of it where it is packed; `most_unpacked` when left out.
        free: What may come out of it and of others, when ``most`` is left out.

    Yields:
        A stream; what lies before a damage can be read.

    Raises:
        ParseError: It is damaged, or nothing here can unpack it.
        OSError: It cannot be read, is no regular file, or lies behind a link.
    """
    with open_evidence(path) as stream:
        head = stream.peek(_FIRST_BYTES)[:_FIRST_BYTES]
        if is_packed(head):
            size, free = size_of(stream), free or FreeBytes()
            most = most_unpacked(size, free.of_one) if most is None else most
            unpacked = Unpacked(open_packed(stream, head), most)
            try:
                yield unpacked
            finally:
                free.take(size, unpacked.count)
        else:
            yield stream
