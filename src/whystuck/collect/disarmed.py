"""Why the probe of a rank rests: it cost too much, or somebody forbade it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from whystuck.collect.job_dirs import read_artifact
from whystuck.evidence.finding import Gap

_MAX_CHARS = 200
_MAX_BYTES = 1 << 16


class _Disarmed(msgspec.Struct):
    reason: str = ""


def _read(source: Path) -> _Disarmed:
    return msgspec.json.decode(read_artifact(source, _MAX_BYTES), type=_Disarmed)


def collect_disarmed(rank: int, source: Path | None) -> list[Gap]:
    """Return a gap where the probe of a rank has left ``disarmed-PID``."""
    try:
        found = None if source is None else _read(source)
    except (OSError, ValueError, RecursionError):
        return []
    return [] if found is None else [Gap(rank, "probe disarmed", found.reason[:_MAX_CHARS])]
