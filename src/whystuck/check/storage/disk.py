"""Storage: what is written comes back, and how fast (N401, N402)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from whystuck.check.check import Check, Context
from whystuck.check.storage.measuring import BLOCK_BYTES, Measured, measure
from whystuck.collect.node.mounts import Mounts
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult, Outcome

_FAILED, _SLOW = "N401", "N402"
_MB = 1 << 20
_MEMORY_TYPES = ("tmpfs", "ramfs")
_WHY = {
    errno.ENOSPC: "it is full",
    errno.EDQUOT: "the quota is used up",
    errno.EROFS: "it is mounted read-only",
    errno.EACCES: "this user may not write there",
    errno.EPERM: "this user may not write there",
    errno.ENOENT: "it does not exist",
    errno.EIO: "the device reports an input/output error",
    errno.ESTALE: "the file server has forgotten it (stale file handle)",
    errno.ENOTDIR: "it is no directory",
    errno.ENOTCONN: "the program that serves it has ended (FUSE)",
    errno.EFBIG: "this process may not write files of that size (`ulimit -f`)",
}
# What this process lacks, and no fault of the file system.
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
_REMEDIES = {
    errno.ENOSPC: "make room: `du -xh --max-depth=1 {path} | sort -h`",
    errno.EDQUOT: "make room, or ask for a larger quota: `quota -s`",
    errno.EROFS: "`dmesg -T | tail` tells why: a file system with errors is mounted read-only",
    errno.ENOENT: "mount it on this node, or correct the path",
    errno.EIO: "`dmesg -T | tail` and `smartctl -a DEVICE`; take the node out of service",
    errno.ESTALE: "mount it again: `umount -l {path} && mount {path}`",
    errno.ENOTDIR: "name the folder, not a file in it",
    errno.ENOTCONN: "mount it again: `umount -l {path}`, and start its program anew",
    errno.EFBIG: "ulimit -f unlimited   # in the script that starts the job",
}


@dataclass(frozen=True)
class _Place:
    """Where a path lies, as far as the table of mounts tells."""

    path: Path
    mount: str
    fs_type: str

    @property
    def is_memory(self) -> bool:
        return self.fs_type in _MEMORY_TYPES


class Disk(Check):
    """A path that the job reads or writes."""

    name = "disk"
    codes = (_FAILED, _SLOW)
    is_alone = True

    def __init__(self, path: Path = Path()) -> None:
        self.path = path

    @property
    def subject(self) -> str:
        """The path."""
        return str(self.path)

    def split(self, context: Context) -> Sequence[Check]:
        """Check each path, and ask each other mount of a server whether it answers."""
        written = [Disk(path) for path in dict.fromkeys(context.disks)]
        points = {_find_place(path).mount for path in context.disks}
        shared = [
            mount.point
            for mount in Mounts(os.getpid()).all
            if mount.is_remote
            and mount.is_shared
            and mount.point not in points
            # Any user may mount FUSE, which answers to him alone: it is no part of the node.
            and mount.uid in {0, os.geteuid()}
        ]
        return [*written, *(AskedDisk(Path(point)) for point in dict.fromkeys(shared))]

    def run(self, context: Context) -> CheckResult:
        """Write, read and compare."""
        place, policy = _find_place(self.path), context.policy.disk
        facts = {"file system": f"{place.fs_type or 'unknown'} at {place.mount or '?'}"}
        try:
            room = os.statvfs(self.path)
            free = room.f_bavail * room.f_frsize
            facts["free"] = f"{free / 1e9:.1f} of {room.f_blocks * room.f_frsize / 1e9:.1f} GB"
            size = min(policy.test_mb * _MB, max(BLOCK_BYTES, free // 4))
            found = measure(self.path, size, policy.budget_s)
        except OSError as error:
            if error.errno in _OURS:
                return self._leave_open(error, facts)
            return self.make_result([self._fail(error)], facts=facts)
        if found.is_direct:
            facts["read"] = "past the cache (O_DIRECT)"
        else:
            facts["read"] = "from memory" if place.is_memory else "after the cache was dropped"
        problems = [
            *_judge_data(place, found),
            *_judge_room(place, room, context),
            *(_judge_speed(place, found, context) if not place.is_memory else ()),
        ]
        return self.make_result(problems, facts=facts, figures=_list_figures(found))

    def make_late_result(self, context: Context, deadline_s: float) -> CheckResult:
        """Return what it means that a file system does not answer: that it has failed."""
        del context
        place = _find_place(self.path)
        problem = CheckProblem(
            code=_FAILED,
            severity="error",
            text=f"the file system of {self.path} does not answer within {deadline_s:g} s",
            subject=self.subject,
            because=(f"it is {place.fs_type or 'unknown'} at {place.mount or '?'}",),
            remedies=(
                "look at the file server and the network: `dmesg -T | grep -i 'not responding'`",
                f"take it away until it answers: `umount -l {place.mount or self.path}`",
            ),
            measures={"threshold_s": deadline_s},
            details={"path": str(self.path), "file_system": place.fs_type, "reason": "no answer"},
        )
        facts = {"file system": f"{place.fs_type or 'unknown'} at {place.mount or '?'}"}
        return CheckResult(
            name=self.name,
            subject=self.subject,
            outcome=Outcome.FAILED,
            facts=facts,
            problems=(problem,),
        )

    def _leave_open(self, error: OSError, facts: Mapping[str, str]) -> CheckResult:
        """Return that nothing is known of the file system."""
        reason = f"it could not be checked: {error.strerror}"
        outcome = Outcome.INCOMPLETE
        result = self.make_result(facts=facts)
        return replace(result, outcome=outcome, reason=reason)

    def _fail(self, error: OSError) -> CheckProblem:
        reason = _WHY.get(error.errno or 0, error.strerror or str(error))
        if error.errno == errno.ENOSPC and self._count_files_free() == 0:
            reason = "it has no room for one more file (no inodes are left)"
        remedy = _REMEDIES.get(error.errno or 0, "`ls -ld {path}` and `mount` tell more")
        return CheckProblem(
            code=_FAILED,
            severity="error",
            text=f"{self.path} cannot be used: {reason}",
            subject=self.subject,
            because=(f"{error.strerror} (errno {error.errno})",),
            remedies=(remedy.format(path=self.path),),
            details={"path": str(self.path), "reason": reason},
        )

    def _count_files_free(self) -> int:
        """Return how many more files it can hold; -1 when it has no such limit."""
        room = os.statvfs(self.path)
        return room.f_favail if room.f_files else -1


class AskedDisk(Disk):
    """A mount of a file server that is asked whether it answers, and not written to."""

    is_alone = False

    def split(self, context: Context) -> Sequence[Check]:
        """Return itself."""
        del context
        return [self]

    def run(self, context: Context) -> CheckResult:
        """Ask for its room."""
        place = _find_place(self.path)
        facts = {"file system": f"{place.fs_type} at {place.mount}", "read": "not: only asked"}
        try:
            room = os.statvfs(self.path)
        except OSError as error:
            return self.make_result([self._fail(error)], facts=facts)
        del context
        free, size = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
        facts["free"] = f"{free / 1e9:.1f} of {size / 1e9:.1f} GB"
        return self.make_result(facts=facts)


def _find_place(path: Path) -> _Place:
    """Tell where a path lies without touching it."""
    mount = Mounts(os.getpid()).find(str(path))
    return _Place(path, mount.point if mount else "", mount.fs_type if mount else "")


def _list_figures(found: Measured) -> dict[str, float]:
    return {
        "write_mb_per_s": found.write_mb_per_s,
        "read_mb_per_s": found.read_mb_per_s,
        "sync_ms": found.sync_ms,
        "sync_worst_ms": found.sync_worst_ms,
        "files_per_s": found.files_per_s,
        "tested_mb": found.written_bytes / 1e6,
    }


def _judge_data(place: _Place, found: Measured) -> Iterator[CheckProblem]:
    if found.wrong_block < 0:
        return
    yield CheckProblem(
        code=_FAILED,
        severity="error",
        text=f"{place.path} returns other data than was written: {found.wrong_blocks} blocks of "
        f"{BLOCK_BYTES >> 20} MiB, the first at byte {found.wrong_block * BLOCK_BYTES}",
        subject=str(place.path),
        remedies=("use no data or checkpoint on it; `smartctl -a DEVICE`, `dmesg -T`",),
        measures={"wrong_blocks": found.wrong_blocks},
        details={"path": str(place.path), "reason": "wrong data"},
    )


def _judge_room(place: _Place, room: os.statvfs_result, context: Context) -> Iterator[CheckProblem]:
    policy = context.policy.disk
    free, size = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    least = max(policy.min_free_mb * _MB, int(size * policy.min_free_share))
    if free < least:
        yield CheckProblem(
            code=_FAILED,
            severity="warning",
            text=f"{place.path} has {free // _MB} MB left, below {least // _MB} MB",
            subject=str(place.path),
            remedies=(_REMEDIES[errno.ENOSPC].format(path=place.mount or place.path),),
            measures={"free_mb": free / _MB, "threshold_mb": least / _MB},
            details={"path": str(place.path), "reason": "little room"},
        )
    if room.f_files and room.f_favail < min(policy.min_free_inodes, room.f_files // 10):
        yield CheckProblem(
            code=_FAILED,
            severity="warning",
            text=f"{place.path} has room for {room.f_favail} more files only",
            subject=str(place.path),
            remedies=("remove small files: `du --inodes -xd1 " + f"{place.mount} | sort -n`",),
            measures={"free_inodes": room.f_favail},
            details={"path": str(place.path), "reason": "few inodes"},
        )


def _judge_speed(place: _Place, found: Measured, context: Context) -> Iterator[CheckProblem]:
    policy = context.policy.disk
    slow = [
        f"{name} {figure:.3g} {unit}, below {least:g}"
        for name, figure, least, unit in (
            ("reads", found.read_mb_per_s, policy.min_read_mb_per_s, "MB/s"),
            ("writes", found.write_mb_per_s, policy.min_write_mb_per_s, "MB/s"),
            ("makes", found.files_per_s, policy.min_files_per_s, "files/s"),
        )
        if figure < least
    ]
    if found.sync_ms > policy.max_sync_ms:
        slow.append(f"syncs 4 KiB in {found.sync_ms:.3g} ms, above {policy.max_sync_ms:g}")
    if not slow:
        return
    how = "past the cache" if found.is_direct else "after the cache was dropped"
    yield CheckProblem(
        code=_SLOW,
        text=f"{place.path} is slow: it {'; '.join(slow)}",
        subject=str(place.path),
        because=(
            f"{found.written_bytes >> 20} MiB were written, synced and read {how}",
            f"it is {place.fs_type or 'unknown'} at {place.mount or '?'}",
        ),
        measures={
            **_list_figures(found),
            "threshold_read_mb_per_s": policy.min_read_mb_per_s,
            "threshold_write_mb_per_s": policy.min_write_mb_per_s,
        },
        details={"path": str(place.path), "file_system": place.fs_type},
    )
