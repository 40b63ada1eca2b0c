"""Where HTA 0.6.1 is wrong: what it says, what is right, and that ours is what is right.

Figures of HTA on real traces are its golden outputs; those on made traces were measured once with
HTA itself, on the events that are given here.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from typing import Any

import pytest
from tests.tracing.data import find_traces, make_event, make_trace, read_real
from tests.tracing.measuring import measure_rows
from tests.tracing.test_golden import (
    CLASSES,
    EXACT,
    FILES,
    RANKS,
    WHOLE,
    measure,
    read_golden,
    rows,
    us,
    view,
)

from whystuck.evidence.traces.events import DEVICE_WORK, Category, Trace
from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.device import idle, queue_length, temporal
from whystuck.tracing.device.kernels import OTHERS, fold_kernels
from whystuck.tracing.reduce import measure_rank, reduce_ranks

_OURS = ("idle", "compute", "wall")


def read_exact(name: str, kind: str) -> dict[str, float]:
    golden = json.loads((find_traces() / "golden" / "exact_metrics.json").read_text())
    figures: dict[str, float] = golden[name]["0"][kind]
    return figures


def count_busy(spans: list[tuple[int, int]]) -> int:
    """The time that any span covers: one pass in order of time."""
    busy = reach = 0
    for start, end in sorted(spans):
        busy += max(end - max(start, reach), 0)
        reach = max(reach, end)
    return busy


def list_work(trace: Trace, *categories: Category) -> list[tuple[int, int]]:
    events = trace.events
    return [
        (start, start + duration)
        for start, duration, category in zip(
            events.start_ns.tolist(),
            events.duration_ns.tolist(),
            events.category.tolist(),
            strict=True,
        )
        if category in categories
    ]


# 1. Figures of "others" in the breakdown of kernels are over the sums of names.


@pytest.mark.parametrize("rank", RANKS)
def test_1_the_figures_of_the_other_kernels_are_over_kernels_not_over_sums(rank: int) -> None:
    golden = {
        CLASSES[row["kernel_type"]]: row
        for row in read_golden(WHOLE, "gpu_kernel_breakdown.1.csv")
        if row["name"] == OTHERS and int(row["rank"]) == rank
    }
    kept = {
        (CLASSES[row["kernel_type"]], row["name"])
        for row in read_golden(WHOLE, "gpu_kernel_breakdown.1.csv")
        if int(row["rank"]) == rank
    }
    one = view(WHOLE, rank)
    durations = defaultdict[tuple[str, str], list[int]](list)
    for row, kind in zip(one.device_rows.tolist(), one.device_class.tolist(), strict=True):
        name = one.trace.names[one.events.name[row]]
        key = ("compute", "comm", "memory")[kind], name
        durations[key].append(int(one.events.duration_ns[row]))

    theirs = golden["compute"]
    rest = [
        value
        for (kind, name), values in durations.items()
        if kind == "compute" and (kind, name) not in kept
        for value in values
    ]

    assert us(theirs["sum (us)"]) == sum(rest)
    # A name counts as one, whatever number of kernels it has.
    assert us(theirs["mean (us)"]) > 1.2 * statistics.mean(rest)
    assert us(theirs["min (us)"]) >= min(rest)
    assert us(theirs["stddev"]) != pytest.approx(statistics.stdev(rest), rel=0.01)
    # Ours of the ten that take most, against all values of the others.
    folded = rows(fold_kernels(measure("kernels", WHOLE, rank), top=10))
    (ours,) = (row for row in folded if (row["class"], row["name"]) == ("compute", OTHERS))
    names = {row["name"] for row in folded if row["class"] == "compute"}
    values = [
        value
        for (kind, name), times in durations.items()
        if kind == "compute" and name not in names
        for value in times
    ]
    assert (ours["count"], ours["sum_ns"]) == (len(values), sum(values))
    assert (ours["min_ns"], ours["max_ns"]) == (min(values), max(values))
    assert ours["mean_ns"] == round(statistics.mean(values))
    assert ours["std_ns"] == pytest.approx(statistics.stdev(values))


# 2. Starts are rounded up and ends down to whole µs.


def test_2_idle_time_is_not_what_rounding_leaves() -> None:
    golden = read_golden(EXACT, "temporal_breakdown.csv")[0]
    spans = list_work(view(EXACT, 0).trace, *DEVICE_WORK)
    wall = max(end for _, end in spans) - min(start for start, _ in spans)

    (row,) = rows(measure("temporal_breakdown", EXACT, 0))

    assert row["busy_ns"] == count_busy(spans)
    assert row["idle_ns"] == wall - count_busy(spans)
    assert us(golden["idle_time(us)"]) - row["idle_ns"] > 700_000
    exact = read_exact(EXACT, "exact_ns_gpu_cats_only")
    # The exact figures are sums of floats, some ns off.
    assert row["idle_ns"] == pytest.approx(1000 * exact["idle"], abs=4)
    assert row["wall_ns"] == pytest.approx(1000 * exact["kernel"], abs=4)


def test_2_durations_are_not_cut_to_whole_us() -> None:
    golden = read_golden(EXACT, "cuda_kernel_launch_stats.rank0.csv")
    spans = list_work(view(EXACT, 0).trace, *DEVICE_WORK)

    ours = rows(measure("launches", EXACT, 0))

    assert sum(row["gpu_ns"] for row in ours) == sum(end - start for start, end in spans)
    mine = {row["correlation"]: row["gpu_ns"] for row in ours}
    lost = sum(mine[int(row["correlation"])] - us(row["gpu_duration"]) for row in golden)
    assert lost > 500_000


# 3. Work without a launch in the trace is joined with event 0.

UNLINKED = [
    make_event("cpu_op", "aten::late", 500, 1),  # event 0 of the file
    make_event("cuda_runtime", "cudaLaunchKernel", 0, 5, correlation=1),
    make_event("kernel", "a", 10, 10, device=0, stream=7, correlation=1),
    make_event("kernel", "b", 30, 10, device=0, stream=7, correlation=2),
    make_event("kernel", "c", 45, 10, device=0, stream=7, correlation=3),
]
UNLINKED_OF_HTA = {"host_wait": 15, "kernel_wait": 0, "other": 0}


def test_3_work_of_unknown_launch_tells_nothing_about_the_host() -> None:
    (row,) = measure_rows(idle.METRIC, make_trace(UNLINKED))

    # Gaps of 10 and 5 µs, both before work of which no launch is known.
    assert (row["host_wait_ns"], row["kernel_wait_ns"], row["other_ns"]) == (0, 15_000, 0)
    assert row["unlinked_ns"] == 15_000
    assert row["host_wait_ns"] != 1000 * UNLINKED_OF_HTA["host_wait"]


# 4. Whatever has a stream counts as work of the device.


def test_4_waiting_for_a_stream_is_no_work() -> None:
    trace = read_real("hta_cuda_sync_alexnet/t.json.gz")
    theirs = read_exact("hta_cuda_sync_alexnet", "hta_semantics")

    (row,) = measure_rows(temporal.METRIC, trace)

    assert row["busy_ns"] == count_busy(list_work(trace, *DEVICE_WORK))
    with_waits = count_busy(list_work(trace, *DEVICE_WORK, Category.SYNC))
    assert with_waits > row["busy_ns"]
    assert with_waits == us(str(theirs["kernel"] - theirs["idle"]))


def test_4_ops_of_the_host_that_tell_a_stream_are_no_work() -> None:
    theirs = read_exact(EXACT, "exact_ns_same_window")

    (row,) = rows(measure("temporal_breakdown", EXACT, 0))

    busy = theirs["kernel"] - theirs["idle"]
    assert 1000 * busy - row["busy_ns"] > 70_000


# 5. Only NCCL and HCCL communicate.


def test_5_all_reduce_through_symmetric_memory_is_communication() -> None:
    golden = {
        row["name"]: row["kernel_type"]
        for row in read_golden(EXACT, "gpu_kernel_breakdown_all.1.csv")
    }
    ours = {row["name"]: row for row in rows(measure("kernels", EXACT, 0))}

    (name,) = (name for name in ours if "multimem_all_reduce_kernel" in name)

    assert golden[name] == "COMPUTATION"
    assert ours[name]["class"] == "comm"
    # But for these kernels, classes are the same.
    others = {key: row["class"] for key, row in ours.items() if key != name}
    assert others == {key: CLASSES[kind] for key, kind in golden.items() if key != name}


def test_5_without_them_times_are_the_exact_ones_of_the_classes_of_hta() -> None:
    exact = read_exact(EXACT, "exact_ns_gpu_cats_only")
    (row,) = rows(measure("temporal_breakdown", EXACT, 0))
    reduced = sum(
        one["sum_ns"] for one in rows(measure("kernels", EXACT, 0)) if "multimem" in one["name"]
    )

    # They ran one at a time and alone.
    assert row["comm_ns"] - reduced == pytest.approx(1000 * exact["comm_union"], abs=4)
    assert row["compute_ns"] + reduced == pytest.approx(1000 * exact["compute"], abs=4)


# 6. Some ranks are always named as stragglers.


def test_6_where_no_rank_keeps_the_others_waiting_none_is_named() -> None:
    golden = json.loads(
        (find_traces() / "golden" / WHOLE / "potential_stragglers.json").read_text()
    )
    options = TraceOptions()
    ranks = [measure_rank(read_real(FILES[WHOLE, rank]), options) for rank in RANKS]

    summary = reduce_ranks(ranks, options)

    # All there are: as many as it is asked for.
    assert golden == list(RANKS)
    assert len(summary.get("straggler")) == 0


# 7. The step that is dropped is that of the device's annotation, where there is one.

STEPS = [
    make_event("user_annotation", "ProfilerStep#1", 0, 50_000),
    make_event("user_annotation", "ProfilerStep#2", 50_000, 50_000),
    make_event("gpu_user_annotation", "ProfilerStep#1", 60_000, 60_000),
    make_event("gpu_user_annotation", "ProfilerStep#2", 120_000, 60_000),
    make_event("cuda_runtime", "cudaLaunchKernel", 10_000, 5, correlation=1),
    make_event("cuda_runtime", "cudaLaunchKernel", 60_000, 5, correlation=2),
    make_event("kernel", "a", 60_000, 20_000, device=0, stream=7, correlation=1),
    make_event("kernel", "b", 120_000, 20_000, device=0, stream=7, correlation=2),
]
STEPS_OF_HTA = {"idle": 40_000, "compute": 40_000, "kernel": 80_000}


def test_7_the_last_step_is_dropped_on_the_clock_of_the_host() -> None:
    (row,) = measure_rows(temporal.METRIC, make_trace(STEPS))

    # Only the first kernel was launched before the second step began.
    assert (row["wall_ns"], row["compute_ns"], row["idle_ns"]) == (20_000_000, 20_000_000, 0)
    # HTA says what is true of all steps.
    (whole,) = measure_rows(temporal.METRIC, make_trace(STEPS), all_steps=True)
    times = {name: whole[f"{ours}_ns"] for name, ours in zip(STEPS_OF_HTA, _OURS, strict=True)}
    assert times == {name: 1000 * time for name, time in STEPS_OF_HTA.items()}


# 8. Of the streams with a full queue only the last is told.


def make_full() -> list[dict[str, Any]]:
    """Two streams with three pieces of work in the queue, for 10 and for 30 µs."""
    events = [make_event("cpu_op", "aten::begin", 0, 1)]
    for stream, start, wait in ((7, 10, 10), (20, 100, 30)):
        for number in range(3):
            correlation = 10 * stream + number
            place = {"device": 0, "stream": stream, "correlation": correlation}
            events.append(
                make_event(
                    "cuda_runtime", "cudaLaunchKernel", start + number, 1, correlation=correlation
                )
            )
            begin = start + 2 + wait + 5 * number
            events.append(make_event("kernel", "a", begin, 5, **place))
    return events


FULL_OF_HTA = [(20, 30)]


def test_8_every_stream_with_a_full_queue_is_told() -> None:
    found = measure_rows(queue_length.METRIC, make_trace(make_full()), queue_limit=3)

    assert [(row["stream"], row["full_ns"]) for row in found] == [(7, 10_000), (20, 30_000)]
    assert len(FULL_OF_HTA) == 1
