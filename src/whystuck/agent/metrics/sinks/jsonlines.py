"""Rounds as JSON, one object a line, in a file that is bounded."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from whystuck.agent.metrics.sinks.round_pace import Pace
from whystuck.evidence.errors import StartError
from whystuck.evidence.nodes.metrics import Sample

EVERY_S = 30.0
MAX_BYTES = 32 << 20
KEEP = 4


class JsonLinesSink:
    """Appends ``{"time_ns": ..., "node": ..., "metrics": {NAME: [{LABEL: ..., "value": ...}]}}``.

    Args:
        node: The name of this node.
        path: The file; it is readable by its owner only.
        every_s: Seconds between two lines.
        max_bytes: When the file would become larger, it is renamed to ``PATH.1``.
        keep: How many such older files stay: ``PATH.1`` is the newest.
        labels: More labels of this node, told once in each line.

    Raises:
        StartError: The file cannot be opened.
    """

    name = "json-lines"

    def __init__(
        self,
        node: str,
        path: Path,
        *,
        every_s: float = EVERY_S,
        max_bytes: int = MAX_BYTES,
        keep: int = KEEP,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self._labels = {**(labels or {}), "node": node}
        self._path = path
        self._pace = Pace(every_s)
        self._max_bytes = max_bytes
        self._keep = max(0, keep)
        try:
            os.close(self._open())
        except OSError as error:
            raise StartError(
                f"{path} cannot be written: {error.strerror}",
                hint="give the path of a file in a folder of yours",
            ) from None

    def write(self, samples: Sequence[Sample]) -> None:
        """Append a line when one is due; raises OSError when there is no room for it."""
        if not samples or not self._pace.is_due():
            return
        line = msgspec.json.encode(self._describe(samples)) + b"\n"
        if len(line) > self._max_bytes:
            raise OSError(f"a round of {len(line)} bytes is larger than the file may be")
        descriptor = self._open()
        try:
            size = os.fstat(descriptor).st_size
            if size and size + len(line) > self._max_bytes:
                os.close(descriptor)
                descriptor = -1
                self._rotate()
                descriptor, size = self._open(), 0
            _append(descriptor, line, size)
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def close(self) -> None:
        """Nothing is open between two lines."""

    def _describe(self, samples: Sequence[Sample]) -> dict[str, Any]:
        metrics: dict[str, list[dict[str, Any]]] = {}
        for sample in samples:
            pairs = zip(sample.family.labels, sample.labels, strict=True)
            entry: dict[str, Any] = {name: value for name, value in pairs if value}
            entry["value"] = sample.value
            metrics.setdefault(sample.family.name, []).append(entry)
        return {"time_ns": time.time_ns(), **self._labels, "metrics": metrics}

    def _open(self) -> int:
        # It is opened for each line: whoever moves or removes the file is no trouble.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self._path, flags | os.O_NONBLOCK, 0o600)

    def _rotate(self) -> None:
        names = [Path(f"{self._path}.{number}") for number in range(1, self._keep + 1)]
        chain = [self._path, *names]
        if not names:
            self._path.unlink(missing_ok=True)
        for newer, older in reversed(list(pairwise(chain))):
            with suppress(FileNotFoundError):
                newer.replace(older)


def _append(descriptor: int, line: bytes, size: int) -> None:
    """Write a line as a whole, or leave the file as it was."""
    written = 0
    try:
        while written < len(line):
            written += os.write(descriptor, line[written:])
    except OSError:
        if written:
            os.ftruncate(descriptor, size)
        raise
