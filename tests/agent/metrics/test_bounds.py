"""What goes on from a source is bounded, whatever it gives."""

from __future__ import annotations

import math
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystuck.agent.metrics.bounds import MAX_LABEL_CHARS, Bounds, clean_label
from whystuck.evidence.nodes.metrics import MetricFamily, MetricKind, Sample

FAMILY = MetricFamily(
    name="whystuck_test_bytes", kind=MetricKind.GAUGE, help="A size.", labels=("device",)
)


def sample(label: str, value: float = 1.0) -> Sample:
    return Sample(family=FAMILY, value=value, labels=(label,))


def test_samples_get_the_time_of_the_round() -> None:
    [kept] = Bounds([FAMILY]).apply([sample("sda")], 42)

    assert (kept.labels, kept.value, kept.time_ns) == (("sda",), 1.0, 42)


def test_series_above_the_cap_are_dropped_and_counted() -> None:
    bounds = Bounds([FAMILY], max_series=3)

    kept = bounds.apply([sample(str(i)) for i in range(10)], 1)

    assert [one.labels[0] for one in kept] == ["0", "1", "2"]
    assert bounds.dropped == {FAMILY.name: 7}


def test_series_that_were_there_go_before_new_ones() -> None:
    bounds = Bounds([FAMILY], max_series=2)
    bounds.apply([sample("x"), sample("y")], 1)

    kept = bounds.apply([sample("a"), sample("b"), sample("y")], 2)

    assert {one.labels[0] for one in kept} == {"y", "a"}


def test_series_that_ended_make_room() -> None:
    bounds = Bounds([FAMILY], max_series=1)
    bounds.apply([sample("x")], 1)
    bounds.apply([], 2)

    kept = bounds.apply([sample("a"), sample("x")], 3)

    assert [one.labels[0] for one in kept] == ["a"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_dropped(value: float) -> None:
    bounds = Bounds([FAMILY])

    assert bounds.apply([sample("x", value), sample("y")], 1) != []
    assert bounds.dropped == {FAMILY.name: 1}


def test_a_series_given_twice_counts_once() -> None:
    bounds = Bounds([FAMILY])

    [kept] = bounds.apply([sample("x", 1), sample("x", 2)], 1)

    assert kept.value == 1
    assert bounds.dropped == {FAMILY.name: 1}


def test_a_family_the_source_did_not_name_is_dropped() -> None:
    other = MetricFamily(name="whystuck_other", kind=MetricKind.GAUGE, help="Not told.")
    bounds = Bounds([FAMILY])

    assert bounds.apply([Sample(family=other, value=1.0)], 1) == []
    assert bounds.dropped == {"": 1}


def test_labels_that_do_not_fit_are_dropped() -> None:
    bounds = Bounds([FAMILY])

    assert bounds.apply([Sample(family=FAMILY, value=1.0)], 1) == []
    assert bounds.dropped == {FAMILY.name: 1}


@given(st.text(st.characters(codec=None), max_size=3 * MAX_LABEL_CHARS))
def test_any_label_becomes_short_and_printable(text: str) -> None:
    cleaned = clean_label(text)

    assert len(cleaned) <= MAX_LABEL_CHARS
    # No control, format or line character; other spaces than ours do no harm.
    assert not {unicodedata.category(one) for one in cleaned} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert cleaned.encode() or not text


def test_a_plain_label_stays() -> None:
    assert clean_label("mlx5_0 größe") == "mlx5_0 größe"
