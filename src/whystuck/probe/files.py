"""Names inside the job folder, and writing there without ever leaving half a file."""

from __future__ import annotations

import _thread
import errno
import os

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from io import BufferedWriter

JOB_DIR_ENV = "WHYSTUCK_JOB_DIR"
CLAIM_ENV = "WHYSTUCK_CLAIM"
STDOUT_ENV = "WHYSTUCK_STDOUT"
STDERR_ENV = "WHYSTUCK_STDERR"
LINES_ENV = "WHYSTUCK_TRACE_LINES"
AGENT_ENV = "WHYSTUCK_AGENT_DIR"


# Where this is there, no rank starts the probe, and running ones disarm theirs.
DISABLE_FILE = "/etc/whystuck/disable"
# The parts of the probe, in the order in which they are disarmed: the recording of ops, marks, the
# recording of groups and lost calls, and all but the beat.
OPS, MARKS, RECORDS, ALL = PARTS = "ops", "marks", "records", "all"
# Those of this process that have been disarmed, and why.
DISARMED: dict[str, str] = {}
_MAPPED: list[int] = []
# What an agent leaves for a process, which may have asked it for work before it is a rank.
_OF_AGENTS = ("trace", "rescue")
# The process that has its files to itself.
_OWNER: list[int] = []


class ReplacedError(ImportError):
    """The files of the probe are others than when it started; parts of two must not be mixed."""


def require_release() -> None:
    """Raise ReplacedError where whystuck was upgraded since; to be called before a late import."""
    if _stamp() != _STAMP:
        raise ReplacedError("whystuck was replaced on disk while this job ran")


def _stamp() -> tuple[int, int]:
    try:
        status = os.stat(__file__)
    except OSError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


_STAMP = _stamp()


def why_off(part: str = ALL) -> str:
    """Return why a part of the probe has been disarmed; an empty text where it has not."""
    return DISARMED.get(part) or DISARMED.get(ALL, "")


def is_disabled() -> bool:
    """Return whether whoever runs this node wants no probe in any process."""
    return os.path.exists(DISABLE_FILE)


def mapped_bytes() -> int:
    """Return how much memory the probe has mapped in this process."""
    return sum(_MAPPED)


def job_dir() -> str:
    """Return the folder that the supervisor made for this job."""
    return os.environ[JOB_DIR_ENV]


def path_of(kind: str, pid: int | None = None) -> str:
    """Return the path of this process' artifact of one kind, e.g. ``beat-4711``."""
    return os.path.join(job_dir(), f"{kind}-{os.getpid() if pid is None else pid}")


def take_over() -> None:
    """Have the files of this process to itself, before anybody is told of it; once.

    Those of an ended process with the same pid go: it would be judged by them. ``start-PID`` tells
    when the process started whose files there are: one without a probe takes none away.
    """
    if [os.getpid()] == _OWNER:
        return
    _OWNER[:] = [os.getpid()]
    ending, core = f"-{os.getpid()}", f".{os.getpid()}"
    folder = job_dir()
    for name in os.listdir(folder):
        whole = name.partition(".part-")[0]
        is_ours = whole.endswith(ending) and whole[: -len(ending)] not in _OF_AGENTS
        if is_ours or (name.startswith("gpu-core.") and name.endswith(core)):
            _remove(os.path.join(folder, name))
    if start := _read_start():
        write_atomically(path_of("start"), start)


def _remove(path: str) -> None:
    """Remove a file that somebody else may remove, too."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _read_start() -> bytes:
    """Return when this process started, in ticks since boot; nothing where others see it else."""
    try:
        with open("/proc/self/timens_offsets", "rb") as file:
            if file.read().split()[4:] != [b"0", b"0"]:
                return b""  # it has a clock of its own
    except OSError:
        pass  # a kernel without such clocks
    with open("/proc/self/stat", "rb") as file:
        # The name before the fields may hold anything.
        return file.read().rpartition(b")")[2].split()[19]


def open_private(path: str) -> BufferedWriter:
    """Make a file that only its owner may read, or empty it; the umask of the job stays its own."""
    return open(path, "wb", opener=_open_private)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def write_atomically(path: str, data: bytes) -> None:
    """Write ``data`` so that a reader sees all of it or nothing."""
    part = f"{path}.part-{os.getpid()}-{_thread.get_ident()}"
    with open_private(part) as file:
        file.write(data)
    os.replace(part, path)


def write_json(path: str, value: object) -> None:
    """Write ``value`` as JSON, atomically."""
    import json

    write_atomically(path, json.dumps(value).encode("utf-8", "replace"))


def make_mapped(path: str, size: int) -> memoryview:
    """Make a file of ``size`` bytes and map it; raises OSError and leaves no file on a full disk.

    Blocks are reserved first: a write to a page that a full disk cannot hold would be a SIGBUS.
    """
    if not may_write(size):
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
        return map_shared(fd, size)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


def may_write(size: int) -> bool:
    """Return whether this process may have a file of a size: else a signal may end it."""
    import resource  # not needed when the interpreter starts

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return limit == resource.RLIM_INFINITY or size <= limit


def map_shared(fd: int, size: int) -> memoryview:
    """Map a file for the life of the process; ``fd`` can be closed then. Raises OSError.

    The module ``mmap`` would keep a descriptor of its own, and close that number in the end,
    whoever has it by then.
    """
    import ctypes
    import mmap

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    )  # fmt: skip
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    address = libc.mmap(None, size, protection, mmap.MAP_SHARED, fd, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "cannot be mapped")
    _MAPPED.append(size)
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")
