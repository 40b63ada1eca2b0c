"""Disks that are full, read-only, small, slow, frozen, or that return something else."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.check.checking import find, judge, make_policy, run_check
from tests.disks import freezable_disk, small_disk
from tests.guarded.strangers import STRANGER, Kind, Stranger, needs_root, scenery
from tests.shared_disk import shared_disk

from whystuck.check.check import Context
from whystuck.check.policy import read_policy
from whystuck.check.storage import measuring
from whystuck.check.storage.disk import AskedDisk, Disk
from whystuck.check.storage.shm import Shm
from whystuck.evidence.finding import Severity, Verdict
from whystuck.evidence.nodes.checks import CheckResult, Outcome

ROOT = Path(__file__).parents[2]
NO_LIMITS = {
    "min_read_mb_per_s": 0.0, "min_write_mb_per_s": 0.0, "max_sync_ms": 1e6, "min_files_per_s": 0.0,
    "min_free_mb": 0, "min_free_share": 0.0,
}  # fmt: skip
DEADLINE = {"disk": 2.0}


def check(path: Path, **disk: object) -> list[CheckResult]:
    """Check one path; the speed counts only where a test says so."""
    policy = make_policy(disk={"test_mb": 4, **NO_LIMITS, **disk})
    results = run_check(Disk(), path, policy=policy)
    return [one for one in results if one.subject == str(path)]


def test_a_good_disk_passes_with_figures_and_leaves_nothing(tmp_path: Path) -> None:
    (result,) = check(tmp_path)

    assert result.outcome is Outcome.OK, result
    figures = ("write_mb_per_s", "read_mb_per_s", "sync_ms", "files_per_s")
    assert min(result.figures[name] for name in figures) > 0
    assert result.figures["tested_mb"] == pytest.approx(4.19, abs=0.1)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_has_failed_and_says_so() -> None:
    with small_disk("size=256k", is_full=True) as path:
        finding = find(check(path), "N401")

    assert finding.severity is Severity.ERROR
    assert finding.summary == f"{path} cannot be used: it is full"
    assert "make room" in finding.remedies[0]


def test_a_small_disk_has_little_room() -> None:
    with small_disk("size=32m") as path:
        finding = find(check(path, min_free_mb=64), "N401")

    assert finding.severity is Severity.WARNING
    assert finding.measures == {"free_mb": 32, "threshold_mb": 64}


def test_a_read_only_mount_has_failed() -> None:
    with small_disk("size=8m,ro") as path:
        finding = find(check(path), "N401")

    assert finding.severity is Severity.ERROR
    assert "mounted read-only" in finding.summary


def test_a_path_that_is_not_there_has_failed(tmp_path: Path) -> None:
    finding = find(check(tmp_path / "data"), "N401")

    assert "does not exist" in finding.summary


def test_a_file_in_place_of_a_folder_has_failed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    finding = find(check(tmp_path / "file"), "N401")

    assert finding.summary == f"{tmp_path}/file cannot be used: it is no directory"


def test_a_limit_of_this_process_is_told_as_one(tmp_path: Path) -> None:
    check = [sys.executable, "-m", "whystuck", "check", "--only", "disk", "--disk", str(tmp_path)]
    done = subprocess.run(
        ["bash", "-c", 'ulimit -f 16; exec "$@"', "-", *check],
        capture_output=True, text=True, check=False, timeout=240, cwd=ROOT,
    )  # fmt: skip

    said = " ".join(done.stdout.split())
    assert "this process may not write files of that size (`ulimit -f`)" in said
    assert "= fix: ulimit -f unlimited" in said


def test_a_lack_of_descriptors_says_nothing_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("whystuck.check.storage.disk.measure", fail)
    (result,) = check(tmp_path)

    assert (result.outcome, result.problems) == (Outcome.INCOMPLETE, ())
    assert result.reason == "it could not be checked: Too many open files"


def test_a_disk_with_few_files_left_is_told() -> None:
    with small_disk("size=8m,nr_inodes=200") as path:
        for number in range(190):
            (path / str(number)).touch()
        finding = find(check(path), "N401")

    assert "more files only" in finding.summary
    assert finding.severity is Severity.WARNING


def test_a_disk_without_files_left_has_failed() -> None:
    with small_disk("size=8m,nr_inodes=2") as path:
        (path / "one").touch()
        finding = find(check(path), "N401")

    assert finding.summary.endswith("no room for one more file (no inodes are left)")


def test_other_data_than_was_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a disk that changes one byte of the third block after it was written
    def damage(
        data: measuring._Data, blocks: int, budget_s: float, found: measuring.Measured
    ) -> int:
        done = write(data, blocks, budget_s, found)
        path = next(tmp_path.glob(".whystuck-check-*/data"))
        with path.open("r+b") as file:
            file.seek(2 * measuring.BLOCK_BYTES + 4711)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 4]))
            file.flush()
            os.fsync(file.fileno())
        return done

    write = measuring._write
    monkeypatch.setattr(measuring, "_write", damage)

    finding = find(check(tmp_path), "N401")

    assert finding.severity is Severity.ERROR
    assert "returns other data than was written: 1 blocks" in finding.summary
    assert f"at byte {2 * measuring.BLOCK_BYTES}" in finding.summary


def test_a_slow_file_server_is_slow_with_figures(tmp_path: Path) -> None:
    with shared_disk(tmp_path, delay_s=0.02) as disk:
        finding = find(check(disk.path, max_sync_ms=10.0, min_write_mb_per_s=40.0), "N402")

    assert finding.severity is Severity.WARNING
    assert "syncs 4 KiB in" in finding.summary
    assert finding.measures["sync_ms"] > 20
    assert "MB/s, below 40" in finding.summary


@pytest.mark.parametrize("allowed", [0, 1, 30])
def test_a_file_server_that_refuses_direct_writes_is_sound(tmp_path: Path, allowed: int) -> None:
    with shared_disk(tmp_path) as disk:
        disk.direct_writes_left = allowed
        # How fast a busy machine is, is not asked.
        results = run_check(Disk(), disk.path, policy=make_policy(disk=NO_LIMITS))

    assert [one.outcome for one in results] == [Outcome.OK]
    assert results[0].facts["read"] == "after the cache was dropped"


def test_a_file_server_that_hangs_has_failed_and_hangs_nobody(tmp_path: Path) -> None:
    with shared_disk(tmp_path) as disk:
        disk.is_open.clear()
        policy = make_policy(deadlines=DEADLINE)
        results = run_check(Disk(), disk.path, policy=policy)
        finding = find(results, "N401")

    assert finding.severity is Severity.ERROR
    assert "does not answer within 2 s" in finding.summary
    assert finding.details["file_system"] == "fuse.shared"


def test_other_mounts_of_file_servers_are_asked_and_not_written_to(tmp_path: Path) -> None:
    with shared_disk(tmp_path) as disk:
        context = Context(policy=read_policy(), disks=(tmp_path,))
        asked = [one for one in Disk().split(context) if isinstance(one, AskedDisk)]
        (mine,) = [one for one in asked if one.path == disk.path]
        before = disk.count_metadata()
        (result,) = run_check(mine)
        asked_for = {kind for _, kind in disk.counts}

    assert result.outcome is Outcome.OK
    assert disk.count_metadata() > before
    assert not asked_for & {"WRITE", "CREATE", "MKDIR"}


def test_what_another_user_has_mounted_is_not_asked(tmp_path: Path) -> None:
    with shared_disk(tmp_path, uid=STRANGER) as disk:
        context = Context(policy=read_policy(), disks=(tmp_path,))
        asked = [one.path for one in Disk().split(context) if isinstance(one, AskedDisk)]

    assert disk.path not in asked


def test_another_mount_that_hangs_is_found(tmp_path: Path) -> None:
    with shared_disk(tmp_path) as disk:
        disk.is_open.clear()
        policy = make_policy(deadlines=DEADLINE)
        results = run_check(AskedDisk(disk.path), policy=policy)
        finding = find(results, "N401")

    assert "does not answer" in finding.summary


def test_a_frozen_disk_has_failed_and_hangs_nobody(tmp_path: Path) -> None:
    with freezable_disk(tmp_path) as disk:
        disk.freeze()
        results = run_check(Disk(), disk.path, policy=make_policy(deadlines=DEADLINE))
        finding = find(results, "N401")
        disk.thaw()

    assert "does not answer within 2 s" in finding.summary
    assert judge(results).verdict is Verdict.UNFIT


def throttle(disk: Path, bytes_per_s: int) -> Path:
    """Let the block device of a mount write no faster; skip where that cannot be done."""
    device = disk.stat().st_dev
    folder = Path("/sys/fs/cgroup/blkio") / f"whystuck-test-{os.getpid()}"
    try:
        folder.mkdir()
        for kind in ("write", "read"):
            place = folder / f"blkio.throttle.{kind}_bps_device"
            place.write_text(f"{os.major(device)}:{os.minor(device)} {bytes_per_s}")
    except OSError as error:
        if folder.exists():
            folder.rmdir()
        pytest.skip(f"no device can be throttled here: {error.strerror}")
    return folder


def test_a_throttled_device_is_slow_and_bounded(tmp_path: Path) -> None:
    with freezable_disk(tmp_path) as disk:
        folder = throttle(disk.path, 4 << 20)
        own = Path("/sys/fs/cgroup/blkio")
        own /= next(
            line.split(":", 2)[2].lstrip("/").strip()
            for line in Path("/proc/self/cgroup").read_text().splitlines()
            if "blkio" in line.split(":")[1]
        )
        try:
            (folder / "cgroup.procs").write_text(str(os.getpid()))
            finding = find(check(disk.path, min_read_mb_per_s=40, min_write_mb_per_s=40), "N402")
        finally:
            (own / "cgroup.procs").write_text(str(os.getpid()))
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run(["rmdir", str(folder)], check=False, capture_output=True)

    assert finding.measures["write_mb_per_s"] < 12
    assert finding.measures["read_mb_per_s"] < 12
    assert "past the cache" in finding.because[0].text


def test_good_shared_memory_passes() -> None:
    (result,) = run_check(Shm(), policy=make_policy(shm={"min_free_mb": 1}))

    assert result.outcome is Outcome.OK
    assert result.figures["free_mb"] > 1


SHM = 'set -e; mount --make-rprivate /; mount -t tmpfs -o "$1" shm /dev/shm; shift; exec "$@"'


@pytest.mark.parametrize(
    ("options", "severity", "text"),
    [
        ("size=64m", "warning", "/dev/shm has 64 MB free of 64 MB, below 512 MB"),
        ("size=64m,ro", "error", "/dev/shm cannot be written: Read-only file system"),
        ("size=64m,nr_inodes=1", "error", "/dev/shm cannot be written: No space left on device"),
    ],
)
def test_shared_memory_as_containers_have_it_is_told(
    options: str, severity: str, text: str
) -> None:
    # GIVEN mounts of our own, with a /dev/shm as docker makes it, or one that is broken
    if os.geteuid():
        pytest.skip("mounts of our own need root")
    done = subprocess.run(
        [*("unshare", "--mount", "sh", "-c", SHM, "sh", options), sys.executable, "-m", "whystuck",
         "check", "--only", "shm", "--format", "json"],
        capture_output=True, text=True, check=False, timeout=240, cwd=ROOT,
    )  # fmt: skip
    if "mount:" in done.stderr or "unshare:" in done.stderr:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    (finding,) = json.loads(done.stdout)["findings"]

    assert (finding["code"], finding["severity"], finding["summary"]) == ("N403", severity, text)
    assert "--shm-size" in finding["remedies"][0]


def test_little_shared_memory_is_told() -> None:
    (result,) = run_check(Shm(), policy=make_policy(shm={"min_free_mb": 1 << 30}))

    finding = find([result], "N403")
    assert "--shm-size" in finding.remedies[0]
    assert finding.measures["threshold_mb"] == 1 << 30


@needs_root
def test_the_owner_of_a_folder_has_root_write_and_remove_nothing_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN a user who puts links in place of what root's check has made in his folder
    with scenery() as scene, Stranger(Kind.PLAIN, scene.top) as stranger:
        place = scene.outside("traces")

        def swap(
            data: measuring._Data, blocks: int, budget_s: float, found: measuring.Measured
        ) -> int:
            (ours,) = place.glob(".whystuck-check-*")
            stranger.do(
                f"import os; ours = {str(ours)!r}; os.rename(ours, ours + '-aside'); "
                f"os.symlink({str(scene.secrets)!r}, ours)"
            )
            (scene.secrets / "sync").symlink_to(scene.secret)
            return write(data, blocks, budget_s, found)

        write = measuring._write
        monkeypatch.setattr(measuring, "_write", swap)

        measuring.measure(place, 1 << 20, 0.05)

        (scene.secrets / "sync").unlink()
        scene.check_unharmed()


def test_a_folder_that_is_no_longer_ours_is_not_written_to(tmp_path: Path) -> None:
    make = os.mkdir

    def exchange(name: str, mode: int, *, dir_fd: int) -> None:
        make(name, mode, dir_fd=dir_fd)
        (tmp_path / name / "data").write_text("theirs")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "mkdir", exchange)
        with pytest.raises(OSError, match="another user"):
            measuring.measure(tmp_path, 1 << 20, 0.05)

    (theirs,) = tmp_path.glob("*/data")
    assert theirs.read_text() == "theirs"
