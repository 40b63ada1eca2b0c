"""Who is asked: one process of one rank."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from whystuck.collect.job_dirs import read_artifact

_MAX_DIGITS = 20


@dataclass(frozen=True)
class Target:
    """A rank's process on this node; ``job_dir`` is None when it runs without the probe.

    ``file_pid`` is its number in its own PID namespace, by which the probe names its files; 0 where
    it is ``pid``, and -1 where two processes have the same one, so that no file is known to be its.
    ``start_ticks`` is when it started, in ticks since boot; 0 where that is not known.
    """

    rank: int
    pid: int
    node: str
    job_dir: Path | None = None
    file_pid: int = 0
    start_ticks: int = 0

    def artifact(self, kind: str) -> Path | None:
        """Return the path of one of the probe's artifacts, e.g. ``beat``."""
        if self.job_dir is None:
            return None
        number = self.file_pid or self.pid
        is_owner = owns_files(self.job_dir, number, self.start_ticks)
        return self.job_dir / name_artifact(kind, number if is_owner else -1)


def owns_files(job_dir: Path, file_pid: int, start_ticks: int) -> bool:
    """Tell whether files named by a pid are of the process that started at a time, or may be.

    A pid is used again: the probe of a rank takes the files of the one before away, and leaves its
    time of start; of a process without a probe nobody does.

    Args:
        job_dir: The folder of the job.
        file_pid: The number of the process in its own PID namespace.
        start_ticks: When it started, in ticks since boot; 0 where that is not known.
    """
    if not start_ticks or file_pid < 0:
        return True
    try:
        return int(read_artifact(job_dir / f"start-{file_pid}", _MAX_DIGITS)) == start_ticks
    except (OSError, ValueError):
        return True  # a probe of an earlier release says nothing


def name_artifact(kind: str, file_pid: int) -> str:
    """Return the name of a probe's file; that of one that is never there where -1 is given."""
    return f"{kind}-{file_pid if file_pid >= 0 else 'of-nobody'}"
