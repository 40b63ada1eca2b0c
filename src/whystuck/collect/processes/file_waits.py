"""Threads that the kernel keeps in an operation on a file, and the file system it lies on.

What another process of the same user may read in /proc is all that is used; no path is looked up.
"""

from __future__ import annotations

import io
import platform
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from whystuck.collect.node.mounts import Mounts, find_families, is_file_wait
from whystuck.collect.processes.proc_files import read_status
from whystuck.evidence.records import FileWait

_MAX_THREADS = 512
_MAX_WAITS = 16
_MAX_PATH_BYTES = _PAGE_BYTES = 4096
_AT_FDCWD = -100
_FAULT = "page fault"
_OTHER_CALL = "other call"
_ULONG = 1 << 64
_INT_BITS = 32
# By system call: its name, and whether it names a file by descriptor, by path or by both.
_X86_64 = (
    "0 read fd, 1 write fd, 2 open path, 3 close fd, 4 stat path, 5 fstat fd, 6 lstat path, "
    "17 pread64 fd, 18 pwrite64 fd, 19 readv fd, 20 writev fd, 21 access path, 74 fsync fd, "
    "75 fdatasync fd, 76 truncate path, 77 ftruncate fd, 78 getdents fd, 82 rename path, "
    "83 mkdir path, 84 rmdir path, 85 creat path, 87 unlink path, 89 readlink path, "
    "137 statfs path, 138 fstatfs fd, 217 getdents64 fd, 257 openat at, 258 mkdirat at, "
    "262 newfstatat at, 263 unlinkat at, 264 renameat at, 267 readlinkat at, 269 faccessat at, "
    "277 sync_file_range fd, 285 fallocate fd, 295 preadv fd, 296 pwritev fd, 306 syncfs fd, "
    "316 renameat2 at, 326 copy_file_range fd, 332 statx at, 437 openat2 at, 439 faccessat2 at"
)
_AARCH64 = (
    "34 mkdirat at, 35 unlinkat at, 38 renameat at, 43 statfs path, 44 fstatfs fd, "
    "45 truncate path, 46 ftruncate fd, 47 fallocate fd, 48 faccessat at, 56 openat at, "
    "57 close fd, 61 getdents64 fd, 63 read fd, 64 write fd, 65 readv fd, 66 writev fd, "
    "67 pread64 fd, 68 pwrite64 fd, 69 preadv fd, 70 pwritev fd, 78 readlinkat at, "
    "79 newfstatat at, 80 fstat fd, 82 fsync fd, 83 fdatasync fd, 84 sync_file_range fd, "
    "267 syncfs fd, 276 renameat2 at, 285 copy_file_range fd, 291 statx at, 437 openat2 at, "
    "439 faccessat2 at"
)


def _parse_calls(text: str) -> dict[int, tuple[str, str]]:
    rows = (row.split() for row in text.split(", "))
    return {int(number): (name, kind) for number, name, kind in rows}


_CALLS = _parse_calls({"x86_64": _X86_64, "aarch64": _AARCH64}.get(platform.machine(), "0 read fd"))


def collect_file_waits(pid: int) -> list[FileWait]:
    """Return the threads of a process that wait for a file system now, the main thread first."""
    mounts = Mounts(pid)
    found: list[FileWait] = []
    for thread_id in _list_threads(pid):
        try:
            wait = _look_at(pid, thread_id, mounts)
        except (OSError, ValueError, IndexError):
            continue  # it ended while we looked
        if wait is not None:
            found.append(wait)
        if len(found) >= _MAX_WAITS:
            break
    return found


