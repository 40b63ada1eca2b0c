"""What is said of jobs with a known cost, from the files that a profiler would have written."""

from __future__ import annotations

import json
import random
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.diagnose.traces.cases import (
    CASES,
    Case,
    late_few_collectives,
    late_host_of_rank_3,
    late_rank_of_optimizer_steps,
    layers,
    rotating_load,
    sync_often,
    waits_for_each_other,
)
from tests.tracing.build import Collective, Program, Rank, run_job, write_job
from tests.tracing.data import make_event

from whystuck.evidence.finding import Severity
from whystuck.pipeline import analyze_traces
from whystuck.report.traces import lay_out_traces


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_is_judged_as_it_was_made(case: Case, tmp_path: Path) -> None:
    ranks = run_job(case.program, case.world_size, with_stack=case.with_stack)
    write_job(tmp_path, ranks, case.offsets_us)

    report, _ = analyze_traces([str(tmp_path)])

    warned: dict[str, list[int]] = {}
    for item in report.findings:
        if item.severity is not Severity.NOTE:
            warned[item.code] = sorted([*warned.get(item.code, []), *item.culprits.ranks])
    noted = {item.code for item in report.findings if item.severity is Severity.NOTE}
    assert warned == case.warned
    assert noted <= case.noted
    assert list(warned)[:1] == list(case.warned)[:1]
    for code, share in case.shares.items():
        (item,) = (one for one in report.findings if one.code == code)
        assert item.measures["share_of_step"] == pytest.approx(share, abs=0.05)
    assert sum(item.measures["share_of_step"] for item in report.findings) <= 1.0
    if case.verdict:
        assert report.verdict == case.verdict
    elif warned:
        assert report.verdict == "slow"


def test_a_sync_is_found_at_its_line_where_there_are_stacks(tmp_path: Path) -> None:
    write_job(tmp_path, run_job(sync_often, 2, with_stack=True))

    report, _ = analyze_traces([str(tmp_path)])

    (found,) = [item for item in report.findings if item.code == "P506"]
    assert [(one.file, one.line, one.function) for one in found.where] == [
        ("/home/ann/train.py", 40, "train_step")
    ]
    assert found.details["op"] == "aten::item"
    assert found.details["per_step"] == 20


def test_the_amount_that_a_late_rank_costs_is_that_it_was_made_with(tmp_path: Path) -> None:
    # GIVEN a host that stops for 4.5 ms before each of four collectives, of which 3 ms are hidden
    write_job(tmp_path, run_job(late_host_of_rank_3, 4))

    report, _ = analyze_traces([str(tmp_path)])

    (found,) = [item for item in report.findings if item.code == "P504"]
    assert found.details["cause"] == "host"
    own = 4 * 4.5 - found.measures["lost_ms_per_step"]
    assert 0 <= own < 4 * 3.2
    assert found.victims.ranks == "0-2"


def test_shares_of_a_trace_without_steps_tell_the_time_that_they_are_of(tmp_path: Path) -> None:
    # GIVEN 750 ms of set-up, and then a kernel of 1 ms each 10 ms: the host launches it late
    events = [make_event("cuda_runtime", "cudaMalloc", 0, 750_000)]
    for number in range(26):
        at = 750_000 + 10_000 * number
        events += [
            make_event("cuda_runtime", "cudaLaunchKernel", at - 8000, 8000, correlation=number),
            make_event("kernel", "gemm", at, 1000, device=0, stream=7, correlation=number),
        ]
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": events}))

    report, _ = analyze_traces([str(tmp_path)])

    words = lay_out_traces(report.traces)
    assert words is not None
    assert "no steps, 1 s (251 ms from the first work of the device to its last)" in words.coverage
    (found,) = [item for item in report.findings if item.code == "P502"]
    assert (
        "is idle for 90% of the time from its first work to its last (22% of the traced time)"
        in found.summary
    )
    assert any(
        "from its first work to its last, the device of rank 0 is idle for 225 ms, "
        "of which 225 ms end with a launch that is late" in one.text
        for one in found.because
    )


