"""A look at a job that runs already, prepared or not."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from whystuck.collect.discover import FoundJob, discover_jobs
from whystuck.collect.scene import Scene, ScenePlan
from whystuck.collect.stores import open_store
from whystuck.collect.target import Target
from whystuck.evidence.errors import UsageError
from whystuck.evidence.finding import Gap, Report
from whystuck.evidence.records import IncidentRecord
from whystuck.launch.folder import EvidenceFolder
from whystuck.launch.upload import copying
from whystuck.pipeline import diagnose_paths, render_all

_PLAN = ScenePlan(samples=3, interval_s=0.8)


def take_snapshot(
    pids: Sequence[int], evidence: Path, url: str = "", say: Callable[[str], None] = print
) -> tuple[Report, Path]:
    """Take and diagnose evidence of the ranks on this node.

    Args:
        pids: Ranks or a launcher to choose the job by; empty for the only job of this node.
        evidence: Where the evidence folder is made.
        url: Where it is copied to; empty for nowhere.
        say: Prints a text for the user.

    Returns:
        The report, and the folder of the incident.

    Raises:
        UsageError: No job, or more than one, was found, or the URL cannot be used.
        StartError: The evidence folder cannot be written.
    """
    store = open_store(url) if url else None
    job = choose_job(discover_jobs(pids), pids)
    folder = EvidenceFolder(evidence, socket.gethostname() or "localhost", with_round=False)
    with copying(store, url, folder, say):
        return _take(job, folder)


def _take(job: FoundJob, folder: EvidenceFolder) -> tuple[Report, Path]:
    targets = [Target(one.rank, one.pid, folder.node, one.job_dir) for one in job.ranks]
    incident = folder.next_incident()
    record = IncidentRecord(
        kind="snapshot", opened_ns=time.time_ns(), world_size=job.world_size or len(targets)
    )
    folder.write_incident(incident, record)
    scene = Scene(incident, targets)
    if any(one.guessed for one in job.ranks):
        scene.gaps.append(
            Gap(None, "rank numbers", "nothing names them; ranks are numbered by start time")
        )
    scene.take(_PLAN)
    scene.copy_records()
    report = diagnose_paths([incident])
    for name, data in render_all(report).items():
        folder.write(incident / name, data)
    return report, incident


def choose_job(jobs: Sequence[FoundJob], pids: Sequence[int]) -> FoundJob:
    """Return the one job; raises UsageError when there is none, or a choice to make."""
    if len(jobs) == 1:
        return jobs[0]
    if jobs:
        names = "; ".join(f"{job.name}: {len(job.ranks)} ranks" for job in jobs)
        raise UsageError(
            f"{len(jobs)} jobs run on this node ({names})",
            hint=f"choose one by a rank or its launcher, e.g. `--pid {jobs[0].ranks[0].pid}`",
        )
    missing = [pid for pid in pids if not psutil.pid_exists(pid)]
    if missing:
        raise UsageError(
            f"there is no process {missing[0]}", hint="list the ranks with `pgrep -af python`"
        )
    raise UsageError(
        "no rank of a PyTorch job was found on this node",
        hint="run it where the job runs, as the same user, or name the ranks with `--pid PID`",
    )
