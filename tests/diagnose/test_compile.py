"""Ranks in a compiler: at work, standing still, or compiling alone."""

from __future__ import annotations

from tests.diagnose.scenes import MODULE, TORCH, Job, at

from whystuck.evidence.finding import Confidence, Severity, Verdict
from whystuck.evidence.ops.collectives import Frame

INNER = Frame("codegen", f"{TORCH}/_inductor/scheduler.py", 900)
OTHER = Frame("fuse_nodes", f"{TORCH}/_inductor/scheduler.py", 500)
CONVERT = Frame("_compile", f"{TORCH}/_dynamo/convert_frame.py", 700)
COMPILED = Frame("__call__", f"{TORCH}/_inductor/output_code.py", 460)
USER = (at("/job/train.py", 30, "forward"), MODULE)
COMPILING = (INNER, CONVERT, *USER)


def in_training(*ranks: int) -> Job:
    """A job that made five steps; the ranks named are not in the sixth all_reduce."""
    return Job().steps().waits(rank for rank in range(4) if rank not in ranks)


def at_start(*ranks: int) -> Job:
    """A job before its first step, in which the ranks named are not in a barrier."""
    return Job().waits((rank for rank in range(4) if rank not in ranks), op="barrier")


def test_compiler_in_which_nothing_moves_is_an_error_before_and_in_training() -> None:
    for job in (in_training(2), at_start(2)):
        finding = job.stands(2, COMPILING, children_cpu_share=0.0).finding()
        assert (finding.code, finding.severity) == ("H119", Severity.ERROR)
        assert (finding.culprits.ranks, finding.where[0].line) == ([2], 30)
        assert finding.details["state"] == "blocked"


def test_first_compilation_that_works_is_waited_for() -> None:
    report = at_start(2).stands(2, COMPILING, cpu_share=0.9, children_cpu_share=0.0).report()
    assert (report.verdict, report.findings[0].code) == (Verdict.WAITING, "H117")


def test_compilation_in_child_processes_works_too() -> None:
    report = at_start(2).stands(2, COMPILING, children_cpu_share=0.8).report()
    assert (report.verdict, report.findings[0].code) == (Verdict.WAITING, "H117")


def test_compilation_whose_children_were_not_seen_is_not_called_still() -> None:
    assert at_start(2).stands(2, COMPILING).codes() == ["H117"]


def test_rank_that_compiles_alone_in_training_is_possible_until_it_takes_long() -> None:
    moving = [COMPILING, (OTHER, CONVERT, *USER)]
    job = in_training(2).stands(2, moving, cpu_share=0.9, children_cpu_share=0.0)
    finding = job.finding()
    assert (finding.code, finding.confidence) == ("H119", Confidence.POSSIBLE)
    assert finding.details == finding.details | {"state": "running", "compiling": [2]}

    finding = job.of_kind("stall", stalled_s=41.0).finding()
    assert (finding.code, finding.confidence) == ("H119", Confidence.LIKELY)


def test_most_ranks_that_compile_in_training_are_waited_for() -> None:
    job = in_training(0, 1, 2)
    for rank in range(3):
        job.stands(rank, COMPILING, cpu_share=0.9, children_cpu_share=0.0)
    assert job.codes() == ["H117"]


def test_code_that_was_compiled_is_not_the_compiler() -> None:
    job = in_training(2).stands(2, (COMPILED, *USER), children_cpu_share=0.0)
    assert job.codes() == ["H101"]
