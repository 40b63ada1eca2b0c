"""The bytes of a file, unpacked where it is packed, and never more than some."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from whystuck.opening import open_evidence, size_of
from whystuck.parse.errors import ParseError

# The largest op logs have as much.
MAX_FILE_BYTES = 192 * 1024 * 1024
HEAD_BYTES = 65536

_FIRST_BYTES = 8192
_PICKLE_MAGIC = b"\x80"
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_BZIP2_MAGIC = b"BZh"
_XZ_MAGIC = b"\xfd7zXZ\x00"
_PIECE_BYTES = 1024 * 1024
# What an unpacker hands out at once is lost where it meets damage, and no more than that.
_SOUND_BYTES = 256 * 1024
_SOUND_HEAD_BYTES = 2048
# A frame may ask for a window of any size; torch dumps and logs are packed with far less.
_MAX_ZSTD_WINDOW_BYTES = 128 * 1024 * 1024
# Logs, dumps and traces pack to a twentieth. What packs to less than half of that is made to be
# unpacked, unless it is small then: a ring that was hardly used is all zeros.
_MOST_RATIO = 40
FREE_BYTES = 64 * 1024 * 1024
BOMB = "unpacked, it is far larger than anything sound; what follows is not read"
PACKED_SUFFIXES = (".gz", ".zst", ".bz2", ".xz")


def read_content(path: Path, limit: int = MAX_FILE_BYTES) -> bytes:
    """Read a file whole, and unpack it when it is packed: gzip, bzip2, xz or zstd.

    Args:
        path: The file.
        limit: The most bytes to accept, packed or not.

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
    content = _unpack(data, min(limit, most_unpacked(len(data))) + 1)
    if len(content) > limit:
        raise ParseError(f"unpacked, the file has more than {limit} bytes")
    if len(content) > most_unpacked(len(data)):
        raise ParseError(BOMB)
    return content


def most_unpacked(packed_bytes: int) -> int:
    """Return how many bytes may come out of so many packed ones."""
    return max(FREE_BYTES, _MOST_RATIO * packed_bytes)


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
    return head.startswith((_GZIP_MAGIC, _ZSTD_MAGIC, _XZ_MAGIC)) or (
        # A text can begin with these three letters; the size of blocks follows them.
        head.startswith(_BZIP2_MAGIC) and head[3:4].isdigit() and head[4:6] in (b"1A", b"\x17r")
    )


def strip_packed_suffix(name: str) -> str:
    """Give the name that a packed file has when it is unpacked."""
    for suffix in PACKED_SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def _unpack(data: bytes, limit: int, *, partial: bool = False) -> bytes:
    """Unpack at most ``limit`` bytes; with ``partial``, as far as the content is sound."""
    stream: Any = _open_packed(data)
    # Only `read1` hands out what it has before it meets an early end.
    read, most = (stream.read1, _SOUND_HEAD_BYTES) if partial else (stream.read, _PIECE_BYTES)
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
def open_content(path: Path, most: int | None = None) -> Iterator[io.BufferedReader | io.RawIOBase]:
    """Open a file to read it piece by piece, unpacked.

    Args:
        path: The file.
        most: How many bytes may come out of it where it is packed; `most_unpacked` when left out.

    Yields:
        A stream; what lies before a damage can be read.

    Raises:
        ParseError: It is damaged, or nothing here can unpack it.
        OSError: It cannot be read, is no regular file, or lies behind a link.
    """
    with open_evidence(path) as stream:
        head = stream.peek(_FIRST_BYTES)[:_FIRST_BYTES]
        if is_packed(head):
            most = most_unpacked(size_of(stream)) if most is None else most
            yield Unpacked(open_packed(stream, head), most)
        else:
            yield stream


class Unpacked(io.RawIOBase):
    """A stream that is unpacked as it is read; damage comes as `ParseError`, behind what is sound.

    It takes what `open_packed` returns, and how many bytes may come out of it.
    """

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, most: int = sys.maxsize) -> None:
        self._stream: Any = stream
        self._most = most

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Read up to ``size`` bytes, fewer only at the end."""
        pieces: list[bytes] = []
        left = size
        while size < 0 or left:
            try:
                # Unlike `read`, it keeps nothing back that an early end would take along.
                piece = self._stream.read1(min(_SOUND_BYTES, left) if size >= 0 else _SOUND_BYTES)
            except Exception as error:  # each library has its own
                if pieces:
                    # It comes again at the next call.
                    break
                reason = str(error) or type(error).__name__
                raise ParseError(f"cannot be unpacked to its end ({reason[:120]})") from error
            if not piece:
                break
            pieces.append(piece)
            left -= len(piece)
        self._most -= sum(map(len, pieces))
        if self._most < 0:
            raise ParseError(BOMB)
        return b"".join(pieces)


def _open_packed(data: bytes) -> IO[bytes] | gzip.GzipFile:
    return open_packed(io.BytesIO(data), data)


def open_packed(source: IO[bytes], head: bytes) -> IO[bytes] | gzip.GzipFile:
    """Open what unpacks a stream, told by its first bytes.

    Args:
        source: The packed stream, at its start.
        head: Its first bytes.

    Returns:
        The unpacked stream.

    Raises:
        ParseError: Nothing here can unpack it.
    """
    if head.startswith(_GZIP_MAGIC):
        return gzip.GzipFile(fileobj=source)
    if head.startswith(_BZIP2_MAGIC):
        return bz2.BZ2File(source)
    if head.startswith(_XZ_MAGIC):
        return lzma.LZMAFile(source)
    try:
        module: Any = import_module("compression.zstd")
    except ModuleNotFoundError:
        return _open_with_zstandard(source)
    stream: IO[bytes] = module.ZstdFile(source)
    return stream


def _open_with_zstandard(source: IO[bytes]) -> IO[bytes]:
    try:
        module: Any = import_module("zstandard")
    except ModuleNotFoundError as error:
        raise ParseError(
            "packed with zstd, which this Python cannot unpack "
            "(hint: install `whystuck[zstd]`, or unpack it with `unzstd`)"
        ) from error
    unpacker = module.ZstdDecompressor(max_window_size=_MAX_ZSTD_WINDOW_BYTES)
    stream: IO[bytes] = unpacker.stream_reader(source, read_across_frames=True)
    return stream