def _list_threads(pid: int) -> list[int]:
    try:
        threads = [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []
    return sorted(threads, key=lambda one: (one != pid, one))[:_MAX_THREADS]


def _look_at(pid: int, thread_id: int, mounts: Mounts) -> FileWait | None:
    task = Path(f"/proc/{pid}/task/{thread_id}")
    status = read_status(f"{pid}/task/{thread_id}")
    state = status.get("State", "?")[:1]
    if state not in {"D", "S"}:
        return None
    wchan = _read(task / "wchan").strip()
    if state == "S" and not is_file_wait(wchan):
        return None
    call, path = _read_call(pid, task)
    # A call that is about no file, such as one of a device driver, keeps a thread in state D too.
    if (path and not _is_file(path)) or (call == _OTHER_CALL and not is_file_wait(wchan)):
        return None
    switches = (status.get(f"{kind}_ctxt_switches", "0") for kind in ("voluntary", "nonvoluntary"))
    families = find_families(wchan)
    if not path and (call == _FAULT or families):
        # The open files tell which one it can be: for a mapped file no call has named one.
        path = _find_only_remote_file(pid, mounts)
    wait = FileWait(
        thread_id=thread_id,
        thread_name=status.get("Name", ""),
        is_main=thread_id == pid,
        state=state,
        wchan="" if wchan == "0" else wchan,
        call=call,
        path=path,
        switches=sum(map(int, switches)),
    )
    mount = mounts.find(path, families) if path or families else None
    if mount is not None:
        wait = replace(
            wait,
            mount=mount.point,
            fs_type=mount.fs_type,
            mount_source=mount.source,
            is_remote=mount.is_remote,
            done=mounts.count_done(mount),
        )
    return wait


def _is_file(path: str) -> bool:
    """Tell whether a descriptor leads to a file, not to a pipe, a socket or a device."""
    return path.startswith("/") and not path.startswith("/dev/")


def _find_only_remote_file(pid: int, mounts: Mounts) -> str:
    """Return the open file that lies on a remote file system, when there is one only."""
    try:
        links = {_read_link(str(path)) for path in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return ""
    remote = []
    for link in sorted(links):
        mount = mounts.find(link) if link.startswith("/") else None
        if mount is not None and mount.is_remote:
            remote.append(link)
    return remote[0] if len(remote) == 1 else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""  # not ours to read


def _read_call(pid: int, task: Path) -> tuple[str, str]:
    """Return the system call that a thread is in and the path it is about; empty when unknown.

    A page of a mapped file that is read in is no call, and has no path.
    """
    fields = _read(task / "syscall").split()
    if fields[:1] == ["-1"]:
        return _FAULT, ""
    if len(fields) < 3 or not fields[0].isdigit():  # noqa: PLR2004 - number and two arguments
        return "", ""
    name, kind = _CALLS.get(int(fields[0]), (_OTHER_CALL, ""))
    first, second = int(fields[1], 16), int(fields[2], 16)
    if kind == "fd":
        return name, _read_link(f"/proc/{pid}/fd/{first}")
    if kind == "path":
        return name, _join(pid, _AT_FDCWD, _read_string(pid, first))
    if kind == "at":
        return name, _join(pid, _sign(first), _read_string(pid, second))
    return name, ""


def _sign(value: int) -> int:
    """Read a descriptor, an int, from a register."""
    value &= (1 << _INT_BITS) - 1
    return value - (1 << _INT_BITS) if value >> (_INT_BITS - 1) else value


def _read_link(path: str) -> str:
    """Read a link of /proc, for which the kernel asks no file system."""
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""


def _read_string(pid: int, address: int) -> str:
    """Read the path that a system call was given, from the memory of the process."""
    data = b""
    try:
        with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
            memory.seek(address)
            for piece in _read_pieces(memory, address):
                data += piece
                if b"\0" in piece:
                    break
    except (OSError, ValueError, OverflowError):
        return ""
    text, end, _ = data.partition(b"\0")
    return text.decode(errors="replace") if end else ""


def _read_pieces(memory: io.FileIO, address: int) -> Iterator[bytes]:
    """Read up to the end of each page, as the page after it may not be there."""
    end = address + _MAX_PATH_BYTES
    while address < end:
        piece = memory.read(_PAGE_BYTES - address % _PAGE_BYTES)
        if not piece:
            return
        yield piece
        address += len(piece)


def _join(pid: int, directory: int, path: str) -> str:
    if not path or path.startswith("/"):
        return path
    link = "cwd" if directory == _AT_FDCWD else f"fd/{directory}"
    base = _read_link(f"/proc/{pid}/{link}")
    return f"{base}/{path}" if base else ""
