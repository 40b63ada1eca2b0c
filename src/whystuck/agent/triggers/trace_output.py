"""Where the traces of a rule go: into the evidence of the job, or else beside the agent."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from whystuck.agent.triggers.rules import TriggerKind
from whystuck.collect.job_dirs import find_job_dir, read_artifact
from whystuck.evidence.decoding import decode_json
from whystuck.evidence.numbers import is_number
from whystuck.evidence.records import INCIDENT_FILE, IncidentRecord
from whystuck.evidence.trigger import TRIGGER_FILE

TRIGGERS_DIR: Final = "triggers"
"""In the folder of the agent: a folder for each time a rule held for a job without evidence."""
MAX_KEPT: Final = 20
"""Folders made by rules that are kept in one place; the oldest go first."""
_JOB_FILE: Final = "job.json"
_INCIDENTS_DIR: Final = "incidents"
_MAX_BYTES: Final = 1 << 20
_MAX_TRIES: Final = 100
_SAFE_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


class _Job(msgspec.Struct):
    """Of ``job.json`` in the folder of a job: where its evidence lies."""

    evidence: str = ""


def find_evidence(job_dir: str, pids: Iterable[int]) -> Path | None:
    """Return the evidence folder of a job that runs under ``whystuck run``.

    Args:
        job_dir: The folder of the job, where it is known.
        pids: Ranks of the job, whose environment tells it otherwise.

    What a process of another user says is not followed: it could lead us anywhere.
    """
    folders = [job_dir] if job_dir else [find_job_dir(pid) for pid in pids]
    for folder in folders:
        if not folder.startswith("/") or not _is_ours(Path(folder)):
            continue
        try:
            data = read_artifact(Path(folder) / _JOB_FILE, _MAX_BYTES)
            job = decode_json(data, _Job)
        except (OSError, ValueError):
            continue
        evidence = Path(job.evidence)
        if evidence.is_absolute() and _is_ours(evidence):
            return evidence
    return None


def make_place(evidence: Path | None, agent_folder: Path, kind: TriggerKind) -> Path:
    """Return the folder for what a rule takes, which is made; raises OSError.

    A stall has an incident already, and the traces belong to it. Otherwise they get a folder with a
    number of its own among the incidents.
    """
    root = evidence / _INCIDENTS_DIR if evidence else agent_folder / TRIGGERS_DIR
    if evidence and kind is TriggerKind.STALL:
        incident = _find_open_stall(root)
        if incident is not None:
            return incident
    root.mkdir(mode=0o755 if evidence else 0o700, parents=bool(evidence), exist_ok=True)
    if not _is_ours(root):  # others may make files beside an agent that serves them
        raise PermissionError(None, f"{root} is another user's")
    _forget_oldest(root)
    numbers = [int(path.name) for path in root.iterdir() if is_number(path.name)]
    first = max(numbers, default=-1) + 1
    for number in range(first, first + _MAX_TRIES):
        folder = root / f"{number:03d}"
        try:
            folder.mkdir()
        except FileExistsError:  # somebody was quicker
            continue
        return folder
    raise FileExistsError(f"no number is free in {root}")


def node_folder(place: Path, node: str) -> Path:
    """Return the folder of this node in such a place, which is made; raises OSError."""
    folder = place / (node if _SAFE_NODE.fullmatch(node) else "node")
    folder.mkdir(exist_ok=True)
    return folder


def sort_in(file: str, folder: Path, rank: int) -> str:
    """Move a trace into the folder of its rank; return where it lies, moved or not."""
    path = Path(file)
    if rank < 0 or path.parent != folder:
        return file
    target = folder / f"rank-{rank}" / path.name
    try:
        target.parent.mkdir(exist_ok=True)
        path.rename(target)
    except OSError:
        return file
    return str(target)


def _is_ours(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except (OSError, ValueError):
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _find_open_stall(incidents: Path) -> Path | None:
    """Return the last incident, when it is a stall that goes on."""
    try:
        names = sorted((path.name for path in incidents.iterdir() if is_number(path.name)), key=int)
    except OSError:
        return None
    for name in reversed(names):
        folder = incidents / name
        try:
            with (folder / INCIDENT_FILE).open("rb") as file:
                record = decode_json(file.read(_MAX_BYTES), IncidentRecord)
        except (OSError, ValueError):
            continue
        return folder if record.kind == "stall" and record.closed_after_s is None else None
    return None


def _forget_oldest(root: Path) -> None:
    """Remove the oldest folders that rules have made, when there are too many."""
    ours = sorted(
        (path for path in root.iterdir() if is_number(path.name) and _is_made_by_rule(path)),
        key=lambda path: int(path.name),
    )
    for folder in ours[: max(0, len(ours) - MAX_KEPT + 1)]:
        with suppress(OSError):
            shutil.rmtree(folder)


def _is_made_by_rule(folder: Path) -> bool:
    return (folder / TRIGGER_FILE).is_file() and not (folder / INCIDENT_FILE).exists()
