"""What is said of jobs with a known cost, from the files that a profiler would have written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.diagnose.trace_cases import CASES, Case, late_host_of_rank_3, sync_often
from tests.tracing.build import run_job, write_job
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
