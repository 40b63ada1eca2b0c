"""Figures that an agent reads of its node and its ranks, in the form that all sinks take."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class MetricKind(StrEnum):
    """What a sink may do with a figure: a counter only grows, until its source starts anew."""

    GAUGE = "gauge"
    COUNTER = "counter"


class MetricFamily(msgspec.Struct, kw_only=True, frozen=True):
    """One metric: its name as Prometheus wants it, with the base unit at the end.

    ``labels`` are the names of the labels of its samples, beside ``node``, which all have.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()


class Sample(msgspec.Struct, kw_only=True, frozen=True):
    """One value of a metric; ``labels`` are in the order of its family."""

    family: MetricFamily
    value: float
    labels: tuple[str, ...] = ()
    time_ns: int = 0
