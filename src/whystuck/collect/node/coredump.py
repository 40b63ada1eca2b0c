"""A core dump of the device of one rank (``--gpu-coredump``), and which kernels run there.

CUDA's driver reads a pipe in each process that was started for it, and dumps the state of the
device to a file when anything is written to it.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from whystuck.collect.processes.proc_files import read_environment
from whystuck.collect.processes.target import Target
from whystuck.evidence.finding import Gap
from whystuck.evidence.records import GPU_CORE_FILE, GPU_KERNELS_FILE, RANK_DIR_PREFIX

WHAT = "core dump of a device"
MAX_BYTES = 256 << 20
DEADLINE_S = 30.0
_GDB_S = 60.0
_MAX_KERNELS_BYTES = 1 << 20
# What is smaller may stay in a buffer of the driver.
_TRIGGER_BYTES = 1 << 20
_LOOK_S = 0.1
# A file that has not grown for so long is complete: nothing else tells.
_QUIET_S = 1.5
_PIECE_BYTES = 1 << 20
_DRIVER = re.compile(r"Kernel Module.{0,40}? ([0-9]{3,4})\.[0-9]")
_FIRST_DRIVER = 555
_SPECIFIERS = re.compile(r"%(.)")


class _DumpError(Exception):
    """There is no dump; the message says why."""


@dataclass(frozen=True)
class _Places:
    """Where a process has its pipe, and writes its dump."""

    pipe: Path
    core: Path


def collect_coredump(
    targets: Iterable[Target],
    folder: Path,
    deadline_s: float = DEADLINE_S,
    max_bytes: int = MAX_BYTES,
) -> list[Gap]:
    """Ask the first rank that listens for a dump of its device, and keep it.

    Args:
        targets: The ranks of this node, the one of most interest first.
        folder: The folder of an incident; the files go into that of the rank.
        deadline_s: After so many seconds, no more is waited for.
        max_bytes: What a dump may have; one of more is not kept.

    Returns:
        Why there is none, or none of its kernels.
    """
    reason = (
        "no rank has a pipe for it: CUDA has not begun, or the environment says otherwise, such as "
        "CUDA_COREDUMP_GENERATION_FLAGS without `skip_abort`, which would end the rank"
    )
    if not _is_safe():
        reason = "a rank would end by it with this driver: CUDA 12.5 (driver 555) is needed"
        return [Gap(None, WHAT, reason)]
    for target in targets:
        places = _find_places(target)
        fd = -1 if places is None else _open_pipe(places.pipe)
        if places is None or fd < 0:
            continue
        rank_dir = folder / target.node / f"{RANK_DIR_PREFIX}{target.rank}"
        try:
            _trigger(fd, places.core, time.monotonic() + deadline_s, max_bytes)
            rank_dir.mkdir(parents=True, exist_ok=True)
            _keep(places.core, rank_dir / GPU_CORE_FILE, max_bytes)
            return _list_kernels(target.rank, rank_dir)
        except _DumpError as error:
            return [Gap(target.rank, WHAT, str(error))]
        except OSError as error:
            return [Gap(target.rank, WHAT, error.strerror or str(error))]
        finally:
            os.close(fd)
            if target.job_dir is not None and places.core.is_relative_to(target.job_dir):
                places.core.unlink(missing_ok=True)
    return [Gap(None, WHAT, reason)]


def _is_safe() -> bool:
    """Return whether a process lives on after a dump: drivers before CUDA 12.5 know no flags."""
    try:
        match = _DRIVER.search(Path("/proc/driver/nvidia/version").read_text(errors="replace"))
    except OSError:
        return True  # nothing tells
    return match is None or int(match[1]) >= _FIRST_DRIVER


def _find_places(target: Target) -> _Places | None:
    try:
        environment = read_environment(target.pid)
    except OSError:
        return None
    if environment.get("CUDA_ENABLE_USER_TRIGGERED_COREDUMP") != "1":
        return None
    # Without this flag, which the user may have left out of flags of their own, the rank aborts.
    if "skip_abort" not in environment.get("CUDA_COREDUMP_GENERATION_FLAGS", "").split(","):
        return None
    pid = target.file_pid or target.pid
    pipe = _expand(environment, "CUDA_COREDUMP_PIPE", pid)
    core = _expand(environment, "CUDA_COREDUMP_FILE", pid)
    return None if pipe is None or core is None else _Places(pipe, core)


def _expand(environment: Mapping[str, str], name: str, pid: int) -> Path | None:
    """Return the path that CUDA makes of a template; None where it is not known."""
    values = {"h": socket.gethostname(), "p": str(pid), "%": "%"}
    template = environment.get(name, "")
    used = set(_SPECIFIERS.findall(template))
    # The time of day is in it, or it lies in a working directory that may have changed.
    if not template.startswith("/") or not used <= set(values):
        return None
    return Path(_SPECIFIERS.sub(lambda match: values[match[1]], template))


def _open_pipe(path: Path) -> int:
    """Open a pipe without waiting for its reader; return -1 where there is none."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return -1
    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return -1


def _trigger(fd: int, core: Path, end_s: float, max_bytes: int) -> None:
    """Write to the pipe until there is a file that no longer grows."""
    before_ns = _measure(core)[1]
    left, size, still_s = _TRIGGER_BYTES, -1, time.monotonic()
    while True:
        now_s = time.monotonic()
        if left and size < 0:
            left -= _write(fd, left)
        grown, written_ns = _measure(core)
        if written_ns == before_ns:
            grown = -1  # that of an earlier time, or none
        if grown > max_bytes:
            raise _DumpError(f"it has more than {max_bytes >> 20} MiB")
        if grown != size:
            size, still_s = grown, now_s
        elif size > 0 and now_s - still_s >= _QUIET_S:
            return
        if now_s >= end_s:
            raise _DumpError("the driver did not write it in time")
        time.sleep(_LOOK_S)


def _write(fd: int, left: int) -> int:
    try:
        return os.write(fd, bytes(min(left, _PIECE_BYTES)))
    except BlockingIOError:
        return 0
    except OSError as error:
        if error.errno == errno.EPIPE:  # the process has gone, or read enough
            return left
        raise


def _measure(core: Path) -> tuple[int, int]:
    """Return size and time of a file, -1 for both where there is none."""
    try:
        status = core.lstat()
    except OSError:
        return -1, -1
    return (status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else (-1, -1)


def _keep(core: Path, target: Path, max_bytes: int) -> None:
    fd = os.open(core, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as source, target.open("wb") as out:
        while (piece := source.read(_PIECE_BYTES)) and out.tell() <= max_bytes:
            out.write(piece)


def _list_kernels(rank: int, folder: Path) -> list[Gap]:
    """Have cuda-gdb list the kernels on the device, where it is there."""
    program = shutil.which("cuda-gdb")
    if program is None:
        by_hand = f"cuda-gdb -batch -ex 'target cudacore {GPU_CORE_FILE}' -ex 'info cuda kernels'"
        reason = f"cuda-gdb is not on the path; where it is, `{by_hand}` lists them"
        return [Gap(rank, "kernels of a device", reason)]
    load = f"target cudacore {GPU_CORE_FILE}"
    command = [program, "-nx", "-batch", "-ex", load, "-ex", "info cuda kernels"]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            timeout=_GDB_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return [Gap(rank, WHAT, "cuda-gdb did not read it")]
    with suppress(OSError):
        (folder / GPU_KERNELS_FILE).write_bytes(done.stdout[:_MAX_KERNELS_BYTES])
    return []
