"""The executed lines of a rank: from the job folder, packed, into an evidence folder."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

from whystuck.collect.job_dirs import read_artifact

# The largest that the probe makes has 64 threads of 10,000 lines.
_MAX_BYTES = 16 * 1024 * 1024


def copy_executed(source: Path, target: Path) -> bool:
    """Copy the file of a rank, which may be writing it; return whether there was one.

    Args:
        source: The file in the job folder.
        target: Where the packed copy goes.

    Raises:
        OSError: It cannot be copied.
    """
    try:
        data = read_artifact(source, _MAX_BYTES)
    except FileNotFoundError:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part-{os.getpid()}")
    part.write_bytes(gzip.compress(data, compresslevel=1, mtime=0))
    part.replace(target)
    return True
