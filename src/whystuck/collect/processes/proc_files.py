"""The files of a process in /proc: variables, words, libraries, state, times, children.

A process may say that any part of its memory holds its variables (``PR_SET_MM``), a TiB of zeros
too, so that all of this is read up to a size. It is named by its pid, by ``self``, or, for one
thread, as ``PID/task/TID``.
"""

from __future__ import annotations

import os
from typing import Final

# An exec with the usual stack takes no more variables and words than this.
_MAX_ENVIRONMENT_BYTES: Final = 2 << 20
_MAX_COMMAND_BYTES: Final = 1 << 16
# A process may have 65,530 maps with paths of 4 KB.
_MAX_MAPS_BYTES: Final = 16 << 20
# ``status`` lists up to 65,536 groups; what else is read at once is far smaller.
_MAX_SMALL_BYTES: Final = 1 << 16
_MAX_CGROUPS: Final = 64
_MAX_DESCENDANTS: Final = 8192
_ENDED: Final = frozenset({b"Z", b"X"})


def read_environment(pid: int) -> dict[str, str]:
    """Return the environment a process was started with; raises OSError when not allowed."""
    raw = read_start_of(pid, "environ", _MAX_ENVIRONMENT_BYTES)
    pairs = (item.partition("=") for item in raw.decode(errors="replace").split("\0") if item)
    return {name: value for name, _, value in pairs}


def read_words(pid: int) -> list[str]:
    """Return the words of the command of a process; empty when it is gone or may not be read."""
    try:
        raw = read_start_of(pid, "cmdline", _MAX_COMMAND_BYTES).rstrip(b"\0")
    except OSError:
        return []
    return raw.decode(errors="replace").split("\0") if raw else []


def has_loaded(pid: int, library: bytes) -> bool:
    """Return whether a process has mapped a library; raises OSError when that cannot be seen."""
    return library in read_start_of(pid, "maps", _MAX_MAPS_BYTES)


def read_stat(process: int | str) -> list[bytes]:
    """Return the fields of ``stat`` from the state on, see proc(5); empty when it is gone."""
    # The name before them may hold anything.
    return _read_at_once(process, "stat").rpartition(b")")[2].split()


def read_state(process: int | str) -> str:
    """Return the letter of the state of a process; empty when it is gone."""
    return _read_at_once(process, "stat").rpartition(b") ")[2][:1].decode()


def read_start(pid: int) -> tuple[int, int] | None:
    """Return the parent of a process, and when it started in ticks since boot; None when ended."""
    fields = read_stat(pid)
    return (int(fields[1]), int(fields[19])) if fields and fields[0] not in _ENDED else None


def is_alive(pid: int) -> bool:
    """Return whether a process is there, and no zombie."""
    return read_start(pid) is not None


def read_status(process: int | str) -> dict[str, str]:
    """Return the lines of ``status`` by their names; empty when it is gone."""
    lines = _read_at_once(process, "status").decode(errors="replace").split("\n")
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def read_name(pid: int) -> str:
    """Return the name of the main thread, which torch sets for workers of data loaders."""
    return _read_at_once(pid, "comm").decode(errors="replace").strip()


def read_cgroups(pid: int) -> dict[str, str]:
    """Return the path of each controller of a process, that of version 2 under ""."""
    paths: dict[str, str] = {}
    lines = _read_at_once(pid, "cgroup").decode(errors="replace").splitlines()
    for line in lines[:_MAX_CGROUPS]:
        controllers, _, path = line.partition(":")[2].partition(":")
        paths |= dict.fromkeys(controllers.split(","), path)
    return paths


def list_descendants(pid: int) -> set[int]:
    """Return all processes below one, as many as 8192; those that come and go may be missing."""
    found: set[int] = set()
    waiting = [pid]
    while waiting and len(found) < _MAX_DESCENDANTS:
        new = set(list_children(waiting.pop())) - found
        found |= new
        waiting += new
    return found


def list_threads(pid: int) -> list[str]:
    """Return the threads of a process; empty when it is gone."""
    try:
        return os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - names are all that is wanted
    except OSError:
        return []


def list_children(pid: int) -> list[int]:
    """Return the children of all threads of a process, as the kernel lists them."""
    children = (list_children_of_thread(pid, thread) for thread in list_threads(pid))
    return [child for listed in children for child in listed]


def list_children_of_thread(pid: int, thread: int | str) -> list[int]:
    """Return the children of one thread; empty when it is gone."""
    try:
        with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123 - speed
            return list(map(int, file.read().split()))
    except OSError:
        return []


def read_start_of(pid: int, name: str, max_bytes: int) -> bytes:
    """Return the first bytes of a file of a process in /proc; raises OSError."""
    with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123 - half the time of Path
        return file.read(max_bytes)


def _read_at_once(process: int | str, name: str) -> bytes:
    """Return a small file, which takes one call; empty when it is gone or may not be read."""
    try:
        return read_small(process, name)
    except OSError:
        return b""


def read_small(process: int | str, name: str) -> bytes:
    """Return a small file, which takes one call; raises OSError."""
    file = os.open(f"/proc/{process}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, _MAX_SMALL_BYTES)
    finally:
        os.close(file)
