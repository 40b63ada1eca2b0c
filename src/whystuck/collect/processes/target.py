"""Who is asked: one process of one rank."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """A rank's process on this node; ``job_dir`` is None when it runs without the probe.

    ``file_pid`` is its number in its own PID namespace, by which the probe names its files; 0 where
    it is ``pid``, and -1 where two processes have the same one, so that no file is known to be its.
    """

    rank: int
    pid: int
    node: str
    job_dir: Path | None = None
    file_pid: int = 0

    def artifact(self, kind: str) -> Path | None:
        """Return the path of one of the probe's artifacts, e.g. ``beat``."""
        if self.job_dir is None:
            return None
        return self.job_dir / name_artifact(kind, self.file_pid or self.pid)


def name_artifact(kind: str, file_pid: int) -> str:
    """Return the name of a probe's file; that of one that is never there where -1 is given."""
    return f"{kind}-{file_pid if file_pid >= 0 else 'of-nobody'}"
