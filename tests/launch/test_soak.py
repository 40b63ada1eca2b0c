"""Five minutes of the soak: nothing of whystuck grows in a job with groups, switches, traces."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.launch.running import clean_environment

BENCH = Path(__file__).parents[2] / "bench/soak.py"


@pytest.mark.slow
def test_nothing_grows_in_five_minutes(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH), "--minutes", "5", "--collectives", "110000"]
    done = subprocess.run(
        [*command, "--keep", str(tmp_path / "kept")],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env=clean_environment(),
    )
    assert done.returncode == 0, done.stdout + done.stderr
