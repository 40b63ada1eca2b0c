"""Five minutes of the soak: nothing of whystuck grows in a job with groups, switches, traces."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from bench.soak_slopes import Slope, fit_slope
from bench.soak_watch import measure_arenas
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
    assert fit_slope(times_s, alive, lowest=True) == Slope(0.0, 0.0, 0.0)
    left: Values = np.floor(np.linspace(0.0, 2.9, 400))
    assert fit_slope(times_s, alive + left, lowest=True).low > 0


def test_memory_that_is_given_back_is_no_growth_and_what_is_left_of_it_is() -> None:
    chance = np.random.default_rng(2)
    times_s = np.linspace(0.0, 1620.0, 324, dtype=np.float64)
    # Commands meet the looks by chance: more of them at the end, as in one run of two.
    taken: Values = np.where(chance.random(324) < np.linspace(0.1, 0.5, 324), 5.0, 0.0)
    noise: Values = chance.normal(0.0, 0.05, 324)
    assert fit_slope(times_s, 220 + taken + noise).low > 1
    kept = fit_slope(times_s, 220 + taken + noise, lowest=True)
    assert kept.low < 0.5
    assert kept.high > -0.5
    left: Values = np.linspace(0.0, 2.0, 324)
    assert fit_slope(times_s, 220 + taken + noise + left, lowest=True).low > 3


def test_heaps_of_threads_are_told_from_the_first_heap_and_from_other_mappings() -> None:
    size = "Size:   132 kB\nAnonymous:   {} kB\nVmFlags: rd wr\n"
    smaps = (
        "5581b07e1000-5581b10da000 rw-p 00000000 00:00 0        [heap]\n" + size.format(9000)
        + "7ff91c000000-7ff91c11d000 rw-p 00000000 00:00 0 \n" + size.format(668)
        + "7ff91c11d000-7ff920000000 ---p 00000000 00:00 0 \n" + size.format(0)
        + "7ff928000000-7ff928123000 rw-p 00000000 00:00 0 \n" + size.format(356)
        + "7ff926efe000-7ff926ffe000 rw-p 00000000 00:00 0 \n" + size.format(432)
        + "7ff930000000-7ff930100000 rw-p 00000000 08:01 7   /lib/a.so\n" + size.format(8)
    )  # fmt: skip
    assert measure_arenas(smaps) == (668 + 356) / 1024


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
