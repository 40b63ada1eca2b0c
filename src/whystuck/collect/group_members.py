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
    calls: int = -1
    begun: dict[str, str] = {}


def read_group_calls(path: Path | None) -> int:
    """Return how many groups a rank has begun to make; -1 where that is not known."""
    found = _read(path)
    return -1 if found is None else found.calls


def read_begun_groups(path: Path | None) -> dict[str, str]:
    """Return the members, as ranges, of the groups that a rank began to make last, by name."""
    found = _read(path)
    return {} if found is None else found.begun


def read_groups(path: Path | None) -> dict[str, list[int]]:
    """Return the members of each group, none where the file cannot be read."""
    found = _read(path)
    return {} if found is None else found.groups


def _read(path: Path | None) -> _Groups | None:
    try:
        data = b"" if path is None else read_artifact(path)
        found = decode_json(data, _Groups)
    except (OSError, msgspec.DecodeError):
        return None
    return found if found.version == 1 else None
