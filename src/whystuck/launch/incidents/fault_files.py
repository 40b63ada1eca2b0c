"""The two files of the fault log: sentences in ``fault.log``, the same as JSON in ``fault.jsonl``.

One process of a node writes at a time: the check before a round, the watcher, the check after it.
Several nodes may share the files; each write is whole lines, in one call, at the end of the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import msgspec

from whystuck.evidence.fault_events import (
    FAULT_EVENTS_FILE,
    FAULT_LOG_FILE,
    OLD_SUFFIX,
    FaultEvent,
    FaultKind,
)
from whystuck.evidence.private import FILE_MODE
from whystuck.safe_text.escaping import show_line

# Of each file; as much is kept of what came before.
MAX_BYTES = 8 << 20
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True)
class FaultNote:
    """A sentence for the fault log, and what it says as values."""

    text: str
    kind: FaultKind = FaultKind.NOTE
    rank: int | None = None
    details: Mapping[str, object] = field(default_factory=dict)


def render_notes(
    notes: Sequence[FaultNote], now: datetime, round_number: int, node: str
) -> tuple[bytes, bytes]:
    """Return notes as lines of ``fault.log`` and as lines of ``fault.jsonl``."""
    stamp = now.strftime("%Y-%m-%d %H:%M:%S")
    time = now.isoformat(timespec="milliseconds")
    lines, events = [], []
    for note in notes:
        text = show_line(note.text)  # they quote what jobs say, and are read on terminals
        lines.append(f"{stamp} {text}\n".encode())
        event = FaultEvent(
            time=time,
            round=round_number,
            node=node,
            rank=note.rank,
            event=note.kind.value,
            text=text,
            details=dict(note.details),
        )
        events.append(msgspec.json.encode(event) + b"\n")
    return b"".join(lines), b"".join(events)


def append_notes(root: Path, lines: bytes, events: bytes) -> None:
    """Add lines to both files in a folder; raises OSError."""
    append_bounded(root / FAULT_LOG_FILE, lines)
    append_bounded(root / FAULT_EVENTS_FILE, events)


def append_bounded(path: Path, data: bytes, max_bytes: int = MAX_BYTES) -> None:
    """Add to a file; one that is full becomes the old one first. Raises OSError."""
    fd = os.open(path, _FLAGS, FILE_MODE)
    try:
        if (size := os.fstat(fd).st_size) and size + len(data) > max_bytes:
            path.replace(path.with_name(path.name + OLD_SUFFIX))
            full, fd = fd, os.open(path, _FLAGS, FILE_MODE)
            os.close(full)
        os.write(fd, data)
    finally:
        os.close(fd)
