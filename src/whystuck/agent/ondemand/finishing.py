"""From the file that Kineto wrote to the one that was wanted: with rank and world, packed, moved.

A trace may have gigabytes, so it is copied in pieces and never parsed as a whole. Its own file is
removed when the new one lies where it was wanted, and not before.
"""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import IO, Any

import msgspec

from whystuck.agent.ondemand.reach import Found
from whystuck.evidence.agent import ProcessEntry
from whystuck.evidence.decoding import decode_json
from whystuck.evidence.errors import UsageError
from whystuck.guarded import remote
from whystuck.guarded.processes import Owner
from whystuck.guarded.results import written_private

SUFFIX = ".pt.trace.json"
_PIECE_BYTES = 1 << 20
_HEAD_BYTES = 1 << 16
_TAIL_BYTES = 1 << 16
_MAX_TRIES = 64
_LEVEL = 1
_HEAD = re.compile(rb'\s*\{\s*(?=["}])')
_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME = 60


class FinishError(Exception):
    """The file could not be made; the message says why, and the trace lies where it was."""


@dataclass(frozen=True)
class Order:
    """What is to be made of a trace.

    ``output`` is a folder or a URL; ``name`` that of the file, to which ``.gz`` is added when it
    is packed. ``added`` are keys that the trace gets.
    """

    source: Found
    output: str
    name: str
    added: Mapping[str, Any]
    is_packed: bool = True


@dataclass(frozen=True)
class Finished:
    """Where the file lies, and its size."""

    file: str
    file_bytes: int


def make_name(entry: ProcessEntry, request_id: str) -> str:
    """Return the name of a trace: ``JOB-rankK-NODE-ID.pt.trace.json``."""
    who = f"rank{entry.rank}" if entry.rank >= 0 else f"pid{entry.pid}"
    parts = [_plain(entry.job), who, _plain(entry.node), _plain(request_id)]
    return "-".join(part for part in parts if part) + SUFFIX


def _plain(text: str) -> str:
    return _PLAIN.sub("_", text).strip("._-")[:_MAX_NAME]


def make_added(entry: ProcessEntry) -> dict[str, Any]:
    """Return what a trace is told of its process; what is not known is left out."""
    info: dict[str, Any] = {}
    if entry.rank >= 0:
        info["rank"] = entry.rank
    if entry.world_size > 0:
        info["world_size"] = entry.world_size
    added: dict[str, Any] = {"distributedInfo": info} if info else {}
    if entry.node:
        added["hostName"] = entry.node
    return added


def finish(order: Order) -> Finished:
    """Make the file that was wanted, and remove the one that Kineto wrote.

    Args:
        order: What is to be made.

    Returns:
        Where it lies.

    Raises:
        FinishError: It could not be made; Kineto's file is still there.
    """
    name = order.name + (".gz" if order.is_packed else "")
    target = remote.join(order.output, name)
    try:
        with order.source.opened() as source:
            head = _check(source.stream)
            reach = order.source.reach
            with _written(target, None if reach.is_own else reach.owner) as stream:
                size_bytes = _copy(source.stream, stream, head, order)
            with suppress(OSError):  # it lies there twice then
                source.remove()
    except (OSError, UsageError, ValueError) as error:
        shown = remote.hide_user_info(order.output)
        raise FinishError(f"it could not be put into {shown}: {_explain(error)}") from error
    return Finished(target, size_bytes)


def _explain(error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (reason or type(error).__name__)[:300]


@contextmanager
def _written(target: str, owner: Owner | None) -> Iterator[IO[bytes]]:
    """Write a file that only its user may read, at a path or behind a URL."""
    path = remote.local_path(target)
    if path is None:
        with remote.written(target) as stream:
            yield stream
    else:
        with written_private(str(path.absolute()), owner) as stream:
            yield stream


def check_whole(found: Found) -> str:
    """Return why a file is no whole trace, or nothing when it is one.

    A disk that is full cuts it short, and Kineto does not notice.
    """
    try:
        with found.opened() as file:
            _check(file.stream)
    except (OSError, ValueError) as error:
        return _explain(error)
    return ""


def _check(stream: IO[bytes]) -> bytes:
    """Return how a trace begins, up to its first key; raises ValueError when it is not whole."""
    head = _HEAD.match(stream.read(_HEAD_BYTES))
    size_bytes = stream.seek(0, os.SEEK_END)
    if head is None:
        raise ValueError("it is no JSON object" if size_bytes else "the file is empty")
    stream.seek(max(0, size_bytes - _TAIL_BYTES))
    if not _ends_whole(_read_fully(stream, _TAIL_BYTES)):
        raise ValueError("it is cut short, as on a disk that is full")
    stream.seek(head.end())
    return head[0]


def _read_fully(stream: IO[bytes], size_bytes: int) -> bytes:
    data = b""
    while len(data) < size_bytes and (piece := stream.read(size_bytes - len(data))):
        data += piece
    return data


def _ends_whole(tail: bytes) -> bool:
    """Tell whether a list ends in the tail, and what is behind it ends the object."""
    position = len(tail)
    for _ in range(_MAX_TRIES):
        position = tail.rfind(b"]", 0, position)
        if position < 0:
            return False
        try:
            keys = decode_json(b'{"":[' + tail[position:], dict[str, msgspec.Raw])
        except msgspec.DecodeError:
            continue
        # A cut right behind the arguments of an event also ends an object; Kineto's last key does
        # not come there.
        return "traceName" in keys or tail[:position].rstrip().endswith((b"}", b"["))
    return False


def _copy(source: IO[bytes], target: IO[bytes], head: bytes, order: Order) -> int:
    added = msgspec.json.encode(dict(order.added))[1:-1]
    with _packed(target) if order.is_packed else _as_is(target) as stream:
        stream.write(head)
        first = source.read(_PIECE_BYTES)
        if added:
            stream.write(added + (b"" if first.startswith(b"}") else b","))
        while first:
            stream.write(first)
            first = source.read(_PIECE_BYTES)
    target.flush()
    return target.tell()


@contextmanager
def _as_is(target: IO[bytes]) -> Iterator[IO[bytes]]:
    yield target


@contextmanager
def _packed(target: IO[bytes]) -> Iterator[Any]:
    """Pack by isal where it is installed: it takes a fifth of the time."""
    try:
        module: Any = import_module("isal.igzip")
    except ModuleNotFoundError:
        module = gzip
    with module.GzipFile(
        filename="", fileobj=target, mode="wb", compresslevel=_LEVEL, mtime=0
    ) as stream:
        yield stream
