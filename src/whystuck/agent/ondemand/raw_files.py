"""The files that Kineto writes: where they are to go, and what lies there now.

Each trace gets a folder of its own, so that whatever name Kineto makes of the one it was given,
what lies there is that trace.
"""

from __future__ import annotations

import os
import stat
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from whystuck.agent.ondemand.config_text import written_path
from whystuck.agent.ondemand.reach import Found, Reach
from whystuck.agent.ondemand.states import NONE
from whystuck.evidence.errors import UsageError
from whystuck.guarded.folders import folder_at, list_names
from whystuck.guarded.results import open_named, open_own_folder

RAW_NAME = "trace.json"
PART_SUFFIX = ".tmp"
ROOTS = Path(f"/tmp/whystuck-traces-{os.getuid()}-")  # noqa: S108 - what mkdtemp adds is private
"""How the paths of the folders begin that agents of this user make for raw traces."""
_PROBE_NAME = "probe.json"
_DEFAULT_PATH = "/tmp/libkineto_activities.json"  # noqa: S108 - that of Kineto
_MAX_NAMES = 256
# By how much the clock of a file server may differ from ours.
_CLOCK_NS = 10_000_000_000


def make_root(root: Path | None) -> Path:
    """Make the folder below which raw traces go, for this user alone.

    Args:
        root: The folder. Left out, one in ``/tmp``: newer Kineto writes nowhere else unless
            ``KINETO_ONDEMAND_TRACE_DIR`` of the process allows it.

    Returns:
        The folder.

    Raises:
        UsageError: It cannot be made.
    """
    try:
        if root is None:
            return Path(tempfile.mkdtemp(prefix=ROOTS.name, dir=ROOTS.parent))
        os.close(open_named(str(root.absolute())))
    except OSError as error:
        raise UsageError(
            f"no folder for traces can be made in {root or '/tmp'}: {error.strerror}",  # noqa: S108
            hint="free some space, or give another folder",
        ) from error
    return root


@dataclass(frozen=True)
class RawFile:
    """Where the trace of one process is written.

    ``path`` is what Kineto is told, ``folder`` the folder of this trace alone, None where the path
    is the user's. ``pid`` is the process as it sees itself, ``reach`` the way to its files.
    """

    path: str
    folder: Path | None
    pid: int
    reach: Reach = field(default_factory=lambda: Reach(0))
    old: tuple[int, int] = (0, 0)
    """Inode and time of a file that lay there before."""
    made: tuple[int, int] | None = None
    """Device and inode of the folder."""
    made_ns: int = 0

    def look(self) -> tuple[int, int]:
        """Return the sizes in bytes of the file being written and of the whole one."""
        part, whole = self._candidates()
        return _size_of(part), _size_of(whole)

    def changed_ns(self) -> int:
        """Return when the file being written was last changed: at first, made; 0 for none."""
        part = self._candidates()[0]
        return part.status.st_mtime_ns if part else 0

    def find(self) -> Found | None:
        """Return the whole file; None when there is none."""
        return self._candidates()[1]

    def _candidates(self) -> tuple[Found | None, Found | None]:
        """Return the file being written, and the whole one."""
        if self.folder is None:
            path = written_path(self.path, self.pid)
            whole = self.reach.find(path)
            return self.reach.find(path + PART_SUFFIX), whole if self._is_new(whole) else None
        files = self.reach.list_files(str(self.folder), made=self.made)
        if not files and not self.reach.has_our_root:
            # In a container, /tmp is another folder.
            files = self.reach.list_files(str(self.folder), is_outside=False)
        parts = [one for one in files if one.name.endswith(PART_SUFFIX)]
        wholes = [one for one in files if one not in parts]
        return next(iter(parts), None), next(iter(wholes), None)

    def _is_new(self, found: Found | None) -> bool:
        """Whether a file at the user's path was made for this trace."""
        if found is None:
            return False
        status = found.status
        is_of_now = self.reach.is_own or status.st_ctime_ns >= self.made_ns - _CLOCK_NS
        return is_of_now and (status.st_ino, status.st_mtime_ns) != self.old

    def remove(self) -> None:
        """Remove what is left, where the folder is ours."""
        if self.folder is not None:
            remove_folder(self.folder, self.made)

    def empty(self) -> None:
        """Remove the files that are left, where the folder is ours, and keep the folder."""
        if self.folder is not None:
            with suppress(OSError):
                _empty_folder(self.folder, self.made)


