"""Tests that run side by side do not see each other's file systems."""

from __future__ import annotations

import os
from pathlib import Path

from tests.disks import small_disk


def test_a_mount_of_a_test_is_not_seen_by_other_processes_of_pytest() -> None:
    with small_disk("size=64k") as path:
        ours, others = (
            Path(f"/proc/{pid}/mounts").read_text() for pid in (os.getpid(), os.getppid())
        )

    assert str(path) in ours
    assert str(path) not in others
