"""A look at a job that runs already, prepared or not."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from whystuck import __version__
from whystuck.collect.node.devices import collect_devices
from whystuck.collect.node.ras import collect_ras
from whystuck.collect.processes.claims import read_command
from whystuck.collect.processes.discover import FoundJob, FoundRank, discover_jobs
from whystuck.collect.processes.proc import read_inner_pid
from whystuck.collect.processes.proc_files import read_environment, read_start
from whystuck.collect.processes.target import Target
from whystuck.collect.scene import Scene, ScenePlan
from whystuck.collect.stores import open_store
from whystuck.evidence.errors import UsageError
from whystuck.evidence.finding import Confidence, Gap, Report, Verdict
from whystuck.evidence.private import private_files
from whystuck.evidence.records import IncidentRecord, JobRecord
from whystuck.launch.incidents.folder import EvidenceFolder, job_ids_of, new_job_record
from whystuck.launch.incidents.staging import staging
from whystuck.launch.incidents.upload import copying
from whystuck.pipeline import Choice, diagnose_paths, render_all

_PLAN = ScenePlan(samples=3, interval_s=0.8, beside=(collect_ras, collect_devices))
# What three samples leave open is looked at for so long: a job that only waits moves meanwhile.
_STILL_S = 11.0
# A rank at work keeps others waiting for longer before it is late.
_BUSY_S = 21.0


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
    with private_files():
        folder = EvidenceFolder(evidence, socket.gethostname() or "localhost", with_round=False)
        with copying(store, url, folder, say), staging(folder, say, is_wanted=store is None):
            return _take(job, folder, say)


def _take(job: FoundJob, folder: EvidenceFolder, say: Callable[[str], None]) -> tuple[Report, Path]:
    targets = [_target_of(one, folder.node) for one in job.ranks]
    incident = folder.next_incident()
    work = folder.work_of(incident)
    work.mkdir(parents=True, exist_ok=True)
    record = IncidentRecord(
        kind="snapshot",
        opened_ns=time.time_ns(),
        world_size=job.world_size or len(targets),
        job=_describe_job(job, folder),
    )
    folder.write_incident(work, record)
    scene = Scene(work, targets)
    if any(one.guessed for one in job.ranks):
        scene.gaps.append(
            Gap(None, "rank numbers", "nothing names them; ranks are numbered by start time")
        )
    scene.take(_PLAN)
    scene.copy_records()
    choice = Choice(home=folder.root)
    report = diagnose_paths([work], choice=choice)
    seconds = _choose_seconds(report) if _is_bare(job) else 0.0
    if seconds:
        say(f"some ranks wait: looking for up to {seconds:.0f} s more whether they move\n")
        scene.look_on(seconds, _PLAN)
        scene.copy_records()
        report = diagnose_paths([work], choice=choice)
    for name, data in render_all(report).items():
        folder.write(work / name, data)
    return report, incident


def _is_bare(job: FoundJob) -> bool:
    """Tell whether no rank has a record of its ops, which would tell more than another look."""
    return all(one.job_dir is None for one in job.ranks)


def _choose_seconds(report: Report) -> float:
    """Choose how long to look on at a job that may be stuck, or only slow."""
    if "stacks" not in report.coverage.sources:
        return 0.0
    first = report.findings[0] if report.findings else None
    if report.verdict is Verdict.WAITING:
        return _BUSY_S
    if report.verdict is Verdict.INCONCLUSIVE:
        return _STILL_S
    is_open = first is not None and first.confidence is Confidence.POSSIBLE
    return _STILL_S if is_open and report.verdict is Verdict.STUCK else 0.0


def _describe_job(job: FoundJob, folder: EvidenceFolder) -> JobRecord:
    """Describe a job by its first rank: nobody knows what its launcher was started with."""
    record = new_job_record([read_command(job.ranks[0].pid)], folder.node, __version__)
    record.id = ""
    with suppress(psutil.Error, OSError):
        record.id = next(iter(job_ids_of(read_environment(job.ranks[0].pid))), "")
        process = psutil.Process(job.ranks[0].pid)
        record.started_ns = int(process.create_time() * 1e9)
        record.cwd = process.cwd()
    return record


def _target_of(found: FoundRank, node: str) -> Target:
    return Target(
        rank=found.rank,
        pid=found.pid,
        node=node,
        job_dir=found.job_dir,
        file_pid=max(read_inner_pid(found.pid), 0),
        start_ticks=(read_start(found.pid) or (0, 0))[1],
    )


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
