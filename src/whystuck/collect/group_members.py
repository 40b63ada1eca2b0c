"""The members of process groups, as the probe of a rank wrote them down."""

from __future__ import annotations

from pathlib import Path

import msgspec

from whystuck.collect.job_dirs import read_artifact
from whystuck.evidence.decoding import decode_json


class _Groups(msgspec.Struct):
    """``groups-PID`` of the probe; another version tells nothing."""

    version: int
    groups: dict[str, list[int]]


def read_groups(path: Path | None) -> dict[str, list[int]]:
    """Return the members of each group, none where the file cannot be read."""
    try:
        data = b"" if path is None else read_artifact(path)
        found = decode_json(data, _Groups)
    except (OSError, msgspec.DecodeError):
        return {}
    return found.groups if found.version == 1 else {}
