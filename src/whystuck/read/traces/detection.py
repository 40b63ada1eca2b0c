"""Tells a trace from other files, also where its events are far behind its head."""

from __future__ import annotations

from pathlib import Path

from whystuck.guarded.evidence_files import look_at
from whystuck.parse.errors import ParseError
from whystuck.read.content import FreeBytes, open_content, read_head, strip_packed_suffix
from whystuck.read.sniffing import Kind, sniff

WHAT = "trace"
# How far to look for the events: tables of groups and devices come before them, or another tool's.
MAX_LOOKED_AT_BYTES = 64 << 20

_EVENTS_KEY = b'"traceEvents"'
_PIECE_BYTES = 1 << 20


def find_trace(path: Path, free: FreeBytes | None = None) -> Kind | None:
    """Tell whether a JSON file whose head tells nothing is a trace.

    Args:
        path: The file.
        free: What may come out of it, and of others, where they are packed.

    Returns:
        `Kind.TRACE`, or None when it is none.

    Raises:
        ParseError: Nothing here can unpack it.
        OSError: It cannot be read.
    """
    if not strip_packed_suffix(path.name).endswith(".json"):
        return None
    looked_at, tail = 0, b""
    with open_content(path, free=free) as stream:
        while looked_at < MAX_LOOKED_AT_BYTES and (piece := stream.read(_PIECE_BYTES)):
            if not looked_at and not piece.lstrip().startswith(b"{"):
                return None
            if _EVENTS_KEY in tail + piece:
                return Kind.TRACE
            looked_at += len(piece)
            tail = piece[-len(_EVENTS_KEY) :]
    return None


def explain_no_trace(path: Path, free: FreeBytes | None = None) -> str:
    """Tell why a file is no trace.

    Args:
        path: The file.
        free: What may come out of it where it is packed.

    Returns:
        The reason; empty when it is a trace.

    Raises:
        ParseError: It is damaged, or nothing here can unpack it.
        OSError: It cannot be read.
    """
    head = read_head(path)
    kind = sniff(strip_packed_suffix(path.name), head)
    if kind is Kind.TRACE:
        return ""
    if not head:
        # Of a packed file that is damaged at its start, the head is empty.
        if look_at(path).size:
            raise ParseError("it is damaged: nothing of it can be unpacked")
        return "it is empty"
    if kind is None and find_trace(path, free):
        return ""
    is_json = head.lstrip()[:1] in {b"{", b"["}
    return "it has no events of a trace" if is_json else "it is no JSON, and so no trace"
