"""The file systems that a process sees, without touching any of them.

Only /proc and /sys are read: a look at a path on a file system that does not answer would hang too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from whystuck.collect.processes.proc_files import read_start_of

UNKNOWN = -1
# A process in a user namespace of its own may have 100,000 mounts with paths of 4 KB.
_MAX_BYTES = 4 << 20
# What the kernel waits in names the file system, by the start of the function.
_FAMILIES = (
    (("request_wait_answer", "fuse_"), ("fuse", "virtiofs")),
    (("nfs", "rpc_", "__rpc", "wait_on_commit"), ("nfs",)),
    (("cl_", "ll_", "ldlm_", "osc_", "ptlrpc", "lov_"), ("lustre",)),
    (("ceph_",), ("ceph",)),
    (("cifs_", "smb2_", "smb_", "wait_for_response"), ("cifs", "smb")),
    (("cxiWait",), ("gpfs",)),
    (("p9_",), ("9p",)),
)
_LOCAL_WAITS = (
    "io_schedule",
    "folio_",
    "__folio_lock",
    "wait_on_page",
    "__lock_page",
    "bit_wait",
    "jbd2_",
    "xfs_",
    "ext4_",
    "btrfs_",
    "blk_",
    "blkdev_",
    "submit_bio",
    "__wait_on_buffer",
    "do_fsync",
    "filemap_",
    "writeback_",
)
# File systems that many nodes have in common. Those of a virtual machine's host (9p, virtiofs) are
# not among them.
_SHARED = (
    "nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb", "fuse", "glusterfs", "orangefs",
    "pvfs2", "panfs", "wekafs", "afs", "gfs2", "ocfs2", "davfs", "dvs", "quobyte",
)  # fmt: skip
_OF_THIS_NODE = ("fuseblk", "fuse.fuse-overlayfs", "fuse-overlayfs", "fuse.lxcfs", "fusectl")
# What stands for a server where the type is none that we know: `host:/path`, `//host/share`.
_SERVER = re.compile(r"//[^/]|[^/]+:/")
# The program behind a FUSE mount that waits for work is not kept by anybody.
_SERVER_WAITS = ("fuse_dev_",)
_USER = re.compile(r"(?:^|,)user_id=(\d{1,10})(?:,|$)")
_OCTAL = re.compile(r"\\([0-7]{3})")
_MIN_FIELDS = 6


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo; ``uid`` is who serves the files, root but for some kinds of FUSE."""

    point: str
    fs_type: str
    source: str
    device: str
    uid: int = 0

    def has_family(self, families: tuple[str, ...]) -> bool:
        """Tell whether its type is one of these or a kind of one, such as ``fuse.sshfs``."""
        return self.fs_type.startswith(families)

    @property
    def is_remote(self) -> bool:
        """Whether a server or a program answers for it, not a device of this machine."""
        return any(self.has_family(families) for _, families in _FAMILIES)

    @property
    def is_shared(self) -> bool:
        """Whether other nodes are likely to see the same files."""
        if self.has_family(_OF_THIS_NODE):
            return False
        return self.has_family(_SHARED) or bool(_SERVER.match(self.source))


def find_families(wchan: str) -> tuple[str, ...]:
    """Return the types of file system that wait in a function of the kernel; none for others."""
    if wchan.startswith(_SERVER_WAITS):
        return ()
    return next((families for starts, families in _FAMILIES if wchan.startswith(starts)), ())


def is_file_wait(wchan: str) -> bool:
    """Tell whether a function of the kernel waits for a file system or a disk."""
    return bool(find_families(wchan)) or wchan.startswith(_LOCAL_WAITS)


class Mounts:
    """The mounts of one process; empty when they may not be read."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    @cached_property
    def all(self) -> tuple[Mount, ...]:
        """All mounts, in the order in which they were made."""
        try:
            text = _read_mounts(self._pid, "mountinfo")
        except OSError:
            return ()
        return tuple(mount for line in text.splitlines() if (mount := parse_mount(line)))

    def find(self, path: str, families: tuple[str, ...] = ()) -> Mount | None:
        """Find where a path lies.

        Args:
            path: An absolute path; it is compared, not looked up, so that links in it are unseen.
            families: The types that it must be of, when known. A path that lies elsewhere led
                there by a link: then the only mount of these types is the answer, if there is one.

        Returns:
            The mount, or None when it cannot be told.
        """
        place = PurePosixPath(path) if path.startswith("/") else None
        found = None
        for mount in self.all:
            inside = place is not None and place.is_relative_to(mount.point)
            # Of two mounts at one place, the later one hides the first.
            if inside and (found is None or len(mount.point) >= len(found.point)):
                found = mount
        if not families or (found is not None and found.has_family(families)):
            return found
        fitting = [mount for mount in self.all if mount.has_family(families)]
        return fitting[0] if len(fitting) == 1 else None

    def count_done(self, mount: Mount) -> int:
        """Return a number that grows while the file system answers; -1 when nothing counts that."""
        if mount.fs_type.startswith("nfs"):
            return _count_nfs(self._pid, mount.point)
        return _count_device(mount.device)


def _read_mounts(pid: int, name: str) -> str:
    return read_start_of(pid, name, _MAX_BYTES).decode(errors="replace")


def parse_mount(line: str) -> Mount | None:
    """Read one line of mountinfo; None when it is none."""
    before, separator, after = line.partition(" - ")
    fields, tail = before.split(" "), after.split(" ")
    if not separator or len(fields) < _MIN_FIELDS or len(tail) < 2:  # noqa: PLR2004 - type, source
        return None
    user = _USER.search(tail[2]) if len(tail) > 2 else None  # noqa: PLR2004 - options
    uid = int(user[1]) if user else 0
    return Mount(_unescape(fields[4]), tail[0], _unescape(tail[1]), fields[2], uid)


def _unescape(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def _count_device(device: str) -> int:
    """Count the reads and writes that a disk has completed."""
    try:
        fields = Path(f"/sys/dev/block/{device}/stat").read_text().split()
        return int(fields[0]) + int(fields[4])
    except (OSError, ValueError, IndexError):
        return UNKNOWN


def _count_nfs(pid: int, point: str) -> int:
    """Count the answers that came from the server of an NFS mount."""
    try:
        text = _read_mounts(pid, "mountstats")
    except OSError:
        return UNKNOWN
    return count_nfs_answers(text, point)


def count_nfs_answers(text: str, point: str) -> int:
    """Read mountstats: the answers that came over all connections of one mount."""
    answers = UNKNOWN
    is_inside = False
    for line in text.splitlines():
        if line.startswith("device "):
            is_inside = f" mounted on {point} with fstype nfs" in _unescape(line)
            continue
        fields = line.split()
        # xprt: tcp PORT BINDS CONNECTS CONNECT_TIME IDLE_TIME SENDS RECEIVES ...
        if is_inside and fields[:1] == ["xprt:"]:
            position = 8 if fields[1] in {"tcp", "rdma"} else 5
            answers = max(answers, 0) + int(fields[position])
    return answers