@pytest.mark.parametrize("program", [late_few_collectives, late_rank_of_optimizer_steps])
@pytest.mark.parametrize("world_size", [2, 4])
def test_a_rank_that_is_last_of_five_is_named_as_possible(
    program: Program, world_size: int, tmp_path: Path
) -> None:
    write_job(tmp_path, run_job(program, world_size))

    report, _ = analyze_traces([str(tmp_path)])

    (found,) = [item for item in report.findings if item.severity is not Severity.NOTE]
    assert (found.code, found.culprits.ranks, found.confidence) == ("P504", [1], "possible")
    assert "collectives are too few to be sure" in found.summary
    assert any("in all_reduce" in one.text for one in found.because)
    assert all("overlap" not in one for item in report.findings for one in item.remedies)


def test_waits_are_told_with_who_was_last_and_the_worst_and_without_overlap(
    tmp_path: Path,
) -> None:
    write_job(tmp_path, run_job(waits_for_each_other, 4))

    report, _ = analyze_traces([str(tmp_path)])

    (found,) = [item for item in report.findings if item.code == "P503"]
    assert found.culprits.ranks == []
    assert found.summary.startswith("rank 2 comes last to 1 of 4 collectives")
    assert "too few collectives to be sure" in found.summary
    assert "no rank is late throughout" not in found.summary
    assert found.details["last_rank"] == 2
    assert (found.details["worst"]["last_rank"], found.details["worst"]["sequence"]) == (2, 0)
    assert all("overlap" not in one for one in found.remedies)


def test_of_many_waits_it_is_said_that_nobody_is_late_throughout(tmp_path: Path) -> None:
    write_job(tmp_path, run_job(rotating_load, 5))

    report, _ = analyze_traces([str(tmp_path)])

    (found,) = [item for item in report.findings if item.code == "P503"]
    assert "no rank is late throughout" in found.summary
    assert "comes last to" in found.summary


def make_program(seed: int) -> Program:
    """A job at random: its host ahead of the device by much, by little, or not at all."""
    chance = random.Random(seed)
    steps, number = range(3, 3 + chance.randint(3, 8)), chance.randint(1, 4)
    us, transfer_us = chance.uniform(20, 400), chance.uniform(500, 9000)
    waits, is_optimizer = chance.choice([0, 1, 2]), chance.random() < 0.5

    def work(rank: Rank, step: int) -> Generator[Collective, float, None]:
        rank.load(chance.choice([10.0, 30.0]))
        for _ in range(number):
            layers(rank, us=us, number=10)
            yield rank.collective("allreduce", 64 << 20, transfer_us)
            rank.wait_for(7, 20)
        if waits and step % waits == 0:
            rank.item()

    def run(rank: Rank) -> Generator[Collective, float, None]:
        for step in steps:
            if is_optimizer:
                yield from work(rank, step)
                with rank.span("cpu_op", "autograd::engine::evaluate_function: MulBackward0"):
                    rank.launch("gemm", us)
                with rank.span("user_annotation", "Optimizer.step#SGD.step"):
                    rank.launch("fused_sgd", us)
            else:
                with rank.step(step):
                    yield from work(rank, step)

    return run


@pytest.mark.parametrize("seed", range(24))
def test_the_share_of_communication_is_that_of_the_steps_that_are_cited(
    seed: int, tmp_path: Path
) -> None:
    write_job(tmp_path, run_job(make_program(seed), seed % 3 + 1))

    report, read = analyze_traces([str(tmp_path)])

    steps, ops = read.summary.get("step_time"), read.summary.get("comm_ops")
    share = steps["exposed_comm_ns"] / steps["wall_ns"]
    for item in report.findings:
        if item.code != "P503":
            continue
        whole = steps["exposed_comm_ns"].sum() / steps["wall_ns"].sum()
        assert item.measures["share_of_step"] == pytest.approx(whole, abs=1e-3)
        cited = [one.row for one in item.because if one.artifact == "step_time.csv"]
        assert len(cited) == 1
        assert share[cited[0]] >= item.measures["share_of_step"] * 0.9
    # Ops are charged with the same time as steps.
    for rank in set(steps["rank"].tolist()):
        of_ops = ops["exposed_ns"][ops["rank"] == rank].sum()
        of_steps = steps["exposed_comm_ns"][steps["rank"] == rank].sum()
        assert of_ops == pytest.approx(of_steps, rel=0.02)
