"""The files by which a job and ``whystuck release`` speak of a scene that is kept."""

from __future__ import annotations

from pathlib import Path

import msgspec

from whystuck.collect.job_dirs import read_artifact
from whystuck.evidence.decoding import decode_json
from whystuck.evidence.errors import UsageError
from whystuck.launch.running import FoundJob

HOLD_FILE = "hold.json"
RELEASE_FILE = "release"
_MAX_BYTES = 1 << 16


class HoldRecord(msgspec.Struct, kw_only=True):
    """``hold.json`` in the folder of a job: what is kept, since when, and for how long."""

    what: str = ""
    since_ns: int = 0
    hold_s: float = 0.0


def read_hold(folder: Path) -> HoldRecord | None:
    """Return what a job keeps; None when it keeps nothing."""
    try:
        return decode_json(read_artifact(folder / HOLD_FILE, _MAX_BYTES), HoldRecord)
    except (OSError, ValueError):
        return None


def release_scene(found: FoundJob) -> HoldRecord:
    """Ask a job to let go of its scene; return what it has kept.

    Raises:
        UsageError: It keeps none.
    """
    record = read_hold(found.folder)
    if record is None:
        raise UsageError(
            f"job {found.title} keeps no scene",
            hint="it does after a crash or a stall, with `whystuck run --hold S`",
        )
    (found.folder / RELEASE_FILE).touch(mode=0o600)
    return record
