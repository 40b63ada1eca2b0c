"""Finds the runs of whystuck in a folder, and chooses the evidence that answers for one of them.

A run is one start of a command by ``whystuck run``, or one ``whystuck snapshot``. An evidence
folder can hold several, and the default folder ``./whystuck`` holds one evidence folder for each
start. Evidence of two runs is never mixed: the newest one is read, and the others are listed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from whystuck.evidence import records
from whystuck.evidence.finding import Gap, JobInfo, OtherRun
from whystuck.evidence.numbers import is_number
from whystuck.evidence.records import IncidentRecord, JobRecord, SignalRecord
from whystuck.guarded.evidence_files import is_folder
from whystuck.parse.errors import ParseError
from whystuck.parse.records import parse_incident, parse_job
from whystuck.read.content import read_content
from whystuck.read.round_logs import ROUNDS_DIR, find_round_files

INCIDENTS_DIR = "incidents"
# Where evidence folders are looked for below a path: `./whystuck/TIME-JOB` is one level down.
_MAX_DEPTH = 3
_MAX_FOLDERS = 10_000
# So many rounds, and records of incidents, are looked at in one evidence folder.
_MAX_RECORDS = 2_000
_MAX_COMMAND = 120
_PARENTS = 3
_Record = TypeVar("_Record", IncidentRecord, JobRecord)


@dataclass(frozen=True)
class Selection:
    """What to read for one answer.

    ``replaced`` are files below ``roots`` that others among the roots stand for, ``incident`` is
    why the evidence was taken, None when unknown.
    """

    roots: tuple[Path, ...]
    replaced: frozenset[Path] = frozenset()
    incident: IncidentRecord | None = None
    job: JobInfo | None = None
    gaps: tuple[Gap, ...] = ()


@dataclass(frozen=True)
class _Incident:
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
class _Run:
    """One run in an evidence folder; ``round`` is -1 for a snapshot."""

    home: Path
    round: int
    started_ns: int
    job: JobRecord | None
    incidents: tuple[_Incident, ...]

    @property
    def path(self) -> Path:
        if self.round < 0:
            return self.incidents[-1].folder
        return self.home / ROUNDS_DIR / str(self.round)

    @property
    def answer(self) -> _Incident | None:
        return max(self.incidents, key=lambda incident: incident.order, default=None)

    @property
    def order(self) -> tuple[int, int]:
        return self.started_ns, self.round


def select_evidence(path: Path, *, only_logs: bool = False, home: Path | None = None) -> Selection:
    """Choose what to read for a path that a user gave.

    Args:
        path: An incident, a round, an evidence folder, a folder of evidence folders, or anything
            else, which is read as it is.
        only_logs: Whether logs are all that is wanted. An incident has the ends of logs only; the
            round has all of them.
        home: The evidence folder of an incident that does not lie in it.

    Returns:
        The files and folders to read, and what is known of them.

    Raises:
        OSError: A folder cannot be listed.
    """
    if path.is_dir() and not _is_incident(path):
        runs = _list_runs_at(path)
        if runs:
            return _select_run(path, runs, only_logs=only_logs)
    # A folder or file inside an incident: the incident is a few levels up.
    for parent in (path, *path.absolute().parents[:_PARENTS]):
        if _is_incident(parent):
            record = _parse_file(parent / records.INCIDENT_FILE, parse_incident)
            if parent == path and record is not None:
                folder = path.absolute()
                # One that is gathered elsewhere has the record of now.
                job = None if home else _read_job(folder.parent.parent, record.round)
                return _select_incidents(path, [_Incident(folder, record)], job, home=home)
            return Selection((path,), incident=_forget_world(record))
    return Selection((path,))


def select_all(
    paths: Sequence[Path], *, only_logs: bool = False, home: Path | None = None
) -> Selection:
    """Choose what to read for several paths, as evidence of one job.

    Args:
        paths: What a user gave.
        only_logs: As in :func:`select_evidence`.
        home: As there.

    Returns:
        All that is chosen for each; the incident is kept where only one path has one.

    Raises:
        OSError: A folder cannot be listed.
    """
    chosen = [select_evidence(path, only_logs=only_logs, home=home) for path in paths]
    known = [one for one in chosen if one.incident is not None]
    only = known[0] if len(known) == 1 else Selection(())
    return Selection(
        tuple(root for one in chosen for root in one.roots),
        frozenset().union(*(one.replaced for one in chosen)),
        only.incident if len(paths) == 1 else _forget_world(only.incident),
        only.job,
        tuple(gap for one in chosen for gap in one.gaps),
    )


def _is_incident(path: Path) -> bool:
    return (path / records.INCIDENT_FILE).is_file()


def _parse_file(path: Path, parse: Callable[[bytes], _Record]) -> _Record | None:
    try:
        return parse(read_content(path))
    except (ParseError, OSError):
        return None


def _forget_world(record: IncidentRecord | None) -> IncidentRecord | None:
    """Forget the size of the world for a part of an incident: the rest is not missing."""
    return record and msgspec.structs.replace(record, world_size=0)


def _list_runs_at(path: Path) -> list[_Run]:
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


def _list_incidents(home: Path) -> Iterator[_Incident]:
    """List the incidents in an evidence folder, or where they were copied to, the newest first."""
    folder = home / INCIDENTS_DIR
    folders = _list_folders(folder if is_folder(folder) else home)
    left = _MAX_RECORDS
    for entry in sorted(folders, key=lambda one: _number_of(one.name))[::-1]:
        if left and _is_incident(entry):
            left -= 1
            record = _parse_file(entry / records.INCIDENT_FILE, parse_incident)
            if record is not None:
                yield _Incident(entry, record)


def _number_of(name: str) -> int:
    return int(name) if is_number(name) else -1


def _list_runs(home: Path) -> list[_Run]:
    """List the runs in one evidence folder, the newest first."""
    incidents = list(_list_incidents(home))[::-1]
    snapshots = [one for one in incidents if one.record.kind == "snapshot"]
    watched = [one for one in incidents if one.record.kind != "snapshot"]
    rounds = home / ROUNDS_DIR
    names = [entry.name for entry in rounds.iterdir()] if is_folder(rounds) else []
    numbers = sorted({_number_of(name) for name in names} - {-1})[-_MAX_RECORDS:]
    by_round = {number: list[_Incident]() for number in numbers}
    for one in watched:
        # Records without a round are of versions that knew one round a folder.
        by_round.setdefault(max(0, one.record.round), []).append(one)
    found = [_make_run(home, number, own, max(by_round)) for number, own in by_round.items()]
    found += [_Run(home, -1, one.record.opened_ns, one.record.job, (one,)) for one in snapshots]
    return sorted(found, key=lambda run: run.order, reverse=True)


def _make_run(home: Path, number: int, own: Sequence[_Incident], last: int) -> _Run:
    job = _read_job(home, number)
    if job is None and number == last:
        job = _parse_file(home / records.JOB_FILE, parse_job)
    job = job or next((one.record.job for one in reversed(own) if one.record.job), None)
    started_ns = job.started_ns if job else min((one.record.opened_ns for one in own), default=0)
    return _Run(home, number, started_ns, job, tuple(own))


def _read_job(home: Path, number: int) -> JobRecord | None:
    return _parse_file(home / ROUNDS_DIR / str(number) / records.JOB_FILE, parse_job)


def _select_run(path: Path, runs: Sequence[_Run], *, only_logs: bool) -> Selection:
    """Choose the newest run, with those of its job on other nodes."""
    newest, *rest = runs
    nodes = [newest, *(run for run in rest if _is_same_job(run, newest))]
    others = [run for run in runs if run not in nodes]
    if path.absolute().parent.name == ROUNDS_DIR:
        others = []
    listed = tuple(_describe_run(run, path) for run in others)
    answers = [run.answer for run in nodes]
    known = [one for one in answers if one is not None]
    if known and not (only_logs and newest.round >= 0 and is_folder(newest.path)):
        chosen = _select_incidents(path, known, newest.job, listed)
        return replace(chosen, gaps=chosen.gaps + _tell_left_out(runs))
    record = _describe_end(newest)
    roots = tuple(run.path for run in nodes if is_folder(run.path))
    job = _describe_job(record, path, roots, listed)
    return Selection(roots, incident=record, job=job, gaps=_tell_left_out(runs))


def _tell_left_out(runs: Sequence[_Run]) -> tuple[Gap, ...]:
    """Say so where an evidence folder may have more rounds or incidents than are looked at."""
    counts = Counter((run.home, 0) for run in runs if run.round >= 0)
    counts += Counter((run.home, 1) for run in runs for _ in run.incidents)
    if max(counts.values(), default=0) < _MAX_RECORDS:
        return ()
    what = f"of rounds and of incidents, the newest {_MAX_RECORDS} are looked at"
    return (Gap(None, "look at all runs", what),)


def _is_same_job(run: _Run, newest: _Run) -> bool:
    """Return whether a run is the part of the newest one's job on another node."""
    job, other = run.job, newest.job
    if job is None or other is None or not job.id or job.id != other.id:
        return False
    return job.node != other.node and (job.ended_ns is None or job.ended_ns > other.started_ns)


