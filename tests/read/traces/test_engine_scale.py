"""The benchmark of many ranks, on few: engines agree, and a killed worker of Dask loses nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench" / "traces_scale.py"


@pytest.mark.slow
def test_32_ranks_with_a_killed_worker() -> None:
    done = subprocess.run(
        [sys.executable, BENCH, "--ranks", "32", "--megabytes", "2"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok  ") == 7
