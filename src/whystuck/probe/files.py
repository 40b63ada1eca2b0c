"""Names inside the job folder, and writing there without ever leaving half a file."""

from __future__ import annotations

import os
import threading

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from io import BufferedWriter
    from mmap import mmap

JOB_DIR_ENV = "WHYSTUCK_JOB_DIR"
CLAIM_ENV = "WHYSTUCK_CLAIM"
STDOUT_ENV = "WHYSTUCK_STDOUT"
STDERR_ENV = "WHYSTUCK_STDERR"


def job_dir() -> str:
    """Return the folder that the supervisor made for this job."""
    return os.environ[JOB_DIR_ENV]


def path_of(kind: str, pid: int | None = None) -> str:
    """Return the path of this process' artifact of one kind, e.g. ``beat-4711``."""
    return os.path.join(job_dir(), f"{kind}-{os.getpid() if pid is None else pid}")


def open_private(path: str) -> BufferedWriter:
    """Make a file that only its owner may read, or empty it; the umask of the job stays its own."""
    return open(path, "wb", opener=_open_private)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def write_atomically(path: str, data: bytes) -> None:
    """Write ``data`` so that a reader sees all of it or nothing."""
    part = f"{path}.part-{os.getpid()}-{threading.get_ident()}"
    with open_private(part) as file:
        file.write(data)
    os.replace(part, path)


def write_json(path: str, value: object) -> None:
    """Write ``value`` as JSON, atomically."""
    import json

    write_atomically(path, json.dumps(value).encode("utf-8", "replace"))


def make_mapped(path: str, size: int) -> mmap:
    """Make a file of ``size`` bytes and map it; raises OSError and leaves no file on a full disk.

    Blocks are reserved first: a write to a page that a full disk cannot hold would be a SIGBUS.
    """
    import mmap

    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
        return mmap.mmap(fd, size)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(fd)
