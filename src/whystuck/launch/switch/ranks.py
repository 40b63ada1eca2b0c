"""The live ranks of a job on this node, and what they answered to the switch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from whystuck.collect.beats import BeatSlot, read_beat
from whystuck.collect.job_dirs import read_artifact
from whystuck.collect.processes.proc_files import read_start
from whystuck.collect.processes.target import owns_files
from whystuck.evidence.decoding import decode_json
from whystuck.evidence.records import SwitchRecord

_FRESH_S = 3.0
_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class RankSwitch:
    """A live rank of this node: its heartbeat, and its last answer if it gave any."""

    pid: int
    beat: BeatSlot
    answer: SwitchRecord | None


def live_ranks(job_dir: Path) -> list[RankSwitch]:
    """Return the live ranks of a job on this node, by rank."""
    found = []
    for path in job_dir.glob("beat-*"):
        pid = path.name.partition("-")[2]
        beat = read_beat(path) if pid.isdecimal() else None
        # By its pid in its own namespace, which may be a container's: there, a beat says it lives.
        if beat is not None and (beat.age_s < _FRESH_S or _lives_here(job_dir, int(pid))):
            found.append(RankSwitch(int(pid), beat, _read_answer(job_dir / f"switched-{pid}")))
    return sorted(found, key=lambda one: (one.beat.rank, one.pid))


def _lives_here(job_dir: Path, pid: int) -> bool:
    start = read_start(pid)
    return start is not None and owns_files(job_dir, pid, start[1])


def _read_answer(path: Path) -> SwitchRecord | None:
    try:
        return decode_json(read_artifact(path, _MAX_BYTES), SwitchRecord)
    except (OSError, msgspec.DecodeError):
        return None
