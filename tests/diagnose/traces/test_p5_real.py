"""What is said of real traces; each statement was checked by looking at the trace."""

from __future__ import annotations

import pytest
from tests.tracing.data import find_traces
from tests.tracing.profiled import trace_training

from whystuck.diagnose.engine import diagnose
from whystuck.evidence.finding import Report, Severity
from whystuck.evidence.model import Evidence
from whystuck.evidence.traces.options import TraceOptions
from whystuck.pipeline import analyze_traces
from whystuck.tracing.reduce import measure_rank, reduce_ranks


def judge(name: str) -> Report:
    return analyze_traces([str(find_traces() / name)])[0]


def list_warned(report: Report) -> dict[str, list[int]]:
    return {
        item.code: item.culprits.ranks
        for item in report.findings
        if item.severity is not Severity.NOTE
    }


def test_the_slow_dataset_of_a_real_job_is_found() -> None:
    # GIVEN a job on this machine whose dataset sleeps for 1 ms for each of 8 samples
    options = TraceOptions()

    summary = reduce_ranks([measure_rank(trace_training(), options)], options)
    report = diagnose(Evidence(traces=summary))

    found = report.findings[0]
    assert found.code == "P501"
    assert found.severity is Severity.WARNING
    assert found.details["loader"].endswith("_SingleProcessDataLoaderIter.__next__")
    assert found.details["loader_ms"] > 8
    assert found.details["waits_per_step"] == 1
    assert report.verdict == "slow"
    assert not report.traces.has_device


@pytest.mark.parametrize(
    ("name", "cause", "ms"), [("host", "host", 30.0), ("gpu", "gpu", 27.0)], ids=["host", "gpu"]
)
def test_the_rank_that_was_made_late_is_named(name: str, cause: str, ms: float) -> None:
    report = judge(f"injected/{name}_8rank_r5")

    (found,) = [item for item in report.findings if item.code == "P504"]
    assert found.culprits.ranks == [5]
    assert found.severity is Severity.WARNING
    assert found.details["cause"] == cause
    assert found.measures["wait_caused_ms"] == pytest.approx(ms, rel=0.05)
    # ... in two steps, of which one is measured
    assert found.measures["lost_ms_per_step"] == pytest.approx(ms / 2, rel=0.05)
    assert report.verdict == "slow"


def test_two_of_128_ranks_wait_for_the_host_and_for_ranks_that_are_not_there() -> None:
    report = judge("hta_sampled_2rank")

    # 181 ms of idle time end with a launch that came late, 153 ms of communication are bare
    assert list_warned(report) == {"P502": [], "P503": []}
    shares = {item.code: item.measures["share_of_step"] for item in report.findings}
    assert shares["P502"] == pytest.approx(0.295, abs=0.01)
    assert shares["P503"] == pytest.approx(0.252, abs=0.01)
    assert report.coverage.ranks_expected == 128
    (comm,) = [item for item in report.findings if item.code == "P503"]
    assert comm.confidence == "likely"
    assert "not traced" in comm.summary


@pytest.mark.parametrize(
    ("name", "share"),
    [("hta_cuda_sync_alexnet", 0.30), ("hta_mi250_minitoy", 0.93), ("tl_b200_rank0of8", 0.83)],
)
def test_hosts_that_launch_late_are_told_with_doubt_at_the_start(name: str, share: float) -> None:
    report = judge(name)

    assert list_warned(report) == {"P502": []}
    (found,) = [item for item in report.findings if item.code == "P502"]
    assert found.measures["share_of_step"] == pytest.approx(share, abs=0.02)
    assert found.confidence == "possible"
    assert sum(item.measures["share_of_step"] for item in report.findings) <= 1
