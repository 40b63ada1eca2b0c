"""Five minutes of the soak: nothing of whystuck grows in a job with groups, switches, traces."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from bench.soak_slopes import Slope, fit_slope
from numpy.typing import NDArray
from tests.launch.running import clean_environment

Values = NDArray[np.float64]
BENCH = Path(__file__).parents[2] / "bench/soak.py"


def test_what_a_group_has_while_it_lives_is_no_growth_and_what_it_leaves_is() -> None:
    chance = np.random.default_rng(1)
    times_s = np.linspace(0.0, 1995.0, 400, dtype=np.float64)
    # A group is there at a look more and more often, as on a machine that becomes slower.
    alive: Values = np.where(chance.random(400) < np.linspace(0.2, 0.7, 400), 25.0, 20.0)
    assert fit_slope(times_s, alive).low > 0
    assert fit_slope(times_s, alive, is_count=True) == Slope(0.0, 0.0, 0.0)
    left: Values = np.floor(np.linspace(0.0, 2.9, 400))
    assert fit_slope(times_s, alive + left, is_count=True).low > 0


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
