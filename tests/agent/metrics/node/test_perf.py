"""Counters by perf_event_open, for real: software events are there on any machine."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.metrics.checking import collect, names
from tests.agent.metrics.children import child

from whystuck.agent.metrics.node import perf_events
from whystuck.agent.metrics.node.perf import PerfSource, _list_cpus
from whystuck.agent.metrics.node.perf_events import Count, Event, Scaled
from whystuck.agent.metrics.node.perf_families import SOFTWARE_GROUPS, Scope
from whystuck.agent.metrics.rank.labels import RankProcess

pytestmark = pytest.mark.skipif(
    platform.machine() not in perf_events._SYSCALLS, reason="no number of the call is known"
)
FAULTS = "kept.append(bytearray(b'x') * 40_000_000)"


def may_count_the_node() -> bool:
    try:
        fd = perf_events.open_event(perf_events.PAGE_FAULTS, pid=-1, cpu=_list_cpus()[0])
    except OSError:
        return False
    os.close(fd)
    return True


@contextmanager
def counting(source: PerfSource) -> Iterator[PerfSource]:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    try:
        yield source
    finally:
        source.close()
    assert len(os.listdir("/proc/self/fd")) == before, "a counter stays open"  # noqa: PTH208


@pytest.mark.skipif(not may_count_the_node(), reason="the node may not be counted here")
def test_the_whole_node_is_counted() -> None:
    with counting(PerfSource(groups=SOFTWARE_GROUPS)) as source, child() as one:
        collect(source)
        one.run("import resource, os")
        one.run("for _ in range(200): time.sleep(0.0005)")
        one.run(FAULTS)
        found = collect(source)

        # it was off its processor 200 times at least, and touched many pages
        assert found["perf_context_switches_total", "", ""] >= 200
        assert found["perf_page_faults_total", "", ""] > 0
        assert found["perf_task_clock_total", "", ""] > 0
        assert found["perf_context_switches_per_second", "", ""] > 0
        assert source.problem == ""


def test_ranks_are_counted_with_all_their_threads() -> None:
    source = PerfSource(
        lambda: [busy.as_rank(0), idle.as_rank(1)], scope=Scope.RANKS, groups=SOFTWARE_GROUPS
    )
    with child() as busy, child() as idle, counting(source):
        # one thread is there before it is counted, one starts later
        busy.run("event = threading.Event()")
        busy.run("def burn(): event.wait(); [i * i for i in range(2_000_000)]")
        busy.run("first = threading.Thread(target=burn); first.start()")
        before = collect(source)
        busy.run("t = time.process_time()")
        busy.run("second = threading.Thread(target=burn); second.start(); event.set()")
        busy.run("first.join(); second.join(); used = time.process_time() - t")
        busy.run("open(f'/proc/self/comm', 'w').write(str(int(used * 1e6)))")
        with open(f"/proc/{busy.process.pid}/comm") as stream:  # noqa: PTH123
            used_ns = int(stream.read()) * 1000
        found = collect(source)

        assert before["perf_task_clock_total", "job", "0"] >= 0
        counted_ns = found["perf_task_clock_total", "job", "0"]
        assert counted_ns >= 0.9 * used_ns
        assert found["perf_task_clock_total", "job", "1"] < counted_ns


def test_counters_of_ended_ranks_are_closed() -> None:
    ranks: list[RankProcess] = []
    with counting(PerfSource(lambda: ranks, scope=Scope.RANKS, groups=SOFTWARE_GROUPS)) as source:
        with child() as one:
            ranks.append(one.as_rank())
            assert collect(source)
            assert source._ranks
        ranks.clear()

        assert collect(source) == {}
        assert source._ranks == {}


def test_a_rank_that_has_just_ended_costs_only_itself() -> None:
    with child() as one:
        ended = one.as_rank(1)
    with (
        child() as two,
        counting(
            PerfSource(lambda: [ended, two.as_rank()], scope=Scope.RANKS, groups=SOFTWARE_GROUPS)
        ) as source,
    ):
        found = collect(source)

    assert {key[2] for key in found} == {"0"}
    assert "rank 1 is not counted" in source.problem


def test_hardware_counters_are_there_or_their_absence_is_told() -> None:
    with counting(PerfSource(scope=Scope.NODE)) as source:
        found = collect(source)

        if source.problem:
            assert found == {}
            assert "counters" in source.problem or "cannot be counted" in source.problem
            assert collect(source) == {}  # ... and nothing is tried again
        else:
            assert "perf_instructions_total" in names(found)


def test_an_event_that_is_not_there_costs_only_itself() -> None:
    strange = Event("cycles", 4_000_000, 1)
    groups = ((strange, perf_events.PAGE_FAULTS), (strange,))
    with child() as one:
        rank = one.as_rank()
        with counting(PerfSource(lambda: [rank], scope=Scope.RANKS, groups=groups)) as source:
            found = collect(source)

    assert names(found) == {"perf_page_faults_total"}


@pytest.mark.skipif(os.geteuid() != 0, reason="cannot become somebody else")
@pytest.mark.parametrize("paranoid_allows", [True, False])
def test_without_rights_ranks_are_counted_or_it_is_told_why(paranoid_allows: bool) -> None:
    # GIVEN a user who may not count the node, with a process of its own or of root
    with child() as user, child() as other:
        rank = other.as_rank()
        user.run("import os, sys; sys.path.insert(0, '.')")
        user.run("from whystuck.agent.metrics.node.perf import *")
        user.run("from whystuck.agent.metrics.node.perf_families import SOFTWARE_GROUPS, Scope")
        user.run("from whystuck.agent.metrics.rank.labels import RankProcess")
        user.run("os.setgid(65534); os.setuid(65534); import ctypes")
        # a process that changed its user may not be looked into until it says so
        user.run("ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)")
        user.run("pid = os.getpid()" if paranoid_allows else f"pid = {rank.pid}")
        user.run("from whystuck.collect.processes.proc_files import read_start")
        user.run("start = read_start(pid)")
        user.run("rank = RankProcess(pid=pid, job='j', rank=0, started_ticks=start[1])")
        user.run("source = PerfSource(lambda: [rank], groups=SOFTWARE_GROUPS)")
        user.run("found = [one.family.name for one in source.collect()]")
        user.run("level = int(open('/proc/sys/kernel/perf_event_paranoid').read())")
        if paranoid_allows:
            user.run(
                "assert level > 2 or 'whystuck_perf_page_faults_total' in found, source.problem"
            )
            user.run("assert level <= 2 or 'perf_event_paranoid' in source.problem")
        else:
            user.run(
                "assert not found and 'not allowed' in source.problem, (found, source.problem)"
            )


def test_too_few_files_are_told() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))",
        "from whystuck.agent.metrics.node.perf import *",
        "from whystuck.agent.metrics.node.perf_families import SOFTWARE_GROUPS, Scope",
        "source = PerfSource(scope=Scope.NODE, groups=SOFTWARE_GROUPS)",
        "assert list(source.collect()) == []",
        "assert 'open files' in source.problem, source.problem",
    )
    with child() as one:
        for line in code:
            one.run(line)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**6), st.integers(0, 10**6))))
def test_a_scaled_counter_never_goes_back(steps: list[tuple[int, int, int]]) -> None:
    scaled, value, enabled_ns, running_ns, last = Scaled(), 0, 0, 0, 0.0
    for more, enabled, running in steps:
        value, enabled_ns = value + more, enabled_ns + max(enabled, running)
        running_ns += running
        scaled.note(Count(value, enabled_ns, running_ns))
        assert scaled.total >= last
        last = scaled.total


def test_a_counter_that_ran_for_a_third_of_the_time_is_scaled() -> None:
    scaled = Scaled()
    scaled.note(Count(100, 300, 100))
    assert scaled.total == 300
    # it was not on the processor at all: nothing is known until it is again
    scaled.note(Count(100, 600, 100))
    assert scaled.total == 300
    scaled.note(Count(200, 900, 200))
    assert scaled.total == 900


def test_an_unknown_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "vax")
    source = PerfSource(groups=SOFTWARE_GROUPS)

    assert collect(source) == {}
    assert "no such counters" in source.problem
