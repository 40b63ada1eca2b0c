"""The tables of one trace as bytes: small, checked, and safe to read whoever has written them.

A partial is ``WSTP``, a version of one byte, the BLAKE2b digest of the rest, and the rest: msgpack.
Columns are raw bytes of the narrowest type that holds them, packed with zlib where that helps;
texts are numbers into a list. What is read back has the types, and every bit, of what was written.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.decoding import msgpack_decoder
from whystuck.evidence.ranks import MAX_RANK
from whystuck.evidence.table import Column, Table
from whystuck.evidence.traces.options import TraceOptions
from whystuck.evidence.traces.tables import RankHeader, RankTables
from whystuck.parse.errors import ParseError

MAGIC = b"WSTP"
SUFFIX = ".wspart"
VERSION = 1
MAX_BYTES = 1 << 30
# What a partial may take when it is unpacked; 10^7 rows of 20 columns take less.
MAX_UNPACKED_BYTES = 4 << 30
MAX_ROWS = 1 << 28

_DIGEST_BYTES = 16
_HEAD_BYTES = len(MAGIC) + 1 + _DIGEST_BYTES
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_TEXT = "text"
_TYPES = frozenset({"<i8", "<i4", "<i2", "|i1", "<u8", "<u4", "<u2", "|u1", "<f8", "<f4", "|b1"})
_NARROW = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32)
# Below this, packing saves nothing.
_PACK_FROM_BYTES = 256
_LEVEL = 1


class _Column(msgspec.Struct, array_like=True, frozen=True):
    """``type`` is that of the column, ``stored`` that of the bytes."""

    name: str
    type: str
    stored: str
    is_packed: bool
    data: bytes
    texts: list[str] = []


class _Table(msgspec.Struct, array_like=True, frozen=True):
    name: str
    rows: int
    columns: list[_Column]


class Partial(msgspec.Struct, frozen=True, kw_only=True):
    """What a partial says about itself; the tables are unpacked by `unpack_tables`.

    ``measures`` tells apart what was measured by versions that measure other things.
    """

    header: RankHeader
    options: TraceOptions
    measures: str
    tables: list[_Table]


def encode_partial(tables: RankTables, options: TraceOptions, measures: str) -> bytes:
    """Write the tables of a trace as bytes.

    Args:
        tables: What was measured.
        options: With which options.
        measures: What the version that measured it measures.

    Returns:
        The partial.
    """
    packed = [
        _Table(name, len(table), [_pack(key, column) for key, column in table.columns.items()])
        for name, table in tables.tables.items()
    ]
    body = msgspec.msgpack.encode(
        Partial(header=tables.header, options=options, measures=measures, tables=packed)
    )
    return MAGIC + bytes([VERSION]) + _digest(body) + body


def decode_partial(data: bytes) -> Partial:
    """Read a partial, without its columns.

    Args:
        data: The bytes of the file.

    Returns:
        The partial.

    Raises:
        ParseError: It is damaged, of another version, or no partial.
    """
    if not data.startswith(MAGIC) or len(data) < _HEAD_BYTES:
        raise ParseError("it is no partial of a trace")
    if len(data) > MAX_BYTES:
        raise ParseError(f"the partial has {len(data)} bytes, more than {MAX_BYTES}")
    version = data[len(MAGIC)]
    if version != VERSION:
        raise ParseError(f"the partial has version {version}, and this whystuck reads {VERSION}")
    body = memoryview(data)[_HEAD_BYTES:]
    if _digest(body) != data[len(MAGIC) + 1 : _HEAD_BYTES]:
        raise ParseError("the partial is damaged: its digest differs")
    try:
        partial = _DECODER.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ParseError(f"the partial cannot be read ({error})"[:200]) from error
    _check(partial)
    return partial


def unpack_tables(
    partial: Partial, names: Sequence[str] | None = None, texts: dict[str, str] | None = None
) -> RankTables:
    """Unpack tables of a partial.

    Args:
        partial: The partial.
        names: The tables to unpack; all when left out.
        texts: Texts that were seen in other partials: equal ones are kept once.

    Returns:
        The tables.

    Raises:
        ParseError: A column is not what it says.
    """
    known: dict[str, str] = {} if texts is None else texts
    return RankTables(
        partial.header,
        {
            one.name: Table({key.name: _unpack(key, one.rows, known) for key in one.columns})
            for one in partial.tables
            if names is None or one.name in names
        },
    )


_DECODER = msgpack_decoder(Partial)


def _digest(body: bytes | memoryview) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()


def _check(partial: Partial) -> None:
    if not -1 <= partial.header.rank <= MAX_RANK:
        raise ParseError(f"the partial is of rank {partial.header.rank}")
    size = 0
    for table in partial.tables:
        if not _NAME.fullmatch(table.name) or not 0 <= table.rows <= MAX_ROWS:
            raise ParseError("a table of the partial has no valid name, or no valid size")
        for column in table.columns:
            if not _NAME.fullmatch(column.name):
                raise ParseError(f"a column of table {table.name} has no valid name")
            size += 8 * table.rows
    if size > MAX_UNPACKED_BYTES:
        raise ParseError(f"unpacked, the partial has more than {MAX_UNPACKED_BYTES} bytes")


def _pack(name: str, column: Column) -> _Column:
    if column.dtype == object:
        numbers: dict[str, int] = {}
        codes = [numbers.setdefault(str(value), len(numbers)) for value in column.tolist()]
        return _pack_bytes(name, _TEXT, _narrow(np.array(codes, dtype=np.int64)), list(numbers))
    plain = np.ascontiguousarray(column)
    if plain.dtype.byteorder == ">":
        plain = plain.astype(plain.dtype.newbyteorder("<"))
    if plain.dtype.str not in _TYPES:
        raise TypeError(f"column {name} has type {plain.dtype.str}, which partials do not hold")
    return _pack_bytes(name, plain.dtype.str, _narrow(plain), [])


def _pack_bytes(name: str, kind: str, values: NDArray[Any], texts: list[str]) -> _Column:
    data = values.tobytes()
    if len(data) >= _PACK_FROM_BYTES:
        packed = zlib.compress(data, _LEVEL)
        if len(packed) < len(data):
            return _Column(name, kind, values.dtype.str, True, packed, texts)  # noqa: FBT003 - a field
    return _Column(name, kind, values.dtype.str, False, data, texts)  # noqa: FBT003 - a field


def _narrow(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind not in "iu" or not len(values):
        return values
    least, most = int(values.min()), int(values.max())
    for kind in _NARROW:
        limits = np.iinfo(kind)
        if np.dtype(kind).itemsize < values.itemsize and limits.min <= least <= most <= limits.max:
            return values.astype(kind)
    return values


def _unpack(column: _Column, rows: int, known: dict[str, str]) -> Column:
    is_text = column.type == _TEXT
    if column.stored not in _TYPES or (not is_text and column.type not in _TYPES):
        raise ParseError(f"column {column.name} has an unknown type")
    stored = np.dtype(column.stored)
    data = _inflate(column, rows * stored.itemsize)
    values: NDArray[Any] = np.frombuffer(data, dtype=stored, count=rows)
    if is_text:
        return _spell(column, values, known)
    return values.astype(np.dtype(column.type))


def _inflate(column: _Column, size: int) -> bytes:
    data = column.data
    if column.is_packed:
        unpacker = zlib.decompressobj()
        try:
            data = unpacker.decompress(column.data, size + 1)
        except zlib.error as error:
            raise ParseError(f"column {column.name} cannot be unpacked ({error})") from error
    if len(data) != size:
        raise ParseError(f"column {column.name} has {len(data)} bytes, and not {size}")
    return data


def _spell(column: _Column, codes: NDArray[Any], known: dict[str, str]) -> Column:
    if codes.dtype.kind not in "iu":
        raise ParseError(f"the texts of column {column.name} are not numbered")
    if len(codes) and not 0 <= int(codes.min()) <= int(codes.max()) < len(column.texts):
        raise ParseError(f"column {column.name} names a text that is not there")
    words = np.empty(len(column.texts), dtype=object)
    words[:] = [known.setdefault(text, text) for text in column.texts]
    spelled: Column = words[codes.astype(np.int64)]
    return spelled


def name_partial(key: str) -> str:
    """Return the name of the file of a partial."""
    return f"{key}{SUFFIX}"
