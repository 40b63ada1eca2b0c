"""Two runs are compared: what changed is named, and nothing else is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from tests.tracing.data import make_event, make_trace, read_real
from tests.tracing.diff.jobs import OPTIONS, gpu_run, noisy, side_of

from whystuck.cli.trace.run_comparison import Comparison, compare_runs
from whystuck.evidence.finding import Confidence, Finding, Severity, Verdict
from whystuck.evidence.table import Table
from whystuck.evidence.traces.events import Trace
from whystuck.report.text import render_text
from whystuck.tracing.diff.items import ITEMS, STEPS
from whystuck.tracing.diff.shares import SHARES
from whystuck.tracing.diff.side import Side
from whystuck.tracing.reduce import measure_rank
from whystuck.tracing.view import TraceView

KERNELS = [
    ("aten::mm", "gemm", 400.0),
    ("aten::add", "elementwise", 100.0),
    ("nccl:all_reduce", "ncclDevKernel_AllReduce_Sum_f32", 200.0),
    ("aten::sum", "reduce", 50.0),
]


def run(kernels: Sequence[tuple[str, str, float]], steps: int, seed: int, rank: int = 0) -> Trace:
    return gpu_run(noisy(kernels, seed), steps, rank)


def compare(a: Sequence[Trace], b: Sequence[Trace], threshold: float = 5.0) -> Comparison:
    return compare_runs(side_of(a, "a"), side_of(b, "b"), threshold)


def only_finding(found: Comparison) -> Finding:
    (finding,) = found.report.findings
    assert (finding.code, finding.name) == ("P509", "regression")
    return finding


def statuses(table: Table) -> dict[str, str]:
    return {
        f"{kind}:{name}": status
        for kind, name, status in zip(table["kind"], table["name"], table["status"], strict=True)
        if status != "unchanged"
    }


def test_a_slower_kernel_is_a_regression_and_is_named() -> None:
    slower = [("aten::mm", "gemm", 480.0), *KERNELS[1:]]

    found = compare([run(KERNELS, 12, 1)], [run(slower, 15, 2)])

    finding = only_finding(found)
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.LIKELY)
    assert found.report.verdict is Verdict.SLOW
    step = finding.details["step_ms"]
    assert step["a"] == pytest.approx(0.76, rel=0.02)
    assert step["b"] == pytest.approx(0.84, rel=0.02)
    low, high = step["interval"]
    assert 0.06 < low < 0.08 < high < 0.10
    first = finding.details["changes"][0]
    assert (first["name"], first["kind"]) == ("gemm", "kernel")
    assert first["delta_ms"] == pytest.approx(0.08, rel=0.1)
    assert first["share"] == pytest.approx(1, abs=0.1)
    assert finding.culprits.ranks == []
    assert statuses(found.tables["diff_kernels"]) == {"kernel:gemm": "changed"}


def test_the_changes_add_up_to_that_of_the_step() -> None:
    slower = [("aten::mm", "gemm", 480.0), *KERNELS[1:], ("aten::mul", "multiply", 30.0)]

    details = only_finding(compare([run(KERNELS, 8, 1)], [run(slower, 8, 2)])).details

    delta = details["step_ms"]["b"] - details["step_ms"]["a"]
    for listed in ("changes", "classes"):
        assert sum(one["delta_ms"] for one in details[listed]) == pytest.approx(delta, abs=1e-4)
        assert sum(one["share"] for one in details[listed]) == pytest.approx(1, abs=1e-2)
    assert details["changes"][-1]["name"] == "rest"


def test_an_op_that_is_new_and_one_that_is_gone_are_named() -> None:
    other = [KERNELS[0], ("aten::mul", "multiply", 160.0), *KERNELS[2:]]

    found = compare([run(KERNELS, 8, 1)], [run(other, 8, 2)])

    assert statuses(found.tables["diff_ops"])["op:aten::mul"] == "added"
    assert statuses(found.tables["diff_ops"])["op:aten::add"] == "removed"
    details = only_finding(found).details
    assert details["added"] == ["multiply", "aten::mul"]
    assert details["removed"] == ["elementwise", "aten::add"]


def test_the_same_job_twice_is_not_told_apart() -> None:
    told: list[str] = []
    for seed in range(20):
        found = compare([run(KERNELS, 10, seed)], [run(KERNELS, 10, 100 + seed)], threshold=0)
        told += [item.severity.value for item in found.report.findings]
        changed = statuses(found.tables["diff_kernels"])
        assert not set(changed.values()) & {"added", "removed"}
        told += list(changed)
        assert found.report.verdict in (Verdict.HEALTHY, Verdict.SLOW)

    # Of 20 pairs and 5 % each, three or fewer in 98 of 100 cases.
    assert len(told) <= 3


def test_a_change_of_two_percent_is_a_note_when_it_is_significant() -> None:
    slower = [("aten::mm", "gemm", 416.0), *KERNELS[1:]]

    finding = only_finding(compare([run(KERNELS, 40, 1)], [run(slower, 40, 2)]))

    assert finding.severity is Severity.NOTE
    assert finding.measures["delta_percent"] == pytest.approx(2.1, abs=0.6)
    assert finding.details["changes"][0]["name"] == "gemm"


def test_a_faster_run_is_a_note() -> None:
    faster = [("aten::mm", "gemm", 300.0), *KERNELS[1:]]

    found = compare([run(KERNELS, 8, 1)], [run(faster, 8, 2)])

    assert only_finding(found).severity is Severity.NOTE
    assert found.report.verdict is Verdict.HEALTHY


def test_one_step_each_tells_by_size_only_and_says_so() -> None:
    slower = [("aten::mm", "gemm", 480.0), *KERNELS[1:]]

    finding = only_finding(compare([run(KERNELS, 1, 1)], [run(slower, 1, 2)]))

    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.POSSIBLE)
    assert finding.details["step_ms"]["interval"] == []
    assert finding.details["p_value"] is None
    assert any("significance is unknown" in fact.text for fact in finding.because)


def test_one_step_of_many_ranks_is_tested_over_ranks() -> None:
    slower = [("aten::mm", "gemm", 480.0), *KERNELS[1:]]
    a = [run(KERNELS, 1, rank, rank) for rank in range(8)]
    b = [run(slower, 1, 50 + rank, rank) for rank in range(8)]

    finding = only_finding(compare(a, b))

    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.LIKELY)
    assert finding.details["samples"]["unit"] == "ranks"
    assert finding.culprits.ranks == []


def test_the_rank_that_alone_became_slower_is_named() -> None:
    def job(rank: int, seed: int, extra: float) -> Trace:
        # The others wait for it in the collective: all steps take the same time.
        own = extra if rank == 2 else 0.0
        kernels = [("aten::mm", "gemm", 400.0 + own)]
        kernels.append(("nccl:all_reduce", "ncclDevKernel_AllReduce", 200.0 + extra - own))
        return run(kernels, 10, seed + rank, rank)

    a = [job(rank, 10, 0.0) for rank in range(4)]
    b = [job(rank, 20, 100.0) for rank in range(4)]

    finding = only_finding(compare(a, b))

    assert finding.culprits.ranks == [2]
    assert "rank 2 alone" in finding.summary


def test_runs_of_other_sizes_are_compared_by_the_step_of_a_rank() -> None:
    a = [run(KERNELS, 6, rank, rank) for rank in range(2)]
    b = [run(KERNELS, 9, 30 + rank, rank) for rank in range(4)]

    found = compare(a, b)

    assert found.report.findings == []
    kernels = found.tables["diff_kernels"]
    gemm = kernels.take(kernels["name"] == "gemm")
    assert (gemm["a_count"][0], gemm["b_count"][0]) == (1, 1)
    assert (gemm["a_total_count"][0], gemm["b_total_count"][0]) == (12, 36)


def test_rare_long_steps_of_both_do_not_hide_what_changed() -> None:
    def with_long(kernels: list[tuple[str, str, float]], seed: int, long: int) -> Trace:
        usual = noisy(kernels, seed)
        slow = [("aten::mm", "gemm", 20_000.0), *kernels[1:]]
        return gpu_run(lambda number: slow if number == long else usual(number), 20)

    slower = [("aten::mm", "gemm", 480.0), *KERNELS[1:]]
    finding = only_finding(compare([with_long(KERNELS, 1, 3)], [with_long(slower, 2, 8)]))

    assert finding.measures["delta_percent"] == pytest.approx(10.5, abs=1)
    assert any("without 2 that took far longer" in fact.text for fact in finding.because)


def test_long_steps_of_one_run_only_are_told() -> None:
    usual = noisy(KERNELS, 2)
    slow = [("aten::mm", "gemm", 3000.0), *KERNELS[1:]]
    b = gpu_run(lambda number: slow if number % 6 == 5 else usual(number), 60)

    finding = only_finding(compare([run(KERNELS, 60, 1)], [b]))

    assert finding.severity is Severity.ERROR
    assert finding.measures["delta_percent"] == pytest.approx(57, abs=5)


def test_traces_without_steps_are_compared_as_a_whole() -> None:
    def bare(us: float) -> Trace:
        return make_trace([make_event("cpu_op", "aten::mm", 0, us)])

    finding = only_finding(compare([bare(100)], [bare(130)]))

    assert finding.confidence is Confidence.POSSIBLE
    assert "the whole trace takes 30.0% longer" in finding.summary
    assert finding.details["changes"][0]["name"] == "aten::mm"


def bare_run(iterations: int, us: float = 100.0, mark: str = "") -> Trace:
    """Ops of some iterations, of which each is followed by a mark."""
    events: list[dict[str, Any]] = []
    for number in range(iterations):
        at = number * (3 * us + 60)
        for place, name in enumerate(("aten::mm", "aten::relu", "aten::sum")):
            events.append(make_event("cpu_op", name, at + place * us, us))
        if mark:
            backward = "autograd::engine::evaluate_function: MmBackward0"
            events.append(make_event("cpu_op", backward, at + 3 * us, 20))
            events.append(make_event("user_annotation", mark, at + 3 * us + 25, 20))
    return make_trace(events)


def test_traces_of_5_and_of_25_iterations_are_not_compared_as_wholes() -> None:
    report = compare([bare_run(5)], [bare_run(25)]).report

    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.findings == []
    (gap,) = [gap for gap in report.gaps if gap.what == "profiler steps"]
    assert gap.reason.startswith("ops run 5 times as often in B as in A")
    told = render_text(report, color=False, width=100)
    assert "inconclusive: A and B cannot be compared" in told
    assert "--iterations 20" in told


def test_5_and_25_iterations_of_an_optimizer_are_compared_by_the_step() -> None:
    mark = "Optimizer.step#SGD.step"

    same = compare([bare_run(5, mark=mark)], [bare_run(25, mark=mark)])
    slower = compare([bare_run(5, mark=mark)], [bare_run(25, 150.0, mark=mark)])

    assert same.report.verdict is Verdict.HEALTHY
    finding = only_finding(slower)
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.LIKELY)
    assert finding.details["samples"] == {"unit": "steps", "a": 5, "b": 25}
    assert finding.measures["delta_percent"] == pytest.approx(150 / 360 * 100, rel=0.05)


def test_steps_of_the_profiler_and_of_the_optimizer_are_compared_where_they_are_alike() -> None:
    mark = "Optimizer.step#SGD.step"
    optimizer = bare_run(8, mark=mark)

    def with_steps(each: int) -> Trace:
        """The same job, whose loop calls the profiler after so many optimizer steps."""
        events: list[dict[str, Any]] = []
        for number in range(0, 8, each):
            start, us = number * 360.0, each * 360.0
            events.append(make_event("user_annotation", f"ProfilerStep#{number}", start, us))
        for number in range(8):
            for place, name in enumerate(("aten::mm", "aten::relu", "aten::sum")):
                events.append(make_event("cpu_op", name, number * 360.0 + place * 100, 100))
        return make_trace(events)

    alike = compare([optimizer], [with_steps(1)]).report
    other = compare([optimizer], [with_steps(4)]).report

    assert alike.verdict is not Verdict.INCONCLUSIVE
    assert other.verdict is Verdict.INCONCLUSIVE
    (gap,) = [gap for gap in other.gaps if gap.what == "profiler steps"]
    assert "4 times as often in B" in gap.reason


def test_ranks_without_steps_beside_others_are_told() -> None:
    side = [run(KERNELS, 3, 1), make_trace([make_event("cpu_op", "aten::mm", 0, 100)])]

    report = compare(side, side).report

    assert report.verdict is Verdict.INCONCLUSIVE
    assert "only some ranks" in report.gaps[-1].reason


def test_a_large_difference_that_may_be_chance_is_left_open() -> None:
    def uneven(lengths: Sequence[float]) -> Trace:
        return gpu_run(lambda number: [("aten::mm", "gemm", lengths[number])], len(lengths))

    found = compare([uneven([300, 500, 400])], [uneven([300, 1500, 500])])

    assert found.report.verdict is Verdict.INCONCLUSIVE
    assert "which may be chance: p = " in found.report.context["sentence"]
    assert found.report.context["sentence"].startswith("a regression is possible: ")
    (gap,) = [gap for gap in found.report.gaps if gap.what.startswith("certainty")]
    assert "trace more steps" in gap.reason


@pytest.mark.parametrize(("longest", "verdict"), [(900, "healthy"), (1_500, "inconclusive")])
def test_many_steps_of_which_some_are_long_leave_only_a_very_large_difference_open(
    longest: float, verdict: str
) -> None:
    lengths = [400.0, 300.0] * 5
    longer = [longest, 250.0, 300.0, 420.0, longest, 310.0, 290.0, 350.0, longest, 300.0]

    found = compare(
        [gpu_run(lambda number: [("aten::mm", "gemm", lengths[number])], 10)],
        [gpu_run(lambda number: [("aten::mm", "gemm", longer[number])], 10)],
    )

    assert found.report.findings == []
    assert found.report.verdict == verdict


def test_a_large_difference_of_single_steps_is_told_and_left_open() -> None:
    slower = [("aten::mm", "gemm", 900.0), *KERNELS[1:]]

    found = compare([run(KERNELS, 1, 1)], [run(slower, 1, 2)])

    assert only_finding(found).confidence is Confidence.POSSIBLE
    assert found.report.verdict is Verdict.INCONCLUSIVE


def test_steps_in_one_run_only_cannot_be_compared() -> None:
    bare = make_trace([make_event("cpu_op", "aten::mm", 0, 100)])

    report = compare([bare], [run(KERNELS, 3, 1)]).report

    assert report.verdict is Verdict.INCONCLUSIVE
    (gap,) = [gap for gap in report.gaps if gap.what == "profiler steps"]
    assert gap.reason.startswith("in A: ")


def test_no_events_cannot_be_compared() -> None:
    report = compare([make_trace([])], [run(KERNELS, 3, 1)]).report

    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.findings == []


@pytest.mark.parametrize(
    "name",
    [
        "hta_sampled_2rank/rank-0.json.gz",
        "hta_cuda_sync_alexnet/t.json.gz",
        "hta_mi250_minitoy/t.json.gz",
        "tl_b200_rank0of8/eager_trace.json.gz",
        "injected/gpu_8rank_r5/rank5.json.gz",
    ],
)
def test_the_parts_of_real_steps_add_up(name: str) -> None:
    view = TraceView(read_real(name), OPTIONS)

    steps, shares = STEPS.measure(view, OPTIONS), SHARES.measure(view, OPTIONS)

    for number, wall in zip(steps["step"].tolist(), steps["wall_ns"].tolist(), strict=True):
        assert shares["ns"][shares["step"] == number].sum() == wall
    assert (shares["ns"] > 0).all()


# Of HTA 0.6.1, `TraceDiff.compare_traces` and `ops_diff`, of the first step of two ranks.
HTA_COUNTS = {"added": 4, "deleted": 29, "increased": 21, "decreased": 34, "unchanged": 310}
HTA_TOTALS = [
    ("diff_ops", "## backward ##", 1, 1, 234_964, 225_029),
    ("diff_ops", "## data_load ##", 1, 1, 3_918, 11_269),
    ("diff_ops", "## decoder fp8 None ##", 2, 2, 284, 262),
    ("diff_kernels", "Memcpy DtoD (Device -> Device)", 4, 4, 240, 2_290),
    ("diff_kernels", "Memset (Device)", 5, 5, 19, 14),
    ("diff_kernels", "ampere_sgemm_128x64_nn", 4, 4, 1_576, 1_956),
]


def test_two_real_ranks_give_the_figures_of_hta() -> None:
    ranks = [read_real(f"hta_sampled_2rank/rank-{rank}.json.gz") for rank in (0, 1)]
    sides = [Side(str(rank)) for rank in (0, 1)]
    for side, trace in zip(sides, ranks, strict=True):
        side.add(measure_rank(trace, replace(OPTIONS, all_steps=False)))

    tables = compare_runs(sides[0], sides[1], 5).tables

    changes = [*tables["diff_ops"]["counts_change"], *tables["diff_kernels"]["counts_change"]]
    assert Counter(changes) == HTA_COUNTS
    for name, label, *expected in HTA_TOTALS:
        table = tables[name]
        (row,) = table.take(table["name"] == label).rows()
        found = dict(zip(table.columns, row, strict=True))
        assert [found["a_total_count"], found["b_total_count"]] == expected[:2]
        assert [found["a_total_ns"] / 1000, found["b_total_ns"] / 1000] == expected[2:]


def test_the_device_time_of_an_op_is_that_of_all_it_launched() -> None:
    events: list[dict[str, Any]] = [
        make_event("cpu_op", "outer", 0, 50),
        make_event("cpu_op", "inner", 10, 20),
        make_event("cuda_runtime", "cudaLaunchKernel", 12, 5, correlation=1),
        make_event("cuda_runtime", "cudaLaunchKernel", 35, 5, correlation=2),
        make_event("kernel", "one", 30, 7, device=0, stream=7, correlation=1),
        make_event("kernel", "two", 60, 9, device=0, stream=7, correlation=2),
    ]
    view = TraceView(make_trace(events), OPTIONS)

    table = ITEMS.measure(view, OPTIONS)

    row = {name: at for at, name in enumerate(table["name"].tolist())}
    assert table["device_ns"][row["outer"]] == 16_000
    assert table["device_ns"][row["inner"]] == 7_000
    assert table["self_ns"][row["outer"]] == 25_000
    assert table["self_ns"][row["inner"]] == 15_000


def test_kernels_have_the_time_before_the_host_and_waits_name_the_rest() -> None:
    events: list[dict[str, Any]] = [
        make_event("user_annotation", "ProfilerStep#0", 0, 100),
        make_event("user_annotation", "enumerate(DataLoader)#_Iter.__next__", 0, 20),
        make_event("cpu_op", "aten::stack", 5, 10),
        make_event("cpu_op", "aten::mm", 30, 20),
        make_event("cuda_runtime", "cudaLaunchKernel", 35, 5, correlation=1),
        make_event("cuda_runtime", "cudaDeviceSynchronize", 60, 30),
        make_event("kernel", "gemm", 40, 40, device=0, stream=7, correlation=1),
        make_event("cpu_op", "backward", 92, 4, tid=2),
    ]
    view = TraceView(make_trace(events), OPTIONS)

    rows = {(row[2], row[4]): row[5] for row in SHARES.measure(view, OPTIONS).rows()}

    assert rows == {
        ("data_wait", "enumerate(DataLoader)#_Iter.__next__"): 10_000,
        ("data_wait", "aten::stack"): 10_000,
        ("host", "aten::mm"): 5_000,
        ("launch", "cudaLaunchKernel"): 5_000,
        ("compute", "gemm"): 40_000,
        ("sync", "cudaDeviceSynchronize"): 10_000,
        ("host", "backward"): 4_000,
        ("idle", "(nothing recorded)"): 16_000,
    }


def test_what_is_kept_of_ranks_does_not_grow_faster_than_they_do() -> None:
    side = side_of([run(KERNELS, 3, 1, rank) for rank in range(40)])

    for grid in (side.items, side.shares, side.rank_items, side.rank_shares):
        steps, names = grid._values.shape[1:]
        assert steps <= 60
        assert names <= 2 * len(grid.keys)
    assert side.rank_items.get(0, 40).shape == (40, len(side.rank_items.keys))
