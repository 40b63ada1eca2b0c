"""Finds the runs of whystuck in a folder, and chooses the evidence that answers for one of them.

A run is one start of a command by ``whystuck run``, or one ``whystuck snapshot``. An evidence
folder can hold several, and the default folder ``./whystuck`` holds one evidence folder for each
start. Evidence of two runs is never mixed: the newest one is read, and the others are listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from whystuck.evidence import records
from whystuck.evidence.finding import Gap
from whystuck.evidence.records import IncidentRecord, JobRecord, SignalRecord, count_restarts
from whystuck.evidence.sections import JobInfo, OtherRun
from whystuck.guarded.evidence_files import is_folder
from whystuck.parse.records import parse_incident
from whystuck.read.round_logs import ROUNDS_DIR, find_round_files
from whystuck.read.run_listing import (
    MAX_RECORDS,
    Incident,
    Run,
    forget_world,
    is_incident,
    list_runs_at,
    parse_file,
    read_job,
)

_MAX_COMMAND = 120
_PARENTS = 3


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
    if path.is_dir() and not is_incident(path):
        runs = list_runs_at(path)
        if runs:
            return _select_run(path, runs, only_logs=only_logs)
    # A folder or file inside an incident: the incident is a few levels up.
    for parent in (path, *path.absolute().parents[:_PARENTS]):
        if is_incident(parent):
            record = parse_file(parent / records.INCIDENT_FILE, parse_incident)
            if parent == path and record is not None:
                folder = path.absolute()
                # One that is gathered elsewhere has the record of now.
                job = None if home else read_job(folder.parent.parent, record.round)
                return _select_incidents(path, [Incident(folder, record)], job, home=home)
            return Selection((path,), incident=forget_world(record))
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
        only.incident if len(paths) == 1 else forget_world(only.incident),
        only.job,
        tuple(gap for one in chosen for gap in one.gaps),
    )


def _select_run(path: Path, runs: Sequence[Run], *, only_logs: bool) -> Selection:
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
        is_past = all(run.is_past(run.answer) for run in nodes if run.answer is not None)
        counted = _count_attempts(newest.job, known[0]) if is_past else newest.job
        chosen = _select_incidents(path, known, counted, listed)
        record = chosen.incident and msgspec.structs.replace(chosen.incident, is_past=is_past)
        return replace(chosen, incident=record, gaps=chosen.gaps + _tell_left_out(runs))
    record = _describe_end(newest)
    roots = tuple(run.path for run in nodes if is_folder(run.path))
    job = _describe_job(record, path, roots, listed)
    return Selection(roots, incident=record, job=job, gaps=_tell_left_out(runs))


def _count_attempts(job: JobRecord | None, past: Incident) -> JobRecord | None:
    """Count the restart after an incident in the record of a job that has none of them."""
    restarts = past.record.attempt + 1
    return job and msgspec.structs.replace(job, restarts=max(job.restarts, restarts))


def _tell_left_out(runs: Sequence[Run]) -> tuple[Gap, ...]:
    """Say so where an evidence folder may have more rounds or incidents than are looked at."""
    counts = Counter((run.home, 0) for run in runs if run.round >= 0)
    counts += Counter((run.home, 1) for run in runs for _ in run.incidents)
    if max(counts.values(), default=0) < MAX_RECORDS:
        return ()
    what = f"of rounds and of incidents, the newest {MAX_RECORDS} are looked at"
    return (Gap(None, "look at all runs", what),)


def _is_same_job(run: Run, newest: Run) -> bool:
    """Return whether a run is the part of the newest one's job on another node."""
    job, other = run.job, newest.job
    if job is None or other is None or not job.id or job.id != other.id:
        return False
    return job.node != other.node and (job.ended_ns is None or job.ended_ns > other.started_ns)


def _select_incidents(
    path: Path,
    chosen: Sequence[Incident],
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


def _describe_end(run: Run) -> IncidentRecord:
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
    if job.exit_code is None:
        return ""
    times = f" after {count_restarts(job.restarts)}" if job.restarts else ""
    how = "finished" if times and not job.exit_code else "ended"
    return f"{how} with code {job.exit_code}{times}"


def _describe_run(run: Run, path: Path) -> OtherRun:
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