def _select_incidents(
    path: Path,
    chosen: Sequence[_Incident],
    job: JobRecord | None,
    others: tuple[OtherRun, ...] = (),
    home: Path | None = None,
) -> Selection:
    """Select incidents of one job, one a node, with the logs of their rounds.

    ``job`` is the record of the whole run, which knows how it ended; None when it is not there.
    """
    logs = [find_round_files(one.folder, one.record, home) for one in chosen]
    roots = tuple(one.folder for one in chosen)
    first = chosen[0].record
    record = msgspec.structs.replace(first, job=job) if job else first
    return Selection(
        roots + tuple(file for one in logs for file in one.files),
        frozenset().union(*(one.replaced for one in logs)),
        record,
        _describe_job(record, path, roots, others),
        tuple(gap for one in logs for gap in one.gaps),
    )


def _describe_end(run: _Run) -> IncidentRecord:
    """Describe the end of a run that has no incident."""
    job = run.job
    if job is None or job.exit_code is None:
        return IncidentRecord(kind="files", round=run.round, job=job)
    return IncidentRecord(
        kind="exit",
        opened_ns=job.ended_ns or 0,
        command_exit=job.exit_code,
        **{name: getattr(job, name) for name in SignalRecord.__struct_fields__},
        cwd=job.cwd,
        round=run.round,
        job=job,
    )


