"""Packed files: gzip, zstd, xz and bzip2, unpacked piece by piece."""

from __future__ import annotations

import bz2
import io
import lzma
import sys
import zlib
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import IO, Any

from whystuck.parse.errors import ParseError

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
BZIP2_MAGIC = b"BZh"
XZ_MAGIC = b"\xfd7zXZ\x00"
PIECE_BYTES = 1024 * 1024
_PACKED_BYTES = 256 * 1024
# Members of gzip, with their headers.
_GZIP_WINDOW = 31
# What an unpacker hands out at once is lost where it meets damage, and no more than that.
_SOUND_BYTES = 256 * 1024
# A frame may ask for a window of any size; torch dumps and logs are packed with far less.
_MAX_ZSTD_WINDOW_BYTES = 128 * 1024 * 1024
BOMB = "unpacked, it is far larger than anything sound; what follows is not read"


class Gunzip:
    """Unpacks gzip, any number of members; each byte before a damage comes out.

    Unlike `gzip.GzipFile`, it uses the fastest unpacker that is installed.
    """

    def __init__(self, stream: IO[bytes] | Any) -> None:  # noqa: ANN401 - anything to read
        """Unpack a stream of which only ``read`` is used, from its start."""
        self._stream = stream
        self._make, self._errors = _find_inflater()
        self._most = PIECE_BYTES
        self._pieces = self._unpack()
        self._error: Exception | None = None

    def read1(self, size: int = -1) -> bytes:
        """Return the next bytes, at most ``size``; none at the end.

        Raises:
            ParseError: The stream is damaged here, or ends early. It is raised at each call then.
        """
        if self._error is not None:
            raise self._error
        self._most = size if size > 0 else PIECE_BYTES
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


def open_bytes(data: bytes) -> IO[bytes] | Gunzip:
    """Open what unpacks some bytes."""
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
    if head.startswith(GZIP_MAGIC):
        return Gunzip(source)
    if head.startswith(BZIP2_MAGIC):
        return bz2.BZ2File(source)
    if head.startswith(XZ_MAGIC):
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
