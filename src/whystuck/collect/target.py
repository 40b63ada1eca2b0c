"""Who is asked: one process of one rank."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """A rank's process on this node; ``job_dir`` is None when it runs without the probe."""

    rank: int
    pid: int
    node: str
    job_dir: Path | None = None

    def artifact(self, kind: str) -> Path | None:
        """Return the path of one of the probe's artifacts, e.g. ``beat``."""
        return None if self.job_dir is None else self.job_dir / f"{kind}-{self.pid}"
