"""Disks, and the room of file systems."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from whystuck.agent.metrics.families import counter, fill, gauge
from whystuck.agent.metrics.filters import Names
from whystuck.evidence.nodes.metrics import MetricFamily, Sample

EVERY_S = 10.0
VOLUMES_EVERY_S = 60.0
_BLOCK_DEVICES = Path("/sys/block")
SKIPPED_DISKS = ("loop*", "ram*", "zram*", "sr*", "fd*")
_MAX_DISKS = 64
_MAX_VOLUMES = 64
_ANSWER_S = 2.0

_DISK = {
    "read_bytes": counter("disk_read_bytes_total", "Bytes read from a disk.", "device"),
    "write_bytes": counter("disk_written_bytes_total", "Bytes written to a disk.", "device"),
    "read_count": counter("disk_reads_completed_total", "Reads of a disk that ended.", "device"),
    "write_count": counter("disk_writes_completed_total", "Writes of a disk that ended.", "device"),
    "read_s": counter(
        "disk_read_time_seconds_total", "Seconds that reads took, all added up.", "device"
    ),
    "write_s": counter(
        "disk_write_time_seconds_total", "Seconds that writes took, all added up.", "device"
    ),
    "busy_s": counter(
        "disk_io_time_seconds_total", "Seconds in which a disk had something to do.", "device"
    ),
}
DISK_FAMILIES: tuple[MetricFamily, ...] = tuple(_DISK.values())

_PLACE = ("device", "fstype", "mountpoint")
_VOLUME = {
    "size": gauge("filesystem_size_bytes", "Size of a file system.", *_PLACE),
    "free": gauge("filesystem_free_bytes", "Room of a file system, for root too.", *_PLACE),
    "avail": gauge("filesystem_avail_bytes", "Room of a file system for users.", *_PLACE),
    "files": gauge("filesystem_files", "Files that a file system can hold.", *_PLACE),
    "files_free": gauge("filesystem_files_free", "Files that it can still take.", *_PLACE),
    "readonly": gauge("filesystem_readonly", "1 when it is mounted read-only.", *_PLACE),
    "error": gauge(
        "filesystem_device_error", "1 when a file system did not answer in 2 s, or failed.", *_PLACE
    ),
}
VOLUME_FAMILIES: tuple[MetricFamily, ...] = tuple(_VOLUME.values())
# Those on a disk of this node, those in memory, and those that a server or a program answers for.
_KINDS = frozenset(
    {
        *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "vfat", "overlay", "tmpfs"),
        *("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "9p"),
        *("pvfs2", "wekafs", "virtiofs", "efs", "afs", "daos", "juicefs"),
    }
)
_FUSE = "fuse"
_SKIPPED_MOUNTS = ("/proc", "/sys", "/run/credentials", "/var/lib/docker", "/var/lib/kubelet")


class DiskSource:
    """What whole disks read and wrote; partitions are parts of them and left out."""

    name = "disks"
    families = DISK_FAMILIES

    def __init__(
        self,
        *,
        every_s: float = EVERY_S,
        include: Sequence[str] = (),
        exclude: Sequence[str] = SKIPPED_DISKS,
    ) -> None:
        self.every_s = every_s
        self.problem = ""
        self._names = Names(include, exclude)

    def collect(self) -> Iterable[Sample]:
        """Read /proc/diskstats."""
        now_ns = time.time_ns()
        counters = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
        whole = _list_whole_disks()
        samples: list[Sample] = []
        wanted = [one for one in sorted(counters) if not whole or one in whole]
        for name in self._names.choose(wanted)[:_MAX_DISKS]:
            told = counters[name]
            busy_ms = getattr(told, "busy_time", None)
            values: dict[str, float | None] = {
                "read_bytes": told.read_bytes,
                "write_bytes": told.write_bytes,
                "read_count": told.read_count,
                "write_count": told.write_count,
                "read_s": told.read_time / 1e3,
                "write_s": told.write_time / 1e3,
                "busy_s": None if busy_ms is None else busy_ms / 1e3,
            }
            samples += fill(_DISK, values, (name,), now_ns)
        return samples


def _list_whole_disks() -> set[str]:
    try:
        # The kernel writes "!" in a folder's name for a "/" in that of a device.
        return {name.replace("!", "/") for name in os.listdir(_BLOCK_DEVICES)}  # noqa: PTH208
    except OSError:
        return set()


class VolumeSource:
    """The room of each mounted file system.

    A server that does not answer keeps the thread that asked it. Each mount therefore has a thread
    of its own while it is asked, and is not asked again before that one has returned.
    """

    name = "filesystems"
    families = VOLUME_FAMILIES

    def __init__(
        self,
        *,
        every_s: float = VOLUMES_EVERY_S,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> None:
        self.every_s = every_s
        self.problem = ""
        self._names = Names(include, exclude)
        self._asked: dict[str, _Question] = {}

    def collect(self) -> Iterable[Sample]:
        """Ask all mounts, and wait 2 seconds at most for those that do not answer."""
        now_ns, until_s = time.time_ns(), time.monotonic() + _ANSWER_S
        mounts = self._list_mounts()
        # One thread for each that has not answered yet.
        self._asked = {place: one for place, one in self._asked.items() if not one.is_done()}
        for mount in mounts.values():
            if mount.mountpoint not in self._asked:
                self._asked[mount.mountpoint] = _Question(mount.mountpoint)
        samples: list[Sample] = []
        silent = []
        for mount in mounts.values():
            question = self._asked[mount.mountpoint]
            question.wait(until_s)
            room = question.room
            if room is None:
                silent.append(mount.mountpoint)
            labels = (mount.device, mount.fstype, mount.mountpoint)
            values = {**_measure(room), "error": float(room is None)}
            samples += fill(_VOLUME, values, labels, now_ns)
        self.problem = f"no answer from {', '.join(silent[:4])}" if silent else ""
        return samples

    def _list_mounts(self) -> dict[str, _Mount]:
        """List one mount of each device: the one with the shortest path."""
        found: dict[str, _Mount] = {}
        for one in psutil.disk_partitions(all=True):
            mount = _Mount(one.device, one.mountpoint, one.fstype)
            if not mount.is_wanted() or not self._names.has(mount.mountpoint):
                continue
            key = mount.device if mount.device.startswith("/dev/") else mount.mountpoint
            if key not in found or len(mount.mountpoint) < len(found[key].mountpoint):
                found[key] = mount
        chosen = sorted(found.items(), key=lambda item: item[1].mountpoint)
        return dict(chosen[:_MAX_VOLUMES])


class _Mount:
    def __init__(self, device: str, mountpoint: str, fstype: str) -> None:
        self.device = device
        self.mountpoint = mountpoint
        self.fstype = fstype

    def is_wanted(self) -> bool:
        is_kind = self.fstype in _KINDS or self.fstype.startswith(_FUSE)
        is_skipped = any(
            self.mountpoint == one or self.mountpoint.startswith(f"{one}/")
            for one in _SKIPPED_MOUNTS
        )
        return is_kind and not is_skipped and "/containers/" not in self.mountpoint


class _Question:
    """How much room a mount has, asked in a thread that may never return."""

    def __init__(self, mountpoint: str) -> None:
        self.room: os.statvfs_result | None = None
        self._mountpoint = mountpoint
        self._thread = threading.Thread(target=self._ask, name="room", daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        try:
            self.room = os.statvfs(self._mountpoint)
        except OSError:
            self.room = None

    def wait(self, until_s: float) -> None:
        self._thread.join(max(0.0, until_s - time.monotonic()))

    def is_done(self) -> bool:
        return not self._thread.is_alive()


def _measure(room: os.statvfs_result | None) -> dict[str, float | None]:
    if room is None:
        return {}
    return {
        "size": room.f_blocks * room.f_frsize,
        "free": room.f_bfree * room.f_frsize,
        "avail": room.f_bavail * room.f_frsize,
        # Some file systems make files as they are needed, and tell no number.
        "files": room.f_files or None,
        "files_free": room.f_ffree if room.f_files else None,
        "readonly": float(bool(room.f_flag & os.ST_RDONLY)),
    }
