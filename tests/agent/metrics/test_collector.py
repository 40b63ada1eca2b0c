"""One source or sink that hangs, raises or is slow costs only itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from tests.agent.metrics.parts import KeepingSink, PlainSource, one, parts_of

from whystuck.agent.metrics.collector import Collector
from whystuck.evidence.nodes.metrics import Sample


@contextmanager
def running(collector: Collector) -> Iterator[Collector]:
    collector.start()
    try:
        yield collector
    finally:
        collector.stop()


def wait_until(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.005)


def raises() -> Iterable[Sample]:
    raise ValueError("the meter is broken")


def test_rounds_hold_what_all_sources_gave() -> None:
    sink = KeepingSink()
    sources = [PlainSource("a", lambda: [one("a")]), PlainSource("b", lambda: [one("b")])]

    with running(Collector(sources, [sink], round_s=0.05)):
        sink.wait_for(lambda rounds: bool(rounds) and parts_of(rounds[-1]) == {"a", "b"})

    assert sink.is_closed.is_set()


def test_a_source_that_raises_costs_only_itself_and_is_told() -> None:
    sink = KeepingSink()
    sources = [PlainSource("bad", raises), PlainSource("good", lambda: [one("good")])]

    with running(Collector(sources, [sink], round_s=0.05)) as collector:
        sink.wait_for(lambda rounds: bool(rounds) and parts_of(rounds[-1]) == {"good"})
        wait_until(lambda: collector.source_states()[0].errors > 1)

        assert collector.problems() == {"bad": "ValueError: the meter is broken"}


def test_a_source_that_raises_in_the_middle_gives_nothing_of_that_run() -> None:
    def breaks() -> Iterable[Sample]:
        yield one("half")
        raise OSError("gone")

    sink = KeepingSink()

    with running(Collector([PlainSource("bad", breaks)], [sink], round_s=0.05)) as collector:
        sink.wait_for(lambda rounds: len(rounds) > 2)
        assert collector.problems() == {"bad": "OSError: gone"}

    assert all(not samples for samples in sink.rounds)


def test_a_source_that_hangs_goes_stale_and_never_runs_twice_at_once() -> None:
    release, runs = threading.Event(), []

    def hangs() -> Iterable[Sample]:
        runs.append(1)
        if len(runs) > 1:
            release.wait()
        return [one("hung")]

    sink = KeepingSink()
    sources = [PlainSource("hangs", hangs), PlainSource("good", lambda: [one("good")])]
    with running(Collector(sources, [sink], round_s=0.05)) as collector:
        sink.wait_for(lambda rounds: bool(rounds) and "hung" in parts_of(rounds[-1]))
        sink.wait_for(lambda rounds: parts_of(rounds[-1]) == {"good"})
        assert "hangs" in collector.problems()
        assert len(runs) == 2
        release.set()
        sink.wait_for(lambda rounds: parts_of(rounds[-1]) == {"good", "hung"})
        assert collector.problems() == {}


def test_what_a_source_says_is_missing_is_told() -> None:
    source = PlainSource("perf", list)
    source.problem = "this machine has no counters"

    assert Collector([source], []).problems() == {"perf": "this machine has no counters"}


def test_a_source_that_takes_much_of_a_core_is_asked_less_often() -> None:
    began_s: list[float] = []

    def busy() -> Iterable[Sample]:
        began_s.append(time.monotonic())
        until_s = time.thread_time() + 0.004
        while time.thread_time() < until_s:
            pass
        return [one("busy")]

    with running(Collector([PlainSource("busy", busy)], [], round_s=0.05)) as collector:
        wait_until(lambda: len(began_s) == 2)
        # What it gave is no older than it has to be, though it wants to be asked every 50 ms.
        assert parts_of(collector.latest()) == {"busy"}

    # 4 ms of work may come once in 0.8 s.
    assert began_s[1] - began_s[0] >= 0.4


def test_a_slow_sink_loses_rounds_and_holds_up_nobody() -> None:
    release = threading.Event()
    slow, good = KeepingSink("slow", release.wait), KeepingSink("good")

    source = PlainSource("a", lambda: [one("a")])
    with running(Collector([source], [slow, good], round_s=0.05)) as collector:
        good.wait_for(lambda rounds: len(rounds) > 8)
        assert collector.sink_states()[0].dropped > 0
        assert collector.sink_states()[0].written == 0
        assert collector.sink_states()[1].dropped == 0
        release.set()
        slow.wait_for(lambda rounds: len(rounds) > 1)


def test_a_sink_that_fails_is_asked_again_and_told() -> None:
    def fails() -> None:
        raise ConnectionError("refused")

    bad, good = KeepingSink("bad", fails), KeepingSink("good")
    source = PlainSource("a", lambda: [one("a")])
    with running(Collector([source], [bad, good], round_s=0.05)) as collector:
        good.wait_for(lambda rounds: len(rounds) > 3)
        wait_until(lambda: collector.sink_states()[0].errors > 1)
        assert collector.problems() == {"bad": "ConnectionError: refused"}

    assert bad.is_closed.is_set()


def test_stop_does_not_wait_for_what_hangs() -> None:
    release = threading.Event()
    hung = KeepingSink("hung", release.wait)
    collector = Collector([PlainSource("a", lambda: [one("a")])], [hung], round_s=0.05)
    collector.start()
    wait_until(lambda: collector.sink_states()[0].dropped > 0)

    collector.stop(timeout_s=0.1)

    assert not hung.is_closed.is_set()
    release.set()
    assert hung.is_closed.wait(60)


def test_sources_that_hold_something_open_are_closed() -> None:
    closed = []

    class Open(PlainSource):
        def close(self) -> None:
            closed.append(self.name)
            if self.name == "bad":
                raise OSError("it cannot be closed")

    sources = [Open("bad", list), Open("good", list), PlainSource("plain", list)]
    with running(Collector(sources, [])) as collector:
        wait_until(lambda: all(state.runs for state in collector.source_states()))

    assert sorted(closed) == ["bad", "good"]


def test_stop_before_start_does_nothing() -> None:
    Collector([PlainSource("a", list)], [KeepingSink()]).stop()


def test_too_many_series_are_counted() -> None:
    sink = KeepingSink()
    source = PlainSource("many", lambda: [one(str(number)) for number in range(10)])
    with running(Collector([source], [sink], round_s=0.05, max_series=4)) as collector:
        sink.wait_for(lambda rounds: bool(rounds) and len(rounds[-1]) == 4)
        assert collector.dropped()["whystuck_test_ratio"] >= 6


def test_pace_slows_all_sources() -> None:
    sink = KeepingSink()
    source = PlainSource("a", lambda: [one("a")])
    collector = Collector([source], [sink], round_s=0.05)
    collector.set_pace(1000.0)
    with running(collector):
        wait_until(lambda: collector.source_states()[0].runs == 1)
        wait_until(lambda: parts_of(collector.latest()) == {"a"})

        assert sink.rounds == []
