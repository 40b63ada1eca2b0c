"""Sources and sinks for tests of what runs them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from whystuck.evidence.nodes.metrics import MetricFamily, MetricKind, Sample

GAUGE = MetricFamily(
    name="whystuck_test_ratio", kind=MetricKind.GAUGE, help="A share.", labels=("part",)
)


class PlainSource:
    """Gives what a function gives."""

    def __init__(
        self, name: str, give: Callable[[], Iterable[Sample]], every_s: float = 0.05
    ) -> None:
        self.name = name
        self.every_s = every_s
        self.families: Sequence[MetricFamily] = (GAUGE,)
        self.problem = ""
        self._give = give

    def collect(self) -> Iterable[Sample]:
        return self._give()


class KeepingSink:
    """Keeps all rounds, and tells when there are some."""

    def __init__(self, name: str = "keeping", work: Callable[[], object] = lambda: None) -> None:
        self.name = name
        self.rounds: list[Sequence[Sample]] = []
        self.is_closed = threading.Event()
        self._work = work
        self._changed = threading.Condition()

    def write(self, samples: Sequence[Sample]) -> None:
        self._work()
        with self._changed:
            self.rounds.append(samples)
            self._changed.notify_all()

    def close(self) -> None:
        self.is_closed.set()

    def wait_for(self, is_enough: Callable[[list[Sequence[Sample]]], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: is_enough(self.rounds), timeout=60)


def one(part: str, value: float = 1.0) -> Sample:
    return Sample(family=GAUGE, value=value, labels=(part,))


def parts_of(samples: Sequence[Sample]) -> set[str]:
    return {sample.labels[0] for sample in samples}
