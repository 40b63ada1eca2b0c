"""The files of a round that belong to an incident: its checks of nodes, and its logs.

An incident can be copied and read alone, so the end of each log lies in it. Where the round is
still beside it, as in the folder of a job, the logs themselves are read in their place.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from whystuck.evidence import records
from whystuck.evidence.finding import Gap
from whystuck.evidence.nodes.checks import CHECKS_FILE
from whystuck.evidence.records import IncidentRecord
from whystuck.guarded.evidence_files import is_folder

ROUNDS_DIR = "rounds"
# Reading them must not keep anybody waiting for the report of a job that has ended.
MAX_BYTES = 256 << 20
_OLD_LOG = re.compile(r"log-attempt-(\d+)(?:\.1)?\.txt")
_LAUNCHER_LOG = re.compile(r"launcher(?:\.1)?\.txt")


@dataclass(frozen=True)
class RoundLogs:
    """Files to read beside an incident, and those in it that they stand for."""

    files: tuple[Path, ...] = ()
    replaced: frozenset[Path] = frozenset()
    gaps: tuple[Gap, ...] = ()


def find_round_files(
    folder: Path, record: IncidentRecord | None, home: Path | None = None
) -> RoundLogs:
    """Find the checks of nodes before a round, and the logs of one in which a job ended badly.

    Args:
        folder: The folder of the incident.
        record: Its record; no log is found when it is none of a bad end. What ranks print after a
            stall belongs to the end of the job.
        home: The evidence folder with the round; that in which the incident lies when left out.

    Returns:
        The files, when the round lies beside the incident.
    """
    logs = _find_logs(folder, record, home)
    return replace(logs, files=(*_find_checks(folder, record, home), *logs.files))


def _find_logs(folder: Path, record: IncidentRecord | None, home: Path | None) -> RoundLogs:
    """Find the logs of the round."""
    if record is None or record.kind != "exit" or record.round < 0 or not record.command_exit:
        return RoundLogs()
    folder = folder.absolute()
    found: list[Path] = []
    replaced: list[Path] = []
    try:
        for node in _list((home or folder.parent.parent) / ROUNDS_DIR / str(record.round)):
            for part in [node, *_list(node)]:
                logs = _choose_logs(part, node, record.attempt)
                found += logs
                copy = folder / part.relative_to(node.parent)
                name = records.LAUNCHER_LOG_FILE if part == node else records.LOG_FILE
                replaced += [copy / name] if logs else []
        size = sum(path.stat().st_size for path in found)
    except OSError:  # they go on being moved while the job runs
        return RoundLogs()
    if size > MAX_BYTES:
        reason = f"they have {size >> 20} MiB: only their ends are read; give their folder for all"
        return RoundLogs(gaps=(Gap(None, f"logs of round {record.round}", reason),))
    return RoundLogs(tuple(found), frozenset(replaced))


def _find_checks(
    folder: Path, record: IncidentRecord | None, home: Path | None
) -> tuple[Path, ...]:
    """Find what checks of nodes found before the round."""
    if record is None or record.round < 0:
        return ()
    rounds = (home or folder.absolute().parent.parent) / ROUNDS_DIR
    try:
        places = [node / CHECKS_FILE for node in _list(rounds / str(record.round))]
        return tuple(place for place in places if place.is_file())
    except OSError:
        return ()


def _list(folder: Path) -> list[Path]:
    """List the folders in a folder; none when it is not there."""
    if not is_folder(folder):
        return []
    with os.scandir(folder) as entries:
        found = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return sorted(found)


def _choose_logs(folder: Path, node: Path, attempt: int) -> list[Path]:
    """Choose the logs of one attempt: the last one has the plain names."""
    files = sorted(
        path for path in folder.glob("*.txt") if path.is_file() and not path.is_symlink()
    )
    if folder == node:
        return [path for path in files if _LAUNCHER_LOG.fullmatch(path.name)]
    if not folder.name.startswith(records.RANK_DIR_PREFIX):
        return []
    old = {path: int(match[1]) for path in files if (match := _OLD_LOG.fullmatch(path.name))}
    own = [path for path in files if old.get(path) == attempt]
    if own or any(number > attempt for number in old.values()):
        return own
    return [path for path in files if path.name.startswith("log") and path not in old]