def remove_folder(folder: Path, made: tuple[int, int] | None = None) -> None:
    """Remove the folder of one trace with the files in it; what else lies there, stays.

    Args:
        folder: The folder, in one of ours.
        made: Its device and number; another one that lies there now is left alone.
    """
    with suppress(OSError):
        if _empty_folder(folder, made):
            folder.rmdir()


def _empty_folder(folder: Path, made: tuple[int, int] | None) -> bool:
    """Remove the files of a trace; return whether it is that folder."""
    with folder_at(folder) as opened:
        status = os.fstat(opened)
        if made not in {None, (status.st_dev, status.st_ino)}:
            return False
        for name in list_names(opened, _MAX_NAMES):
            with suppress(OSError):
                os.unlink(name, dir_fd=opened)
    return True


def make_raw_file(
    root: Path, name: str, *, pid: int, host_pid: int, probe: bool, uid: int = -1
) -> RawFile:
    """Make the folder of one trace, which the process can write to.

    Args:
        root: The folder below which raw traces go.
        name: The name of this one, which nothing has yet.
        pid: The process, as it sees itself.
        host_pid: The process, as this host sees it.
        probe: Whether it is the short trace that goes before the one that is wanted.
        uid: Whose it was when it asked for work; -1 when that is not known.

    Returns:
        Where it goes.

    Raises:
        OSError: The folder cannot be made, or the files of the process cannot be reached.
    """
    reach = Reach(host_pid, uid)
    folder = root / name
    where = str(root.absolute())
    os.close(open_named(where) if reach.is_own else open_own_folder(where, makes=True))
    folder.mkdir(mode=0o700)
    with folder_at(folder, uid=os.geteuid()) as opened:
        if os.geteuid() == 0 and reach.owner.uid != 0:
            _give_to_owner(root, opened, reach)
        status = os.fstat(opened)
    made = (status.st_dev, status.st_ino)
    raw = _PROBE_NAME if probe else RAW_NAME
    return RawFile(str(folder / raw), folder, pid, reach, made=made, made_ns=time.time_ns())


def watch_path(path: str, *, pid: int, host_pid: int, uid: int = -1) -> RawFile:
    """Watch a path that somebody else has chosen, and make its folder.

    Args:
        path: What Kineto is told; empty means the name that it takes then.
        pid: The process, as it sees itself.
        host_pid: The process, as this host sees it.
        uid: Whose it was when it asked for work; -1 when that is not known.

    Returns:
        The file; what lies there already is not it.

    Raises:
        OSError: The files of the process cannot be reached.
    """
    reach = Reach(host_pid, uid)
    found = RawFile(path or _DEFAULT_PATH, None, pid, reach, made_ns=time.time_ns())
    whole = written_path(found.path, pid)
    with suppress(OSError):
        reach.make_folder(whole.rpartition("/")[0] or "/")
    before = reach.find(whole)
    if before is None:
        return found
    return replace(found, old=(before.status.st_ino, before.status.st_mtime_ns))


def _give_to_owner(root: Path, folder: int, reach: Reach) -> None:
    """Let a process of another user write, where this agent serves all of them."""
    with suppress(OSError):
        mode = stat.S_IMODE(root.stat().st_mode)
        if not mode & stat.S_IXOTH:  # it may be /tmp, where others make files, too
            root.chmod(mode | 0o011)
        os.fchown(folder, reach.owner.uid, reach.owner.gid)


def _size_of(found: Found | None) -> int:
    return NONE if found is None else found.size_bytes
