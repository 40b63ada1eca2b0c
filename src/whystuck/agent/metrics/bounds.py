"""What may go on from a source: known families, few series, clean labels, real numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec

from whystuck.evidence.nodes.metrics import MetricFamily, Sample
from whystuck.safe_text.escaping import show_line

MAX_SERIES = 2048
"""Series of one family, when nothing else is asked for."""
MAX_LABEL_CHARS = 128
# What a source may give in one round at all, before anything is looked at.
_MAX_SAMPLES = 100_000
_Key = tuple[str, ...]


def clean_label(text: str) -> str:
    """Return a label value in visible characters and without secrets, cut to 128."""
    return show_line(text, MAX_LABEL_CHARS)[:MAX_LABEL_CHARS]


class Bounds:
    """Bounds the samples of one source.

    A series that was there in the round before goes before a new one, so that those above the cap
    are always the same. One that a source no longer gives is forgotten.
    """

    def __init__(self, families: Sequence[MetricFamily], max_series: int = MAX_SERIES) -> None:
        self._families = {family.name: family for family in families}
        self._max_series = max_series
        self._known: dict[str, set[_Key]] = {}
        self.dropped: Counter[str] = Counter()
        """Samples that did not go on, by family; those of no family of the source under ""."""

    def apply(self, samples: Iterable[Sample], time_ns: int) -> list[Sample]:
        """Return what may go on; ``time_ns`` is for samples that have no time of their own."""
        found: dict[str, dict[_Key, Sample]] = {name: {} for name in self._families}
        for sample in islice(samples, _MAX_SAMPLES):
            kept = self._check(sample, time_ns)
            if kept is None:
                continue
            of_family = found[kept.family.name]
            if kept.labels in of_family:
                self.dropped[kept.family.name] += 1
            else:
                of_family[kept.labels] = kept
        return [one for name, series in found.items() for one in self._cap(name, series)]

    def _check(self, sample: Sample, time_ns: int) -> Sample | None:
        family = self._families.get(sample.family.name)
        if family is None:
            self.dropped[""] += 1
            return None
        if len(sample.labels) != len(family.labels) or not math.isfinite(sample.value):
            self.dropped[family.name] += 1
            return None
        if sample.time_ns and sample.labels in self._known.get(family.name, ()):
            return sample
        labels = tuple(map(clean_label, sample.labels))
        if labels == sample.labels and sample.time_ns:
            return sample
        return msgspec.structs.replace(sample, labels=labels, time_ns=sample.time_ns or time_ns)

    def _cap(self, name: str, series: dict[_Key, Sample]) -> Iterable[Sample]:
        if len(series) > self._max_series:
            known = self._known.get(name, set())
            chosen = [key for key in series if key in known]
            chosen += [key for key in series if key not in known]
            self.dropped[name] += len(series) - self._max_series
            series = {key: series[key] for key in chosen[: self._max_series]}
        self._known[name] = set(series)
        return series.values()
