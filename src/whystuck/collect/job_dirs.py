"""The private folder of a job under ``whystuck run``, and the files that its ranks leave there.

A process tells its path, and a process may be another user's: the folder counts only when it is the
user's own and nobody else can enter it, and its files only when they are plain ones of that user.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from whystuck.collect.processes.proc_files import read_environment
from whystuck.guarded.folders import folder_at, open_file
from whystuck.guarded.opening import open_below
from whystuck.guarded.processes import Pinned

VARIABLE: Final = "WHYSTUCK_JOB_DIR"
MAX_ARTIFACT_BYTES: Final = 256 << 20
_PIECE_BYTES: Final = 1 << 20
_NAME: Final = re.compile(r"whystuck-\d{1,10}-\w{1,64}", re.ASCII)


def find_job_dir(pid: int, environment: Mapping[str, str] | None = None) -> str:
    """Return the job folder of a process that whystuck started, empty for any other.

    Args:
        pid: The process.
        environment: Its variables, where they were read before.
    """
    try:
        told = (read_environment(pid) if environment is None else environment).get(VARIABLE, "")
        if not told:
            return ""
        with Pinned(pid) as process:
            uid = process.read_owner().uid
            return told if is_job_dir(told, uid) and _is_seen(process, told, uid) else ""
    except (OSError, ValueError):
        return ""


def is_job_dir(folder: str | Path, uid: int) -> bool:
    """Return whether a folder is a job folder of a user, which nobody else can enter."""
    path = str(folder)
    is_named = path.startswith("/") and _NAME.fullmatch(path.rpartition("/")[2])
    if not is_named or ".." in path.split("/"):
        return False
    try:
        with folder_at(path, uid=uid, is_private=True):
            return True
    except (OSError, ValueError):
        return False


def _is_seen(process: Pinned, folder: str, uid: int) -> bool:
    """Return whether the path leads the process to the same folder as us, also in a container."""
    try:
        root = process.open_root()
    except PermissionError:
        return uid == os.geteuid()
    try:
        if os.path.samestat(os.fstat(root), Path("/").stat()):
            return True
        theirs = open_below(root, folder, os.O_PATH | os.O_DIRECTORY)
    finally:
        os.close(root)
    try:
        return os.path.samestat(os.fstat(theirs), os.lstat(folder))
    finally:
        os.close(theirs)


@contextmanager
def artifact_opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file in a job folder for the time of a block.

    Args:
        path: The file. A link to it or to its folder, a pipe, and a file of another user than the
            folder's are refused.

    Yields:
        A stream.

    Raises:
        OSError: It cannot be opened.
    """
    with folder_at(path.parent) as folder:
        stream = os.fdopen(open_file(folder, path.name, uid=os.fstat(folder).st_uid), "rb")
    with stream:
        yield stream


def read_artifact(path: Path, max_bytes: int = MAX_ARTIFACT_BYTES) -> bytes:
    """Return the first bytes of a file in a job folder; raises OSError as `artifact_opened`."""
    with artifact_opened(path) as stream:
        return stream.read(max_bytes)


def copy_artifact(source: Path, target: Path) -> bool:
    """Copy a file from a job folder, up to a size; return whether there was something to copy.

    Raises OSError when the copy cannot be written.
    """
    try:
        with artifact_opened(source) as stream:
            if not os.fstat(stream.fileno()).st_size:
                return False
            target.parent.mkdir(parents=True, exist_ok=True)
            left = MAX_ARTIFACT_BYTES
            with target.open("wb") as out:
                while left > 0 and (piece := stream.read(min(left, _PIECE_BYTES))):
                    out.write(piece)
                    left -= len(piece)
    except FileNotFoundError:
        return False
    return True


__all__ = ["artifact_opened", "copy_artifact", "find_job_dir", "is_job_dir", "read_artifact"]
