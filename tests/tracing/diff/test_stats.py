"""Tests of differences keep their promise on chance, and find what is there."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whystuck.tracing.diff.stats import (
    Samples,
    adjust,
    bound_difference,
    compare_pairs,
    compare_samples,
    count_block,
    merge_blocks,
    tail_of_t,
)


@pytest.mark.parametrize(("a", "b"), [(2, 2), (3, 3), (4, 4), (6, 5), (12, 30), (20, 20)])
def test_false_alarms_are_as_rare_as_promised(a: int, b: int) -> None:
    rng = np.random.default_rng(7)
    columns = 3000
    # Times of steps have a long tail.
    made = [rng.lognormal(0, 0.4, (count, columns)) for count in (a, b)]

    p = compare_samples(Samples(made[0], made[1]))

    for level in (0.05, 0.01):
        bound = level + 3 * math.sqrt(level * (1 - level) / columns)
        assert (p < level).mean() <= bound


def test_a_change_of_two_percent_is_found_in_many_steps() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(100, 2, (40, 1)), rng.normal(102, 2, (40, 1))

    assert compare_samples(Samples(a, b))[0] < 0.001


def test_single_long_samples_do_not_hide_a_change() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.normal(100, 1, (20, 1)), rng.normal(105, 1, (20, 1))
    a[3] = b[7] = 5000

    assert compare_samples(Samples(a, b))[0] < 0.001


def test_long_samples_that_are_the_change_are_found() -> None:
    rng = np.random.default_rng(5)
    a, b = rng.normal(100, 1, (40, 1)), rng.normal(100, 1, (40, 1))
    b[::4] = 400

    assert compare_samples(Samples(a, b))[0] < 0.01


def test_a_single_sample_tells_nothing() -> None:
    one, many = np.array([[1.0, 2.0]]), np.array([[1.0, 2.0], [3.0, 4.0]])

    assert np.isnan(compare_samples(Samples(one, many))).all()
    assert np.isnan(compare_pairs(one, one)).all()
    assert bound_difference(one[:, 0], many[:, 0]) is None


def test_equal_samples_do_not_differ() -> None:
    same = np.full((6, 2), 5.0)

    assert compare_samples(Samples(same, same)).tolist() == [1, 1]
    assert compare_samples(Samples(same, same[:2])).tolist() == [1, 1]


def test_samples_without_spread_differ_for_sure() -> None:
    one, other = np.full((3, 1), 5.0), np.full((3, 1), 6.0)

    assert compare_samples(Samples(one, other))[0] < 0.001


def test_pairs_of_ranks_are_compared_with_themselves() -> None:
    rng = np.random.default_rng(6)
    a = rng.normal(100, 20, (8, 1))
    b = a + rng.normal(5, 1, (8, 1))

    assert compare_pairs(a, b)[0] < 0.001
    assert compare_samples(Samples(a, b))[0] > 0.1


@pytest.mark.parametrize(
    ("value", "degrees", "tail"),
    [(0, 3, 0.5), (2, 10, 0.036694), (12.706205, 1, 0.025), (4.302653, 2, 0.025), (8, 30, 3.12e-9)],
)
def test_the_tail_of_t_is_that_of_tables(value: float, degrees: float, tail: float) -> None:
    assert tail_of_t(value, degrees) == pytest.approx(tail, rel=1e-2)


def test_many_tests_are_bounded_as_benjamini_and_hochberg_do() -> None:
    adjusted = adjust(np.array([0.01, 0.04, np.nan, 0.03, 0.005]))

    assert adjusted[[0, 1, 3, 4]].tolist() == pytest.approx([0.02, 0.04, 0.04, 0.02])
    assert math.isnan(adjusted[2])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1), max_size=30))
def test_adjusted_values_keep_their_order(values: list[float]) -> None:
    p = np.array(values, dtype=np.float64)
    adjusted = adjust(p)

    assert (adjusted >= p - 1e-12).all()
    assert (adjusted <= 1).all()
    assert (np.diff(adjusted[np.argsort(p, kind="stable")]) >= -1e-12).all()


@pytest.mark.parametrize("count", [3, 40])
def test_the_interval_holds_the_difference(count: int) -> None:
    rng = np.random.default_rng(8)
    held = 0
    for _ in range(200):
        a, b = rng.normal(100, 5, count), rng.normal(110, 5, count)
        bounds = bound_difference(a, b)
        assert bounds is not None
        held += bounds[0] <= 10 <= bounds[1]

    assert held >= 180


def test_samples_that_are_like_those_before_them_count_as_fewer() -> None:
    rng = np.random.default_rng(9)
    drift = np.cumsum(rng.normal(0, 1, 100))

    assert count_block(rng.normal(0, 1, 100)) == 1
    assert count_block(drift) > 5
    assert merge_blocks(np.arange(7.0)[:, None], 3)[:, 0].tolist() == [1, 4.5]
