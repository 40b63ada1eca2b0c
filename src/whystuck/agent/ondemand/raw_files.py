"""The files that Kineto writes: where they are to go, and what lies there now.

Each trace gets a folder of its own, so that whatever name Kineto makes of the one it was given,
what lies there is that trace.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from whystuck.agent.ondemand.config_text import written_path
from whystuck.agent.ondemand.states import NONE
from whystuck.evidence.errors import UsageError

RAW_NAME = "trace.json"
PART_SUFFIX = ".tmp"
ROOTS = Path(f"/tmp/whystuck-traces-{os.getuid()}-")  # noqa: S108 - what mkdtemp adds is private
"""How the paths of the folders begin that agents of this user make for raw traces."""
_PROBE_NAME = "probe.json"
_DEFAULT_PATH = "/tmp/libkineto_activities.json"  # noqa: S108 - that of Kineto


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
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
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
    is the user's. ``pid`` is the process as it sees itself, ``host_pid`` as this host does.
    """

    path: str
    folder: Path | None
    pid: int
    host_pid: int
    old: tuple[int, int] = (0, 0)
    """Inode and time of a file that lay there before."""

    def look(self) -> tuple[int, int]:
        """Return the sizes in bytes of the file being written and of the whole one."""
        parts, wholes = self._candidates()
        return _size_of(parts, (0, 0)), _size_of(wholes, self.old)

    def changed_ns(self) -> int:
        """Return when the file being written was last changed: at first, made; 0 for none."""
        for path in self._candidates()[0]:
            with suppress(OSError):
                return path.lstat().st_mtime_ns
        return 0

    def find(self) -> Path | None:
        """Return the whole file; None when there is none."""
        wholes = self._candidates()[1]
        return next((path for path in wholes if _size_of([path], self.old) >= 0), None)

    def _candidates(self) -> tuple[list[Path], list[Path]]:
        if self.folder is None:
            path = Path(written_path(self.path, self.pid))
            return [path.with_name(path.name + PART_SUFFIX)], [path]
        names = _list(self.folder)
        if not names:
            # In a container, /tmp is another folder.
            inside = Path(f"/proc/{self.host_pid}/root") / self.folder.relative_to("/")
            names = _list(inside)
        parts = [path for path in names if path.name.endswith(PART_SUFFIX)]
        return parts, [path for path in names if path not in parts]

    def remove(self) -> None:
        """Remove what is left, where the folder is ours."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def make_raw_file(root: Path, name: str, *, pid: int, host_pid: int, probe: bool) -> RawFile:
    """Make the folder of one trace, which the process can write to.

    Args:
        root: The folder below which raw traces go.
        name: The name of this one.
        pid: The process, as it sees itself.
        host_pid: The process, as this host sees it.
        probe: Whether it is the short trace that goes before the one that is wanted.

    Returns:
        Where it goes.

    Raises:
        OSError: The folder cannot be made.
    """
    folder = root / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.geteuid() == 0:
        _give_to_owner(root, folder, host_pid)
    raw = _PROBE_NAME if probe else RAW_NAME
    return RawFile(str(folder / raw), folder, pid, host_pid)


def watch_path(path: str, *, pid: int, host_pid: int) -> RawFile:
    """Watch a path that somebody else has chosen, and make its folder.

    Args:
        path: What Kineto is told; empty means the name that it takes then.
        pid: The process, as it sees itself.
        host_pid: The process, as this host sees it.

    Returns:
        The file; what lies there already is not it.
    """
    found = RawFile(path or _DEFAULT_PATH, None, pid, host_pid)
    whole = Path(written_path(found.path, pid))
    with suppress(OSError):
        whole.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        status = whole.lstat()
        return replace(found, old=(status.st_ino, status.st_mtime_ns))
    return found


def _give_to_owner(root: Path, folder: Path, pid: int) -> None:
    """Let a process of another user write, where this agent serves all of them."""
    with suppress(OSError):
        owner = Path(f"/proc/{pid}").stat()
        if owner.st_uid != os.geteuid():
            mode = stat.S_IMODE(root.stat().st_mode)
            if not mode & stat.S_IXOTH:  # it may be /tmp, where others make files, too
                root.chmod(mode | 0o011)
            os.chown(folder, owner.st_uid, owner.st_gid)


def _list(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as found:
            return [Path(one.path) for one in found if one.is_file(follow_symlinks=False)]
    except OSError:
        return []


def _size_of(paths: list[Path], old: tuple[int, int]) -> int:
    for path in paths:
        with suppress(OSError):
            status = path.lstat()
            is_new = (status.st_ino, status.st_mtime_ns) != old
            if stat.S_ISREG(status.st_mode) and is_new:
                return status.st_size
    return NONE
