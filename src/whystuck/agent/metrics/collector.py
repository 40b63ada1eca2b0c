"""Reads all sources, each at its own pace, and hands what they gave to all sinks.

Every source and every sink has a thread of its own: one that hangs, raises or is slow costs only
itself. A *round* is the last figures of all sources; those of a source that has given nothing for
three of its intervals are left out, as nobody knows how it stands now.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from whystuck.agent.interfaces import Sink, Source
from whystuck.agent.metrics.bounds import MAX_SERIES, Bounds
from whystuck.evidence.nodes.metrics import Sample

_log = logging.getLogger(__name__)

ROUND_S = 5.0
_STALE_INTERVALS = 3
_MIN_EVERY_S = 0.05
# A source that takes more of a core than this is asked less often.
_MAX_CPU_SHARE = 0.005
_SINK_QUEUE = 2
_STOP_S = 2.0
_MAX_PROBLEM_CHARS = 300


@dataclass(frozen=True)
class SourceState:
    """How a source does: what its runs took so far, and what is wrong with it now."""

    name: str
    runs: int
    errors: int
    cpu_s: float
    last_run_s: float
    age_s: float
    problem: str
    dropped: dict[str, int]


@dataclass(frozen=True)
class SinkState:
    """How a sink does: the rounds it took, lost because it was slow, and failed."""

    name: str
    written: int
    dropped: int
    errors: int
    problem: str


@dataclass
class _Figures:
    """What a thread has done; replaced as a whole, so that readers need no lock."""

    samples: list[Sample] = field(default_factory=list)
    taken_s: float = 0.0


class _SourceThread:
    def __init__(self, source: Source, max_series: int, stop: threading.Event) -> None:
        self.source = source
        self.pace = 1.0
        self._bounds = Bounds(source.families, max_series)
        self._stop = stop
        self._figures = _Figures()
        self._began_s = time.monotonic()
        self._runs = self._errors = 0
        self._cpu_s = self._last_run_s = 0.0
        self._raised = ""
        self.thread = threading.Thread(target=self._run, name=f"from-{source.name}", daemon=True)

    @property
    def every_s(self) -> float:
        return max(_MIN_EVERY_S, self.source.every_s * self.pace)

    def _run(self) -> None:
        due_s = time.monotonic()
        while not self._stop.wait(max(0.0, due_s - time.monotonic())):
            cpu_s = self._collect()
            # The next time on the grid that is still to come: runs that were missed stay missed.
            every_s = max(self.every_s, cpu_s / _MAX_CPU_SHARE)
            due_s += every_s * max(1, -((due_s - time.monotonic()) // every_s))
        self._close()

    def _close(self) -> None:
        """Let a source go that holds something open."""
        close = getattr(self.source, "close", None)
        try:
            if close is not None:
                close()
        except Exception as error:  # noqa: BLE001 - as below
            self._say(f"{type(error).__name__}: {error}")

    def _collect(self) -> float:
        """Ask the source once; return the CPU seconds that it took."""
        began_s, began_cpu_s = time.monotonic(), time.thread_time()
        try:
            samples = self._bounds.apply(self.source.collect(), time.time_ns())
        except Exception as error:  # noqa: BLE001 - whatever a source does, it costs only itself
            self._errors += 1
            self._say(f"{type(error).__name__}: {error}")
        else:
            self._raised = ""
            self._figures = _Figures(samples, time.monotonic())
        self._runs += 1
        cpu_s = time.thread_time() - began_cpu_s
        self._cpu_s += cpu_s
        self._last_run_s = time.monotonic() - began_s
        return cpu_s

    def _say(self, problem: str) -> None:
        if problem != self._raised:
            _log.warning("metrics source %s failed: %s", self.source.name, problem)
        self._raised = problem

    def read(self) -> list[Sample]:
        """Return what it gave last, and nothing when that is too old."""
        figures = self._figures
        age_s = time.monotonic() - figures.taken_s
        # It may be asked less often than it wants, and is not stale for that.
        limit_s = _STALE_INTERVALS * max(self.every_s, self._mean_cpu_s() / _MAX_CPU_SHARE)
        return figures.samples if age_s <= limit_s else []

    def _mean_cpu_s(self) -> float:
        return self._cpu_s / max(1, self._runs)

    def state(self) -> SourceState:
        age_s = time.monotonic() - (self._figures.taken_s or self._began_s)
        return SourceState(
            name=self.source.name,
            runs=self._runs,
            errors=self._errors,
            cpu_s=self._cpu_s,
            last_run_s=self._last_run_s,
            age_s=age_s,
            problem=self._problem(age_s),
            dropped=dict(self._bounds.dropped),
        )

    def _problem(self, age_s: float) -> str:
        if self._raised:
            return self._raised[:_MAX_PROBLEM_CHARS]
        try:
            told = self.source.problem
        except Exception as error:  # noqa: BLE001 - as above
            told = f"{type(error).__name__}: {error}"
        if not told and age_s > _STALE_INTERVALS * self.every_s and not self.read():
            told = f"it has given nothing for {age_s:.0f} s"
        return told[:_MAX_PROBLEM_CHARS]


class _SinkThread:
    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._queue: queue.Queue[Sequence[Sample] | None] = queue.Queue(_SINK_QUEUE)
        self._written = self._dropped = self._errors = 0
        self._problem = ""
        self.thread = threading.Thread(target=self._run, name=f"to-{sink.name}", daemon=True)

    def put(self, samples: Sequence[Sample] | None) -> None:
        """Queue a round; the oldest one gives way when the sink is too slow. None ends the sink."""
        while True:
            try:
                self._queue.put_nowait(samples)
            except queue.Full:
                self._drop_oldest()
            else:
                return

    def _drop_oldest(self) -> None:
        try:
            self._queue.get_nowait()
        except queue.Empty:
            return  # it has just been taken
        self._dropped += 1

    def _run(self) -> None:
        while (samples := self._queue.get()) is not None:
            try:
                self.sink.write(samples)
            except Exception as error:  # noqa: BLE001 - whatever a sink does, it costs only itself
                self._fail(error)
            else:
                self._written += 1
                self._problem = ""
        try:
            self.sink.close()
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._errors += 1
        problem = f"{type(error).__name__}: {error}"[:_MAX_PROBLEM_CHARS]
        if problem != self._problem:
            _log.warning("metrics sink %s failed: %s", self.sink.name, problem)
        self._problem = problem

    def state(self) -> SinkState:
        return SinkState(self.sink.name, self._written, self._dropped, self._errors, self._problem)


class Collector:
    """Reads sources and feeds sinks between `start` and `stop`, in threads of its own.

    Args:
        sources: Each is asked every ``every_s`` of its own, never twice at once; one that takes
            more than 0.5 % of a core is asked less often. One with a method ``close`` is closed in
            the end.
        sinks: Each gets every round, or as many as it can take.
        round_s: Seconds from one round to the next.
        max_series: How many series of one family may go on; more are dropped and counted.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        sinks: Sequence[Sink],
        *,
        round_s: float = ROUND_S,
        max_series: int = MAX_SERIES,
    ) -> None:
        self._stop = threading.Event()
        names = Counter(family.name for one in sources for family in one.families)
        self._shared = {name for name, number in names.items() if number > 1}
        self._sources = [_SourceThread(one, max_series, self._stop) for one in sources]
        self._sinks = [_SinkThread(one) for one in sinks]
        self._round_s = max(_MIN_EVERY_S, round_s)
        self._pace = 1.0
        self._rounds = threading.Thread(target=self._run, name="rounds", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        for thread in self._threads():
            thread.start()

    def stop(self, timeout_s: float = _STOP_S) -> None:
        """Hand on what is left and close the sinks; what hangs longer than that is left alone."""
        self._stop.set()
        until_s = time.monotonic() + timeout_s
        for thread in self._threads():
            if thread.ident is not None:
                thread.join(max(0.0, until_s - time.monotonic()))

    def _threads(self) -> list[threading.Thread]:
        sinks = [one.thread for one in self._sinks]
        return [self._rounds, *sinks, *(one.thread for one in self._sources)]

    def set_pace(self, factor: float) -> None:
        """Read everything ``factor`` times less often from now on; 1 is the pace of the sources."""
        self._pace = max(1.0, factor)
        for one in self._sources:
            one.pace = self._pace

    @property
    def pace(self) -> float:
        """How many times less often than asked figures are read."""
        return self._pace

    def _run(self) -> None:
        while not self._stop.wait(self._round_s * self._pace):
            self._hand_on()
        self._hand_on()
        for sink in self._sinks:
            sink.put(None)

    def _hand_on(self) -> None:
        samples = self.latest()
        for sink in self._sinks:
            sink.put(samples)

    def latest(self) -> list[Sample]:
        """Return the last figures of all sources that still answer.

        Where two sources give the same series, that of the first one counts.
        """
        found: list[Sample] = []
        told: set[tuple[str, tuple[str, ...]]] = set()
        for source in self._sources:
            for sample in source.read():
                if sample.family.name in self._shared:
                    key = (sample.family.name, sample.labels)
                    if key in told:
                        continue
                    told.add(key)
                found.append(sample)
        return found

    def source_states(self) -> list[SourceState]:
        """Return how each source does."""
        return [one.state() for one in self._sources]

    def sink_states(self) -> list[SinkState]:
        """Return how each sink does."""
        return [one.state() for one in self._sinks]

    def problems(self) -> dict[str, str]:
        """Return what is wrong, by the name of the source or sink; the others are left out."""
        told = [(one.name, one.problem) for one in self.source_states()]
        told += [(one.name, one.problem) for one in self.sink_states()]
        return {name: problem for name, problem in told if problem}

    def dropped(self) -> Counter[str]:
        """Return how many samples did not go on so far, by family."""
        total: Counter[str] = Counter()
        for one in self.source_states():
            total.update(one.dropped)
        return total
