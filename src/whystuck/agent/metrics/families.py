"""Short forms to write down the metrics of a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from whystuck.evidence.nodes.metrics import MetricFamily, MetricKind, Sample


def gauge(name: str, text: str, *labels: str) -> MetricFamily:
    """Return a metric that goes up and down; ``name`` is without ``whystuck_``."""
    return MetricFamily(name=f"whystuck_{name}", kind=MetricKind.GAUGE, help=text, labels=labels)


def counter(name: str, text: str, *labels: str) -> MetricFamily:
    """Return a metric that only grows; ``name`` is without ``whystuck_``, and ends in _total."""
    return MetricFamily(name=f"whystuck_{name}", kind=MetricKind.COUNTER, help=text, labels=labels)


def fill(
    families: Mapping[str, MetricFamily],
    values: Mapping[str, float | None],
    labels: Sequence[str],
    time_ns: int,
) -> list[Sample]:
    """Make a sample of each family whose key has a value; what is None or absent is left out."""
    return [
        Sample(family=families[key], value=value, labels=tuple(labels), time_ns=time_ns)
        for key, value in values.items()
        if value is not None and key in families
    ]
