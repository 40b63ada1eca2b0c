"""Steps of traces that the profiler did not mark: they end with the step of an optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.tracing.data import make_event, make_trace
from tests.tracing.measuring import measure_rows

from whystuck.tracing.host import data_waits, phases, step_time, steps
from whystuck.tracing.host.steps import OPTIMIZER, PROFILER

Event = dict[str, Any]
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


class Host:
    """The events of one thread, one after the other."""

    def __init__(self, at: float = 0.0, **where: Any) -> None:
        self.at, self.where = at, where
        self.events: list[Event] = []

    def do(self, name: str, us: float = 10.0, category: str = "cpu_op", ops: int = 0) -> None:
        """An event, with some ops in it."""
        self.events.append(make_event(category, name, self.at, us, **self.where))
        for place in range(ops):
            at = self.at + us * (place + 1) / (ops + 2)
            self.events.append(make_event("cpu_op", "aten::add_", at, 0.1, **self.where))
        self.at += us + 1

    def backward(self, number: int = 1) -> None:
        for _ in range(number):
            self.do("autograd::engine::evaluate_function: AddmmBackward0")

    def optimize(self, kind: str = "SGD", ops: int = 3) -> None:
        self.do(f"Optimizer.step#{kind}.step", 20, "user_annotation", ops)

    def load(self) -> None:
        self.do(LOADER, 30, "user_annotation")

    def train(self, kind: str = "SGD", batches: int = 1, ops: int = 3) -> None:
        """A batch or several, forward and backward, and the step of an optimizer."""
        for _ in range(batches):
            self.load()
            self.do("aten::linear")
            self.backward()
        self.optimize(kind, ops)


def list_steps(events: Sequence[Event], **options: Any) -> list[tuple[int, float, float]]:
    """The steps that an optimizer marks: number, start and end in µs."""
    rows = measure_rows(steps.METRIC, make_trace(list(events)), **options)
    assert {row["mark"] for row in rows} <= {OPTIMIZER, ""}
    return [
        (row["step"], row["start_ns"] / 1e3, row["end_ns"] / 1e3) for row in rows if row["mark"]
    ]


def ends_of(events: Sequence[Event], name: str = "Optimizer.step") -> list[float]:
    return [one["ts"] + one["dur"] for one in events if one["name"].startswith(name)]


def test_a_step_runs_from_one_optimizer_step_to_the_next() -> None:
    host = Host()
    for _ in range(3):
        host.train()

    ends = ends_of(host.events)
    assert list_steps(host.events) == [
        (0, 0.0, ends[0]), (1, ends[0], ends[1]), (2, ends[1], ends[2])
    ]  # fmt: skip


def test_steps_of_the_profiler_come_first() -> None:
    host = Host()
    for number in range(3):
        at = host.at
        host.train()
        mark = f"ProfilerStep#{number + 7}"
        host.events.append(make_event("user_annotation", mark, at, host.at - at))

    rows = measure_rows(steps.METRIC, make_trace(host.events))

    assert [(row["step"], row["mark"]) for row in rows] == [(7, PROFILER), (8, PROFILER)]


def test_a_trace_that_begins_and_ends_in_the_middle_of_steps_has_those_between() -> None:
    host = Host()
    host.backward()
    host.optimize()
    for _ in range(2):
        host.train()
    host.load()
    host.do("aten::linear")

    ends = ends_of(host.events)
    assert list_steps(host.events) == [(1, ends[0], ends[1]), (2, ends[1], ends[2])]


def test_batch_forward_and_backward_belong_to_the_optimizer_step_behind_them() -> None:
    host = Host()
    for _ in range(3):
        host.train(batches=4)
    trace = make_trace(host.events)

    waits = measure_rows(data_waits.METRIC, trace)
    made = measure_rows(phases.METRIC, trace)

    assert [(row["step"], row["count"]) for row in waits] == [(0, 4), (1, 4), (2, 4)]
    backward = [(row["step"], row["ops"]) for row in made if row["phase"] == "backward"]
    assert backward == [(0, 4), (1, 4), (2, 4)]


ALTERNATING = {
    "two in turns": ["D", "G"],
    "one more often": ["D", "D", "D", "G"],
    "three": ["A", "B", "C"],
}


@pytest.mark.parametrize("name", ALTERNATING)
def test_optimizers_that_take_turns_make_one_step(name: str) -> None:
    host, cycle = Host(), ALTERNATING[name]
    for _ in range(3):
        host.load()
        for kind in cycle:
            host.do("aten::linear")
            host.backward()
            host.optimize(kind)

    closing = ends_of(host.events)[len(cycle) - 1 :: len(cycle)]
    assert [end for _, _, end in list_steps(host.events)] == closing


def test_two_optimizers_of_one_class_are_told_apart_by_their_ops() -> None:
    host = Host()
    for _ in range(3):
        for ops in (4, 9):
            host.do("aten::linear")
            host.backward()
            host.optimize("Adam", ops)

    assert [end for _, _, end in list_steps(host.events)] == ends_of(host.events)[1::2]


def test_two_optimizers_that_are_alike_are_told_apart_by_the_batches() -> None:
    host = Host()
    for _ in range(4):
        host.load()
        for _ in range(2):
            host.do("aten::linear")
            host.backward()
            host.optimize("Adam")

    assert [end for _, _, end in list_steps(host.events)] == ends_of(host.events)[1::2]


def test_a_cycle_of_optimizers_that_was_cut_is_no_step() -> None:
    host = Host()
    host.do("aten::linear")
    host.backward()
    host.optimize("G")
    for _ in range(2):
        for kind in ("D", "G"):
            host.do("aten::linear")
            host.backward()
            host.optimize(kind)

    ends = ends_of(host.events)
    assert list_steps(host.events) == [(1, ends[0], ends[2]), (2, ends[2], ends[4])]


def test_an_optimizer_in_another_one_is_no_step_of_its_own() -> None:
    host = Host()
    for _ in range(3):
        at = host.at
        host.train()
        name = "Optimizer.step#ZeroRedundancyOptimizer.step"
        inner = host.events[-4]
        assert inner["name"] == "Optimizer.step#SGD.step"
        outer = make_event("user_annotation", name, inner["ts"] - 0.5, inner["dur"] + 1)
        host.events.append(outer)
        assert at < outer["ts"]

    outer_ends = ends_of(host.events, "Optimizer.step#ZeroRedundancyOptimizer")
    assert [end for _, _, end in list_steps(host.events)] == outer_ends


def test_optimizers_in_the_backward_pass_mark_no_steps() -> None:
    host = Host()
    for _ in range(3):
        host.load()
        for _ in range(4):
            at = host.at
            host.do("autograd::engine::evaluate_function: AccumulateGrad", 40)
            inside = make_event("user_annotation", "Optimizer.step#SGD.step", at + 5, 20)
            host.events.append(inside)

    assert list_steps(host.events) == []


def test_a_single_step_counts_where_the_trace_ends_with_it() -> None:
    host = Host()
    host.train()
    whole = list(host.events)
    host.load()
    host.do("aten::linear")

    assert list_steps(whole) == [(0, 0.0, ends_of(whole)[0])]
    assert list_steps(host.events) == []


def test_an_optimizer_alone_is_no_step() -> None:
    host = Host()
    host.optimize()

    assert list_steps(host.events) == []


def test_optimizers_in_no_order_leave_the_steps_to_the_commonest() -> None:
    host = Host()
    for kind in "AABAAABABAAAA":
        host.do("aten::linear")
        host.backward()
        host.optimize(kind)

    # The first piece may lack one that comes before it.
    ends = ends_of(host.events, "Optimizer.step#A")[1:]
    assert [end for _, _, end in list_steps(host.events)] == ends


def test_the_thread_that_optimizes_has_the_steps() -> None:
    host, other = Host(pid=1, tid=1), Host(pid=1, tid=2)
    for _ in range(3):
        host.train()
    for _ in range(200):
        other.do("aten::copy_", 0.5)

    assert len(list_steps([*other.events, *host.events])) == 3


def launch(host: Host, number: int, us: float, free_at: float, *, is_there: bool = True) -> float:
    """Launch a kernel that runs when the device is free; when it then is."""
    host.do("cudaLaunchKernel", 5, "cuda_runtime")
    host.events[-1]["args"]["correlation"] = number
    start = max(host.at, free_at)
    if is_there:
        args = {"device": 0, "stream": 7, "correlation": number, "pid": 0, "tid": 7}
        host.events.append(make_event("kernel", "gemm", start, us, **args))
    return start + us


def run_device(steps: int, *, lost: int = 0) -> list[Event]:
    """Steps of two kernels of 100 µs; the last kernels are not in the trace."""
    host, free_at = Host(), 0.0
    for number in range(steps):
        host.backward()
        for turn in range(2):
            at = number * 2 + turn
            free_at = launch(host, at, 100, free_at, is_there=at < 2 * steps - lost)
        host.optimize()
    return host.events


def test_a_last_step_whose_work_is_not_there_is_left_out() -> None:
    assert [one[0] for one in list_steps(run_device(4))] == [0, 1, 2, 3]
    assert [one[0] for one in list_steps(run_device(4, lost=1))] == [0, 1, 2]
    assert len(list_steps(run_device(4, lost=1), all_steps=True)) == 4


def test_work_counts_in_the_step_that_launched_it_wherever_the_device_was() -> None:
    # GIVEN a host that launches 200 µs of work in steps of 40 µs
    rows = measure_rows(step_time.METRIC, make_trace(run_device(5)))

    assert [row["compute_ns"] for row in rows] == [200_000] * 5
    assert all(row["wall_ns"] == 200_000 for row in rows[1:])
