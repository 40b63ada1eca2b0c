"""The bytes of a file, unpacked where it is packed, and never more than some."""

from __future__ import annotations

import bz2
import io
import lzma
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from whystuck.guarded.evidence_files import open_evidence, size_of
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
_PACKED_BYTES = 256 * 1024
# Members of gzip, with their headers.
_GZIP_WINDOW = 31
# What an unpacker hands out at once is lost where it meets damage, and no more than that.
_SOUND_BYTES = 256 * 1024
_SOUND_HEAD_BYTES = 2048
# A frame may ask for a window of any size; torch dumps and logs are packed with far less.
_MAX_ZSTD_WINDOW_BYTES = 128 * 1024 * 1024
# Logs, dumps and traces pack to a twentieth. What packs to less than half of that is made to be
# unpacked, unless it is small then: a ring that was hardly used is all zeros.
_MOST_RATIO = 40
FREE_BYTES = 64 * 1024 * 1024
# What may come out of all files of one analysis beyond that ratio. The op logs of 1,024 ranks with
# room for 16,384 ops, hardly used, take 2.6 GiB.
_ALL_FREE_BYTES = 1 << 32
_LEAST_FREE_BYTES = 1 << 20
BOMB = "unpacked, it is far larger than anything sound; what follows is not read"
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
    if data.startswith(_GZIP_MAGIC) and int.from_bytes(data[-4:], "little") > limit:
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


class Gunzip:
    """Unpacks gzip, any number of members; each byte before a damage comes out.

    Unlike `gzip.GzipFile`, it uses the fastest unpacker that is installed.
    """

    def __init__(self, stream: IO[bytes] | Any) -> None:  # noqa: ANN401 - anything to read
        """Unpack a stream of which only ``read`` is used, from its start."""
        self._stream = stream
        self._make, self._errors = _find_inflater()
        self._most = _PIECE_BYTES
        self._pieces = self._unpack()
        self._error: Exception | None = None

    def read1(self, size: int = -1) -> bytes:
        """Return the next bytes, at most ``size``; none at the end.

        Raises:
            ParseError: The stream is damaged here, or ends early. It is raised at each call then.
        """
        if self._error is not None:
            raise self._error
        self._most = size if size > 0 else _PIECE_BYTES
        try:
            return next(self._pieces, b"")
        except Exception as error:
            self._error = error
            raise

    read = read1

    def _unpack(self) -> Iterator[bytes]:
        data = self._stream.read(_PACKED_BYTES)
        unpacker, is_begun = self._make(_GZIP_WINDOW), True
        while data:
            try:
                piece = unpacker.decompress(data, self._most)
            except self._errors as error:
                raise ParseError(str(error)) from error
            if piece:
                yield piece
            if unpacker.eof:
                # Zeros behind a member are padding.
                data = unpacker.unused_data.lstrip(b"\0")
                while not data and (packed := self._stream.read(_PACKED_BYTES)):
                    data = packed.lstrip(b"\0")
                unpacker, is_begun = self._make(_GZIP_WINDOW), bool(data)
            else:
                data = unpacker.unconsumed_tail or self._stream.read(_PACKED_BYTES)
        if is_begun:
            with suppress(*self._errors):
                if piece := unpacker.flush():
                    yield piece
            raise ParseError("the packed file ends early")


def _find_inflater() -> tuple[Any, tuple[type[Exception], ...]]:
    """Return the fastest unpacker that is installed, and what it raises."""
    try:
        module: Any = import_module("isal.isal_zlib")
    except ModuleNotFoundError:
        return zlib.decompressobj, (zlib.error,)
    return module.decompressobj, (zlib.error, module.error)


class Unpacked(io.RawIOBase):
    """A stream that is unpacked as it is read; damage comes as `ParseError`, behind what is sound.

    It takes what `open_packed` returns, and how many bytes may come out of it; ``count`` is how
    many have.
    """

    def __init__(self, stream: IO[bytes] | Gunzip, most: int = sys.maxsize) -> None:
        self._stream: Any = stream
        self._most = most
        self.count = 0

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
        self.count += sum(map(len, pieces))
        if self.count > self._most:
            raise ParseError(BOMB)
        return b"".join(pieces)


def _open_packed(data: bytes) -> IO[bytes] | Gunzip:
    return open_packed(io.BytesIO(data), data)


def open_packed(source: IO[bytes], head: bytes) -> IO[bytes] | Gunzip:
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
        return Gunzip(source)
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
