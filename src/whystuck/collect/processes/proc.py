"""The kernel's view of a process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

from whystuck.collect.processes.file_waits import collect_file_waits
from whystuck.collect.processes.proc_files import list_children, read_small, read_status, read_words
from whystuck.evidence.records import ProcSample
from whystuck.safe_text.secrets import hide_arguments

_MAX_DESCENDANTS = 256
_STATE_LETTERS = {
    psutil.STATUS_RUNNING: "R",
    psutil.STATUS_SLEEPING: "S",
    psutil.STATUS_DISK_SLEEP: "D",
    psutil.STATUS_STOPPED: "T",
    psutil.STATUS_TRACING_STOP: "t",
    psutil.STATUS_ZOMBIE: "Z",
    psutil.STATUS_DEAD: "X",
    psutil.STATUS_IDLE: "I",
}


def collect_process(pid: int) -> ProcSample | None:
    """Look once at a process; None when it is gone. What may not be read stays at zero."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            taken_ns, name = time.time_ns(), process.name()
            state, num_threads = process.status(), process.num_threads()
            command = hide_arguments(read_words(pid)[:64])
    except (psutil.Error, OSError):
        return None
    children_cpu_s = -1.0
    if Path(f"/proc/{pid}/task/{pid}/children").exists():  # not in every kernel
        children_cpu_s = times.children_user + times.children_system + _sum_cpu_below(pid)
    read_bytes, write_bytes = _read_io(pid)
    return ProcSample(
        taken_ns=taken_ns,
        pid=pid,
        name=name,
        state=_STATE_LETTERS.get(state, "?"),
        wchan=_read_wchan(pid),
        cpu_s=times.user + times.system,
        read_bytes=read_bytes,
        write_bytes=write_bytes,
        num_threads=num_threads,
        command=tuple(command),
        file_waits=tuple(collect_file_waits(pid)),
        children_cpu_s=children_cpu_s,
        switches=read_switches(pid),
    )


def _sum_cpu_below(pid: int) -> float:
    """Return the CPU seconds of all living descendants and of the children they have lost."""
    total_s, waiting = 0.0, list_children(pid)
    for _ in range(_MAX_DESCENDANTS):
        if not waiting:
            break
        child = waiting.pop()
        waiting += list_children(child)
        try:
            times = psutil.Process(child).cpu_times()
        except (psutil.Error, OSError):
            continue
        total_s += times.user + times.system + times.children_user + times.children_system
    return total_s


def _read_wchan(pid: int) -> str:
    try:
        name = Path(f"/proc/{pid}/wchan").read_text(errors="replace").strip()
    except OSError:
        return ""
    return "" if name == "0" else name


def read_switches(pid: int) -> int:
    """Return how often the main thread was taken off a processor so far; -1 when unknown."""
    lines = read_status(pid).items()
    counts = [int(value) for name, value in lines if name.endswith("_ctxt_switches")]
    return sum(counts) if counts else -1


def read_inner_pid(pid: int) -> int:
    """Return the number of a process in its own PID namespace, -1 where that cannot be read."""
    numbers = read_status(pid).get("NSpid", "").split()
    return int(numbers[-1]) if numbers else -1


def catches_signal(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal now; False where that is unknown."""
    mask = read_status(pid).get("SigCgt", "")
    return bool(mask) and bool(int(mask, 16) >> (number - 1) & 1)


def has_open(pid: int, path: Path) -> bool:
    """Return whether a process has a file open; False where that cannot be seen."""
    try:
        wanted = path.stat()
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
    for link in links:
        try:
            if os.path.samestat(link.stat(), wanted):
                return True
        except OSError:  # closed meanwhile
            continue
    return False


def _read_io(pid: int) -> tuple[int, int]:
    """Return bytes read and written by system calls, the page cache included."""
    try:
        lines = read_small(pid, "io").decode().splitlines()
    except OSError:
        return 0, 0
    values = dict(line.split(": ") for line in lines if ": " in line)
    return int(values.get("rchar", 0)), int(values.get("wchar", 0))


def list_worker_pids(pid: int) -> list[int]:
    """Return the descendants of a rank that may be its data-loader workers, oldest first.

    Helpers without user code, such as multiprocessing's resource tracker, are left out.
    """
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []
    return [child.pid for child in children if _may_be_worker(child)]


def _may_be_worker(process: psutil.Process) -> bool:
    try:
        if process.name() == "pt_data_worker":
            return True
        command = " ".join(read_words(process.pid))
    except psutil.Error:
        return False
    if "resource_tracker" in command or "py-spy" in command or "compile_worker" in command:
        return False
    return "python" in command or "multiprocessing" in command
