"""What every source must keep to."""

from __future__ import annotations

import math
from collections.abc import Mapping

from whystuck.agent.interfaces import Source
from whystuck.evidence.nodes.metrics import Sample


def collect(source: Source) -> dict[tuple[str, ...], float]:
    """Ask a source, check what it gives, and return it by name (without ours) and labels."""
    found: dict[tuple[str, ...], float] = {}
    known = {family.name: family for family in source.families}
    for sample in source.collect():
        check(sample)
        assert known[sample.family.name].labels == sample.family.labels
        key = (sample.family.name.removeprefix("whystuck_"), *sample.labels)
        assert key not in found, "a series is given twice"
        found[key] = sample.value
    return found


def check(sample: Sample) -> None:
    assert len(sample.labels) == len(sample.family.labels)
    assert all(isinstance(label, str) for label in sample.labels)
    assert math.isfinite(sample.value)
    assert sample.time_ns > 0
    if sample.family.name.endswith("_ratio"):
        assert sample.value >= 0


def names(found: Mapping[tuple[str, ...], float]) -> set[str]:
    return {key[0] for key in found}
