"""Whether a pid that a driver tells of is the process that has this pid where we live.

In a container without the host's processes, a driver may tell pids of the host. One of ours may
have the same number by chance, so it counts only when it has the driver's library loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from whystuck.collect.processes.proc_files import has_loaded

# PROC_PID_INIT_INO of the kernel: the namespace in which it counts processes itself.
_FIRST_NAMESPACE: Final = 0xEFFFFFFC
_MAX_KNOWN: Final = 1024
_known: dict[tuple[int, int], bool] = {}


def uses_library(pid: int, library: bytes) -> bool:
    """Tell whether a process is the one that the driver means; what cannot be read is not."""
    if _sees_all():
        return True
    try:
        # Of this moment of this process: the number may be used again.
        key = (pid, Path(f"/proc/{pid}").stat().st_ctime_ns)
        if key not in _known:
            if len(_known) >= _MAX_KNOWN:
                _known.clear()
            _known[key] = has_loaded(pid, library)
        return _known[key]
    except OSError:
        return False


def _sees_all() -> bool:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _FIRST_NAMESPACE
    except OSError:
        return False