# -------------------------------------------------------------------------- what reports say


def _describe_job(
    record: IncidentRecord, path: Path, roots: Sequence[Path], others: tuple[OtherRun, ...]
) -> JobInfo:
    job = record.job or JobRecord()
    return JobInfo(
        time=format_time(record.opened_ns),
        id=job.id,
        command=" ".join(job.command),
        cwd=job.cwd or record.cwd,
        started=format_time(job.started_ns),
        ended=_describe_exit(job),
        folder=_name_folder(roots[0], path) if roots else "",
        torch_version=job.torch_version,
        python_version=job.python_version,
        whystuck_version=job.whystuck_version,
        other_runs=list(others),
    )


def _describe_exit(job: JobRecord) -> str:
    if job.killed_ns:
        return "ended by whystuck, because it was stuck"
    return "" if job.exit_code is None else f"ended with code {job.exit_code}"


def _describe_run(run: _Run, path: Path) -> OtherRun:
    job, answer = run.job or JobRecord(), run.answer
    return OtherRun(
        path=_name_folder(run.path, path),
        started=format_time(run.started_ns),
        command=" ".join(job.command)[:_MAX_COMMAND],
        exit_code=job.exit_code,
        verdict=answer.record.verdict if answer else "",
    )


def _name_folder(folder: Path, path: Path) -> str:
    try:
        return folder.relative_to(path.absolute()).as_posix()
    except ValueError:
        return folder.name


def format_time(time_ns: int) -> str:
    """Return a time as ``2026-11-23T07:09:17Z``; empty for 0 and for times beyond all calendars."""
    if time_ns <= 0:
        return ""
    try:
        return f"{datetime.fromtimestamp(time_ns // 10**9, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (OverflowError, OSError, ValueError):
        return ""
