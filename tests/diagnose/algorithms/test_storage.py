"""Ranks that a file system does not answer, and those that only have a slow one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.diagnose.scenes import MODULE, TORCH, Job, at

from whystuck.evidence.finding import Confidence, Verdict
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.records import FileWait

WORKER_LOOP = Frame("_worker_loop", f"{TORCH}/utils/data/_utils/worker.py", 350)
TRY_GET = Frame("_try_get_data", f"{TORCH}/utils/data/dataloader.py", 1275)
READING = (at("/job/shards.py", 12, "read_shard"), at("/job/train.py", 8), MODULE)
WAIT = FileWait(
    102, "", True, "D", "folio_wait_bit_common", "read", "/data/shard-7", 40,
    "/data", "fuse.s3", "s3",
    is_remote=True,
)  # fmt: skip


def stalled(**change: Any) -> Job:
    """A job in which rank 2 is kept in a file while the others are in an all_reduce."""
    job = Job().steps().waits((0, 1, 3)).stands(2, READING, state="D")
    return keep(job, 2, WAIT, **change)


def keep(job: Job, rank: int, wait: FileWait, *, worker: bool = False, **change: Any) -> Job:
    """Put a wait into all looks at a rank; ``change`` is what the last look shows."""
    looks = [
        number
        for number, look in enumerate(job.processes)
        if look.rank == rank and look.worker is worker
    ]
    for number in looks:
        now = replace(wait, **change) if number == looks[-1] else wait
        job.processes[number] = replace(job.processes[number], file_waits=(now,))
    return job


def test_rank_that_never_runs_in_a_read_is_named_with_mount_and_line() -> None:
    finding = stalled().finding()
    assert (finding.code, finding.confidence) == ("H116", Confidence.CERTAIN)
    assert finding.culprits.ranks == [2]
    assert finding.where[0].line == 12
    expected = {"mount": "/data", "fs_type": "fuse.s3", "path": "/data/shard-7", "state": "D"}
    assert expected.items() <= finding.details.items()


def test_thread_that_ran_between_two_looks_was_answered() -> None:
    assert "H116" not in stalled(switches=41).codes()


def test_other_file_in_the_next_look_is_progress() -> None:
    assert "H116" not in stalled(path="/data/shard-8").codes()


def test_disk_that_completes_requests_is_slow_and_not_silent() -> None:
    job = Job().steps().waits((0, 1, 3)).stands(2, READING, state="D")
    disk = replace(WAIT, is_remote=False, fs_type="ext4", done=900)
    assert "H116" not in keep(job, 2, disk, done=950).codes()
    assert keep(job, 2, disk).finding().confidence is Confidence.LIKELY


def test_wait_of_a_loader_worker_is_that_of_its_rank() -> None:
    job = Job().steps().waits((0, 1, 3)).stands(2, (TRY_GET, at("/job/train.py", 8), MODULE))
    frames = (at("/job/shards.py", 12, "read_shard"), WORKER_LOOP, MODULE)
    job = keep(job.stands(2, frames, worker=900), 2, WAIT, worker=True)
    finding = job.finding()
    assert (finding.code, finding.where[0].line) == ("H116", 12)
    assert "worker 900" in finding.summary


def test_other_child_of_a_rank_is_not_its_worker() -> None:
    job = Job().steps().waits((0, 1, 3)).stands(2, (TRY_GET, at("/job/train.py", 8), MODULE))
    job = job.stands(2, (at("/job/server.py", 3, "serve"), MODULE), worker=900)
    assert "H116" not in keep(job, 2, WAIT, worker=True).codes()


def test_second_thread_matters_only_when_the_main_thread_stands_still() -> None:
    beside = replace(WAIT, is_main=False, thread_id=107, thread_name="saver")
    still = Job().steps().waits((0, 1, 3)).stands(2, READING)
    assert keep(still, 2, beside).finding().confidence is Confidence.LIKELY
    busy = Job().steps().waits((0, 1, 3)).stands(2, READING, cpu_share=0.9)
    assert "H116" not in keep(busy, 2, beside).codes()


def test_all_ranks_at_a_silent_mount_are_named_together() -> None:
    job = Job().steps()
    for rank in range(4):
        keep(job.stands(rank, READING, state="D"), rank, WAIT)
    report = job.of_kind("snapshot", stalled_s=0.0).report()
    assert (report.verdict, report.findings[0].code) == (Verdict.STUCK, "H116")
    assert report.findings[0].culprits.ranks == [0, 1, 2, 3]


def test_state_d_without_any_place_is_only_possible() -> None:
    nowhere = FileWait(102, "", True, "D", switches=40)
    job = Job().steps().waits((0, 1, 3)).stands(2, READING, state="D")
    assert keep(job, 2, nowhere).finding().confidence is Confidence.POSSIBLE


def test_long_fsync_on_a_disk_that_works_is_a_slow_checkpoint() -> None:
    saving = (at("/job/checkpoint.py", 20, "save_checkpoint"), MODULE)
    job = Job().steps().waits((0, 1, 3)).stands(2, saving, state="D")
    disk = replace(WAIT, is_remote=False, fs_type="ext4", call="fsync", done=900)
    report = keep(job, 2, disk, done=950).report()
    assert (report.verdict, report.findings[0].code) == (Verdict.WAITING, "H118")
