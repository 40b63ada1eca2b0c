"""The jobs that run on this node under ``whystuck run``, as this user."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from whystuck.collect.job_dirs import read_artifact
from whystuck.collect.processes.proc_files import read_environment
from whystuck.evidence.decoding import decode_json
from whystuck.evidence.errors import UsageError
from whystuck.launch.incidents.folder import job_ids_of
from whystuck.launch.jobdir import list_job_dirs, owner_of
from whystuck.launch.switch.ranks import live_ranks

_FILE_NAME = "job.json"
_MAX_BYTES = 1 << 20
_NO_ID = "none"  # torchrun's when nobody gave it one
_SHOWN_CHARS = 60


class RunningJob(msgspec.Struct, kw_only=True):
    """``job.json`` in the job folder: what runs there."""

    id: str = ""
    pid: int = 0
    node: str = ""
    command: list[str] = []
    evidence: str = ""
    started_ns: int = 0


@dataclass(frozen=True)
class FoundJob:
    """A running job; any of its ``names`` may choose it, the first is the one shown."""

    folder: Path
    job: RunningJob
    names: tuple[str, ...]

    @property
    def title(self) -> str:
        """Name and command, for one line."""
        command = " ".join(self.job.command)
        short = command if len(command) <= _SHOWN_CHARS else f"{command[:_SHOWN_CHARS]}…"
        return f"{self.names[0]} ({short})"


def write_running_job(
    job_dir: Path, command: list[str], node: str, evidence: Path, pid: int
) -> None:
    """Tell other commands of this user what runs here; ``pid`` is that of ``whystuck run``."""
    record = RunningJob(
        id=next(iter(job_ids_of(os.environ)), ""),
        pid=pid,
        node=node,
        command=command,
        evidence=str(evidence),
        started_ns=time.time_ns(),
    )
    part = job_dir / f"{_FILE_NAME}.part"
    with suppress(OSError):  # a job that others do not find runs as well
        part.write_bytes(msgspec.json.encode(record))
        part.replace(job_dir / _FILE_NAME)


def find_running_jobs() -> list[FoundJob]:
    """Return the running jobs of this user on this node, oldest first."""
    found = []
    for folder in list_job_dirs():
        try:
            data = read_artifact(folder / _FILE_NAME, _MAX_BYTES)
            job = decode_json(data, RunningJob)
            pid = owner_of(folder)
        except (OSError, ValueError):
            continue  # it starts, or ends, this moment
        names = dict.fromkeys([job.id, str(job.pid or pid), *_launcher_ids(folder)])
        found.append(FoundJob(folder, job, tuple(name for name in names if name)))
    return found


def choose_running_job(wanted: str | None) -> FoundJob:
    """Return the job that ``wanted`` names, or the only one.

    Args:
        wanted: The id that the scheduler or launcher gave it, the pid of its supervisor, or the
            beginning of one of them; None for the only job.

    Raises:
        UsageError: There is no such job, or more than one.
    """
    jobs = find_running_jobs()
    if not jobs:
        raise UsageError(
            "no job runs here under `whystuck run`",
            hint="run this on the node of the job, as the same user",
        )
    fitting = jobs if wanted is None else _select(jobs, wanted)
    if len(fitting) == 1:
        return fitting[0]
    listed = "; ".join(job.title for job in fitting or jobs)
    if not fitting:
        raise UsageError(f"no job `{wanted}` runs here", hint=f"these do: {listed}")
    which = f"{len(fitting)} jobs run here" if wanted is None else f"`{wanted}` may be"
    raise UsageError(f"{which}: {listed}", hint=f"choose one, e.g. `--job {_tell_apart(fitting)}`")


def find_job_of(evidence: Path) -> FoundJob:
    """Return the job that writes to an evidence folder, or to one in it.

    Raises:
        UsageError: None on this node does, or more than one.
    """
    wanted = evidence.resolve()
    fitting = [job for job in find_running_jobs() if _is_below(Path(job.job.evidence), wanted)]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        raise UsageError(
            f"no job that runs here writes to `{evidence}`",
            hint="run this on the node of the job, as the same user",
        )
    listed = "; ".join(job.title for job in fitting)
    raise UsageError(f"{len(fitting)} jobs write there: {listed}", hint="name one of them")


def _is_below(folder: Path, wanted: Path) -> bool:
    place = folder.resolve()
    return wanted in (place, *place.parents)


def _select(jobs: Sequence[FoundJob], wanted: str) -> list[FoundJob]:
    exact = [job for job in jobs if wanted in job.names]
    return exact or [job for job in jobs if any(name.startswith(wanted) for name in job.names)]


def _tell_apart(jobs: Sequence[FoundJob]) -> str:
    """Return a name of the first job that no other has."""
    others = {name for job in jobs[1:] for name in job.names}
    return next((name for name in jobs[0].names if name not in others), jobs[0].names[0])


def _launcher_ids(folder: Path) -> list[str]:
    """Return the ids that the ranks were given by their launcher, such as torchrun's."""
    ids = []
    for rank in live_ranks(folder):
        try:
            ids += job_ids_of(read_environment(rank.pid))
        except OSError:
            continue
    return [name for name in ids if name != _NO_ID]
