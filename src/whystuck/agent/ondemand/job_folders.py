"""The folder in which the probes of a job look for what is said to them."""

from __future__ import annotations

import os
from pathlib import Path

from whystuck.collect.environment import read_environment


def leave_word(folder: str, name: str, word: str = "") -> bool:
    """Make a file in a job folder with some words in it, following no link."""
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(Path(folder) / name, flags, 0o600), "w") as file:  # noqa: PTH123 - a number
            file.write(word)
    except OSError:
        return False
    return True


def find_job_dir(pid: int) -> str:
    """Return the job folder of a process that whystuck started, empty for any other."""
    try:
        folder = read_environment(pid).get("WHYSTUCK_JOB_DIR", "")
        is_private = folder.startswith("/") and Path(folder).lstat().st_uid == os.geteuid()
    except (OSError, ValueError):
        return ""
    return folder if is_private else ""
