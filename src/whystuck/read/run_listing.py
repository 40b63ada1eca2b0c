"""The runs of whystuck in a folder, and the incidents of each, as they lie on the disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from whystuck.evidence import records
from whystuck.evidence.numbers import is_number
from whystuck.evidence.records import IncidentRecord, JobRecord
from whystuck.guarded.evidence_files import is_folder
from whystuck.parse.errors import ParseError
from whystuck.parse.records import parse_incident, parse_job
from whystuck.read.content import read_content
from whystuck.read.round_logs import ROUNDS_DIR

INCIDENTS_DIR = "incidents"
# Where evidence folders are looked for below a path: `./whystuck/TIME-JOB` is one level down.
_MAX_DEPTH = 3
_MAX_FOLDERS = 10_000
# So many rounds, and records of incidents, are looked at in one evidence folder.
MAX_RECORDS = 2_000
_Record = TypeVar("_Record", IncidentRecord, JobRecord)


@dataclass(frozen=True)
class Incident:
    """One incident, and what its record tells."""

    folder: Path
    record: IncidentRecord

    @property
    def order(self) -> tuple[int, int, int]:
        """Sort key of the incident that answers for its run, which has the largest."""
        number = _number_of(self.folder.name)
        record = self.record
        if record.closed_after_s is not None or record.kind == "slow":
            return -1, int(record.kind != "slow"), number  # what stopped the job later says more
        if record.kind != "stall":
            return record.attempt, 1, number
        # The job ended because of the stall, unless an incident of its own says otherwise.
        return record.attempt, 0 if record.command_exit is None else 2, number


@dataclass(frozen=True)
class Run:
    """One run in an evidence folder; ``round`` is -1 for a snapshot."""

    home: Path
    round: int
    started_ns: int
    job: JobRecord | None
    incidents: tuple[Incident, ...]

    @property
    def path(self) -> Path:
        """Where it lies: its folder, or that of its last incident."""
        if self.round < 0:
            return self.incidents[-1].folder
        return self.home / ROUNDS_DIR / str(self.round)

    @property
    def answer(self) -> Incident | None:
        """The incident that answers for it."""
        return max(self.incidents, key=self._rate, default=None)

    def _rate(self, incident: Incident) -> tuple[int, int, int]:
        order = incident.order
        # As a stall after which the job moved again.
        return (-1, *order[1:]) if self.is_past(incident) else order

    def is_past(self, incident: Incident) -> bool:
        """Return whether the launcher started its ranks again after it, and all ended well."""
        is_attempt = incident.record.kind == "exit" and incident.record.command_exit is None
        return is_attempt and self.job is not None and self.job.exit_code == 0

    @property
    def order(self) -> tuple[int, int]:
        """What is larger for a later run."""
        return self.started_ns, self.round


def is_incident(path: Path) -> bool:
    """Return whether a folder is that of an incident."""
    return (path / records.INCIDENT_FILE).is_file()


def parse_file(path: Path, parse: Callable[[bytes], _Record]) -> _Record | None:
    """Return a record; None where there is none, or it cannot be read."""
    try:
        return parse(read_content(path))
    except (ParseError, OSError):
        return None


def forget_world(record: IncidentRecord | None) -> IncidentRecord | None:
    """Forget the size of the world for a part of an incident: the rest is not missing."""
    return record and msgspec.structs.replace(record, world_size=0)


def list_runs_at(path: Path) -> list[Run]:
    """List the runs that a path stands for, the newest first."""
    absolute = path.absolute()
    if absolute.parent.name == ROUNDS_DIR and _number_of(absolute.name) >= 0:
        found = _list_runs(absolute.parent.parent)
        return [run for run in found if run.round == int(absolute.name)]
    if absolute.name in (ROUNDS_DIR, INCIDENTS_DIR):
        absolute = absolute.parent
    homes = [absolute] if _is_home(absolute) else _find_homes(absolute)
    found = [run for home in homes for run in _list_runs(home)]
    return sorted(found, key=lambda run: run.order, reverse=True)


def _is_home(path: Path) -> bool:
    """Return whether a folder is an evidence folder of ours."""
    rounds = path / ROUNDS_DIR
    return any(True for _ in _list_incidents(path)) or (
        is_folder(rounds) and any(_number_of(entry.name) >= 0 for entry in rounds.iterdir())
    )


def _find_homes(path: Path) -> list[Path]:
    """Find the evidence folders below a path, breadth first; no link is followed."""
    found: list[Path] = []
    level, left = [path], _MAX_FOLDERS
    for _ in range(_MAX_DEPTH):
        below: list[Path] = []
        for folder in level:
            for child in _list_folders(folder):
                left -= 1
                if left < 0:
                    return found
                (found if _is_home(child) else below).append(child)
        level = below
    return found


def _list_folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(
                Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)
            )
    except OSError:
        return []


def _list_incidents(home: Path) -> Iterator[Incident]:
    """List the incidents in an evidence folder, or where they were copied to, the newest first."""
    folder = home / INCIDENTS_DIR
    folders = _list_folders(folder if is_folder(folder) else home)
    left = MAX_RECORDS
    for entry in sorted(folders, key=lambda one: _number_of(one.name))[::-1]:
        if left and is_incident(entry):
            left -= 1
            record = parse_file(entry / records.INCIDENT_FILE, parse_incident)
            if record is not None:
                yield Incident(entry, record)


def _number_of(name: str) -> int:
    return int(name) if is_number(name) else -1


def _list_runs(home: Path) -> list[Run]:
    """List the runs in one evidence folder, the newest first."""
    incidents = list(_list_incidents(home))[::-1]
    snapshots = [one for one in incidents if one.record.kind == "snapshot"]
    watched = [one for one in incidents if one.record.kind != "snapshot"]
    rounds = home / ROUNDS_DIR
    names = [entry.name for entry in rounds.iterdir()] if is_folder(rounds) else []
    numbers = sorted({_number_of(name) for name in names} - {-1})[-MAX_RECORDS:]
    by_round = {number: list[Incident]() for number in numbers}
    for one in watched:
        # Records without a round are of versions that knew one round a folder.
        by_round.setdefault(max(0, one.record.round), []).append(one)
    found = [_make_run(home, number, own, max(by_round)) for number, own in by_round.items()]
    found += [Run(home, -1, one.record.opened_ns, one.record.job, (one,)) for one in snapshots]
    return sorted(found, key=lambda run: run.order, reverse=True)


def _make_run(home: Path, number: int, own: Sequence[Incident], last: int) -> Run:
    job = read_job(home, number)
    if job is None and number == last:
        job = parse_file(home / records.JOB_FILE, parse_job)
    job = job or next((one.record.job for one in reversed(own) if one.record.job), None)
    started_ns = job.started_ns if job else min((one.record.opened_ns for one in own), default=0)
    return Run(home, number, started_ns, job, tuple(own))


def read_job(home: Path, number: int) -> JobRecord | None:
    """Return the record of the job of one run."""
    return parse_file(home / ROUNDS_DIR / str(number) / records.JOB_FILE, parse_job)
