"""What the probe of a rank does no more, as it cost too much or somebody forbade it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import msgspec

from whystuck.collect.job_dirs import read_artifact
from whystuck.evidence.decoding import decode_json
from whystuck.evidence.finding import Gap

_MAX_CHARS = 200
_MAX_BYTES = 16384
_MAX_PARTS = 8
# As ``whystuck.probe.files`` has them; a record without parts is of a probe that never started, or
# of a release that knew no parts.
ALL, _UNNAMED = "all", ""
_NAMES = {
    "ops": "ops are not recorded any more: ",
    "marks": "phases of steps are not marked any more: ",
    "records": "new groups and lost calls are not recorded any more: ",
    ALL: "there are heartbeats, and nothing else any more: ",
    _UNNAMED: "",
}


class _Disarmed(msgspec.Struct):
    """``disarmed-PID``."""

    reason: str = ""
    parts: dict[str, str] = {}


def collect_disarmed(rank: int, source: Path | None) -> list[Gap]:
    """Return a gap for each part that the probe of a rank has disarmed, by ``disarmed-PID``."""
    parts = {} if source is None else read_disarmed(source)
    return [Gap(rank, "probe disarmed", explain_disarmed({part: parts[part]})) for part in parts]


def read_disarmed(path: Path) -> dict[str, str]:
    """Return what the probe of a process has disarmed and why, by part; nothing without a file."""
    try:
        data = read_artifact(path, _MAX_BYTES)
        found = decode_json(data, _Disarmed)
    except (OSError, ValueError, RecursionError):
        return {}
    return dict(islice(found.parts.items(), _MAX_PARTS)) or {_UNNAMED: found.reason}


def refuses_traces(parts: Mapping[str, str]) -> bool:
    """Tell whether a process cannot be traced on demand any more."""
    return not parts.keys().isdisjoint((ALL, _UNNAMED))


def explain_disarmed(parts: Mapping[str, str]) -> str:
    """Put into words what is off and why; a part that is not known is told by its name."""
    told = (_NAMES.get(part, f"{part}: ") + reason for part, reason in parts.items())
    return "; ".join(one[:_MAX_CHARS] for one in told)
