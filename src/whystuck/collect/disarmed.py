"""Why the probe of a rank rests: it cost too much, or somebody forbade it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from whystuck.evidence.finding import Gap

_MAX_CHARS = 200


class _Disarmed(msgspec.Struct):
    reason: str = ""


def collect_disarmed(rank: int, source: Path | None) -> list[Gap]:
    """Return a gap where the probe of a rank has left ``disarmed-PID``."""
    try:
        found = None if source is None else msgspec.json.decode(source.read_bytes(), type=_Disarmed)
    except (OSError, ValueError, RecursionError):
        return []
    return [] if found is None else [Gap(rank, "probe disarmed", found.reason[:_MAX_CHARS])]
