"""How much later a rank came than the others."""

from __future__ import annotations

import numpy as np
import pytest

from whystuck.tracing.collectives.skew import _compare


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8, 16])
def test_each_is_compared_with_the_median_of_the_others(count: int) -> None:
    rng = np.random.default_rng(count)
    values = rng.integers(0, 20, (count, 60)).astype(float)
    values[rng.random(values.shape) < 0.2] = np.nan

    found = _compare(values)

    for row, column in np.ndindex(values.shape):
        others = np.delete(values[:, column], row)
        others = others[~np.isnan(others)]
        if np.isnan(values[row, column]) or not len(others):
            assert np.isnan(found[row, column])
        else:
            assert found[row, column] == values[row, column] - np.median(others)


def test_of_many_the_median_of_all_serves() -> None:
    values = np.arange(40.0)[:, None]

    assert _compare(values)[39, 0] == 19.5
