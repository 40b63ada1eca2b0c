"""Versions, matrix products and all-reduce: real ones by torch, and each with a fault put in."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.check.checking import find, make_policy, run_check, write_tree
from tests.launch.running import WHYSTUCK, clean_environment

from whystuck.check.check import Context
from whystuck.check.compute.allreduce import AllReduce
from whystuck.check.compute.gemm import Gemm
from whystuck.check.compute.torch_check import TorchCheck
from whystuck.check.compute.training import Training
from whystuck.check.compute.versions import Versions
from whystuck.check.policy import read_policy
from whystuck.check.report import make_report
from whystuck.check.runner import run_checks
from whystuck.evidence.finding import Severity
from whystuck.evidence.nodes.checks import CheckResult, Outcome

# A busy machine is no fault of these.
EASY = make_policy(
    gemm={"min_host_gflops_per_core": 0.0, "seconds": 0.05},
    allreduce={"min_gloo_gbps": 0.0, "megabytes": 1, "repeats": 2},
    deadlines={"torch": 120.0},
)
CONTEXT = Context(policy=read_policy(), node="n0")
# Runs the program of the checks after a fault was put into torch.
WRAPPER = """
import runpy, sys, time
import torch, torch.distributed as dist
program = sys.argv[1]
sys.argv = sys.argv[1:]
{fault}
runpy.run_path(program, run_name="__main__")
"""


def make_python(folder: Path, fault: str) -> str:
    """A Python whose torch has a fault."""
    wrapper, python = folder / "wrapper.py", folder / "python"
    wrapper.write_text(WRAPPER.format(fault=fault))
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{wrapper}" "$@"\n')
    python.chmod(0o755)
    return str(python)


def test_a_python_that_leaves_out_folders_of_programs_is_no_obstacle(tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONSAFEPATH": "1"}
    (result,) = run_check(
        Versions(), policy=EASY, pythons=[sys.executable], environment=environment
    )

    assert result.outcome is Outcome.OK, result


def run(check: TorchCheck, python: str = sys.executable, policy: Any = EASY) -> list[CheckResult]:
    return run_check(check, policy=policy, pythons=[python])


# -------------------------------------------------------------------------------------- real ones


def test_a_good_torch_is_told_with_versions() -> None:
    (result,) = run(Versions())

    assert result.outcome is Outcome.OK
    assert result.facts["torch"].startswith("2.")
    assert {"CUDA", "ROCm", "CANN", "NCCL", "devices"} <= set(result.facts)
    assert result.took_s > 0


def test_a_good_product_passes_with_its_speed() -> None:
    (result,) = run(Gemm())

    assert result.outcome is Outcome.OK
    assert result.figures["cpu_tflops"] > 0
    assert result.facts["cpu"].endswith("same bits")


def test_a_good_all_reduce_passes_with_its_definition() -> None:
    (result,) = run(AllReduce())

    assert result.outcome is Outcome.OK, result
    assert result.facts["sums"] == "exact"
    assert "busbw = 2(n-1)/n" in result.facts["bus bandwidth"]
    assert "n=2, 1 MiB" in result.facts["op"]
    assert result.figures["busbw_gbps"] == pytest.approx(result.figures["algbw_gbps"])


# ------------------------------------------------------------------------------------------ faults


def test_an_all_reduce_that_damages_one_element_is_found(tmp_path: Path) -> None:
    fault = """
real = dist.all_reduce
def all_reduce(tensor, *args, **kwargs):
    work = real(tensor, *args, **kwargs)
    if dist.get_rank() == 1:
        tensor[4711] += 1
    return work
dist.all_reduce = all_reduce
"""
    finding = find(run(AllReduce(), make_python(tmp_path, fault)), "N419")

    assert finding.severity is Severity.ERROR
    assert "wrong sums on local rank 1: 3 elements, the first is number 4711" in finding.summary
    assert finding.details["local_ranks"] == [1]


def test_an_all_reduce_that_is_slow_is_told_with_its_definition(tmp_path: Path) -> None:
    fault = """
real = dist.all_reduce
def all_reduce(tensor, *args, **kwargs):
    time.sleep(0.5)
    return real(tensor, *args, **kwargs)
dist.all_reduce = all_reduce
"""
    policy = make_policy(allreduce={"min_gloo_gbps": 0.03, "megabytes": 1, "repeats": 1})
    finding = find(run(AllReduce(), make_python(tmp_path, fault), policy), "N420")

    assert finding.severity is Severity.WARNING
    assert finding.measures["busbw_gbps"] < 0.003
    assert "busbw = 2(n-1)/n" in finding.because[0].text
    assert finding.details["n"] == 2


def test_an_all_reduce_that_hangs_is_incomplete(tmp_path: Path) -> None:
    fault = """
dist.all_reduce = lambda *args, **kwargs: time.sleep(600)
"""
    policy = make_policy(deadlines={"torch": 120.0, "part": 3.0})
    (result,) = run(AllReduce(), make_python(tmp_path, fault), policy)

    assert result.outcome is Outcome.INCOMPLETE
    assert result.reason == "no answer in 3 s"


def test_a_product_with_other_bits_is_found(tmp_path: Path) -> None:
    fault = """
real, count = torch.Tensor.__matmul__, [0]
def matmul(self, other):
    count[0] += 1
    product = real(self, other)
    if count[0] == 3:
        product[5, 7] = torch.nextafter(product[5, 7], torch.tensor(1e9))
    return product
torch.Tensor.__matmul__ = matmul
"""
    finding = find(run(Gemm(), make_python(tmp_path, fault)), "N424")

    assert finding.severity is Severity.ERROR
    assert "multiplies the same matrices to other bits: 1 of " in finding.summary


@pytest.mark.slow
def test_a_slow_product_is_told(tmp_path: Path) -> None:
    fault = """
real = torch.Tensor.__matmul__
def matmul(self, other):
    time.sleep(1.0)
    return real(self, other)
torch.Tensor.__matmul__ = matmul
"""
    finding = find(run(Gemm(), make_python(tmp_path, fault), make_policy()), "N423")

    assert finding.severity is Severity.WARNING
    assert finding.measures["tflops"] < 0.001
    assert finding.measures["threshold_tflops"] > finding.measures["tflops"]


# Three devices that are no more than names: what they compute, the host does.
DEVICES = """
import torch._C
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 3
torch.cuda.synchronize = lambda device=None: None
torch.cuda.get_device_name = lambda device=None: "stand-in"
torch.randn = (lambda real: lambda *sizes, **kw: real(64, 64, **kw))(torch.randn)
mine = []
def to(self, device=None, dtype=None):
    mine.append(device)
    return self
torch.Tensor.to = to
real = torch.Tensor.__matmul__
def matmul(self, other):
    {fault}
    return real(self, other)
torch.Tensor.__matmul__ = matmul
"""


def test_one_device_that_is_slow_among_others_is_found(tmp_path: Path) -> None:
    fault = DEVICES.format(fault='time.sleep(0.3 if mine[0] == "cuda:1" else 0.01)')
    finding = find(run(Gemm(), make_python(tmp_path, fault), make_policy()), "N423")

    assert finding.details["device"] == "cuda:1"
    assert "the median of 3 devices is" in finding.because[1].text
    assert finding.measures["tflops"] < finding.measures["threshold_tflops"] / 2


@pytest.mark.slow
def test_one_device_that_hangs_among_others_cannot_compute(tmp_path: Path) -> None:
    fault = DEVICES.format(fault='time.sleep(600 if mine[0] == "cuda:2" else 0.01)')
    policy = make_policy(deadlines={"torch": 120.0, "part": 5.0})
    finding = find(run(Gemm(), make_python(tmp_path, fault), policy), "N424")

    assert finding.summary == "device cuda:2 cannot multiply matrices: no answer in 5 s"


def test_without_torch_these_are_skipped_and_say_why(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    python.chmod(0o755)
    (result,) = run(Gemm(), str(python))

    assert result.outcome is Outcome.SKIPPED
    assert result.reason.startswith("torch cannot be imported: ")


def test_without_any_python_these_are_skipped() -> None:
    (result,) = run_check(Gemm())

    assert (result.outcome, result.reason[:18]) == (Outcome.SKIPPED, "there is no Python")


def test_a_torch_that_ends_the_process_is_incomplete_with_its_last_word(tmp_path: Path) -> None:
    (result,) = run(Gemm(), make_python(tmp_path, "sys.exit('the driver has gone')"))

    assert result.outcome is Outcome.INCOMPLETE
    assert "the driver has gone" in result.reason


def test_what_a_part_raises_costs_no_other_part(tmp_path: Path) -> None:
    # GIVEN a node on which no folder can be made for the ranks of an all-reduce to meet in
    fault = """
import tempfile
def make(*args, **kwargs):
    raise OSError(28, "No space left on device")
tempfile.TemporaryDirectory = make
"""
    context = Context(
        policy=EASY, node="n0", pythons=(make_python(tmp_path, fault),),
        environment={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    reduced, product = run_checks([AllReduce(), Gemm()], context)

    assert (reduced.outcome, product.outcome) == (Outcome.INCOMPLETE, Outcome.OK)
    assert "No space left on device" in reduced.reason


def test_what_measures_ends_with_who_asked(tmp_path: Path) -> None:
    # GIVEN checks whose caller is killed while a product takes for ever
    fault = """
def matmul(self, other):
    open({place!r}, "w").write(str(os.getppid()))
    time.sleep(600)
torch.Tensor.__matmul__ = matmul
"""
    place = tmp_path / "begun"
    make_python(tmp_path, "import os\n" + fault.format(place=str(place)))
    process = subprocess.Popen(
        [*WHYSTUCK, "check", "--only", "gemm"], cwd=tmp_path, stdout=subprocess.DEVNULL,
        env=clean_environment() | {"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )  # fmt: skip
    while not (place.exists() and place.read_text()):
        assert process.poll() is None
        time.sleep(0.02)
    program = psutil.Process(int(place.read_text()))
    measuring = program.children()
    process.kill()
    process.wait()

    _, alive = psutil.wait_procs([program, *measuring], timeout=60)
    assert [one for one in alive if one.status() != psutil.STATUS_ZOMBIE] == []


# ------------------------------------------------------------------------------------------- deep


def run_deep(check: TorchCheck, python: str = sys.executable) -> list[CheckResult]:
    policy = make_policy(
        gemm={"min_host_gflops_per_core": 0.0, "deep_seconds": 0.2},
        allreduce={"min_gloo_gbps": 0.0, "megabytes": 1, "repeats": 2, "sweep_kib": (1, 64)},
        training={"steps": 6},
        deadlines={"torch-deep": 120.0},
    )
    return run_check(check, policy=policy, pythons=[python], is_deep=True)


def test_a_deep_all_reduce_tells_many_sizes() -> None:
    (result,) = run_deep(AllReduce())

    assert result.outcome is Outcome.OK
    assert {"1 KiB", "64 KiB"} <= set(result.facts)


def test_a_good_training_passes() -> None:
    (result,) = run_deep(Training())

    assert result.outcome is Outcome.OK, result
    assert result.figures["step_ms"] > 0
    assert make_report([result], 1.0, is_deep=True).context["sentence"].endswith("look at the code")


@pytest.mark.slow
def test_a_training_whose_gradients_are_damaged_on_one_rank_is_found(tmp_path: Path) -> None:
    fault = """
real = torch.optim.SGD.step
def step(self, *args, **kwargs):
    if dist.get_rank() == 1:
        self.param_groups[0]["params"][0].grad[3, 3] += 1e-3
    return real(self, *args, **kwargs)
torch.optim.SGD.step = step
"""
    results = run_deep(Training(), make_python(tmp_path, fault))
    finding = find(results, "N419")

    assert finding.summary == "after training 1, the parameters of the ranks differ"
    told = make_report(results, 1.0, is_deep=True).context["sentence"]
    assert told.startswith("something is wrong with this node")


@pytest.mark.slow
def test_a_training_that_cannot_be_repeated_is_found(tmp_path: Path) -> None:
    fault = """
real, count = torch.nn.functional.linear, [0]
def linear(*args, **kwargs):
    count[0] += 1
    return real(*args, **kwargs) + (1e-4 if count[0] == 17 else 0.0)
torch.nn.functional.linear = linear
"""
    results = run_deep(Training(), make_python(tmp_path, fault))
    codes = {problem.code for result in results for problem in result.problems}

    assert codes == {"N424"}
    assert "differ on local rank" in results[0].problems[0].text


def test_a_device_that_gets_slower_is_told_with_deep_alone() -> None:
    row = make_row("cuda:0", 700.0) | {"last_tflops": 500.0}
    context = Context(policy=read_policy(), is_deep=True)
    (problem,) = Gemm().judge({"rows": [row]}, context).problems

    assert "gets slower while it computes: 500 TFLOP/s after 700" in problem.text
    assert Gemm().judge({"rows": [row]}, CONTEXT).problems == ()


# -------------------------------------------------------------------------------------- as told

TOLD = {"torch": "2.7.0", "python": "3.12.1", "cuda": "12.6", "cuda_available": True, "nccl": ""}


def judge_versions(context: Context = CONTEXT, **told: Any) -> CheckResult:
    return Versions().judge({**TOLD, "devices": ["NVIDIA H100"] * 2, **told}, context)


def test_a_known_bad_nccl_is_told_with_its_source() -> None:
    (problem,) = judge_versions(nccl="2.25.1").problems

    assert problem.code == "N418"
    assert problem.text.startswith("NCCL 2.25.1 may hang in ncclCommAbort")
    assert problem.details["source"].startswith("https://")


def test_a_driver_that_is_too_old_for_torch_is_an_error(tmp_path: Path) -> None:
    files = {"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64  470.57.02  Tue\n"}
    context = Context(policy=read_policy(), root=write_tree(tmp_path, files))
    (problem,) = judge_versions(context).problems

    assert (problem.code, problem.severity) == ("N417", "error")
    assert problem.text.endswith("needs driver 525.60.13; the driver is 470.57.02")


def test_a_good_pair_of_torch_and_driver_passes(tmp_path: Path) -> None:
    files = {"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64  550.54.15  Tue\n"}
    context = Context(policy=read_policy(), root=write_tree(tmp_path, files))
    result = judge_versions(context, nccl="2.26.2")

    assert result.outcome is Outcome.OK
    assert result.facts["CUDA"] == "12.6, available"
    assert result.facts["devices"] == "2 × NVIDIA H100"


def test_a_torch_without_cuda_on_a_node_with_devices_is_told(tmp_path: Path) -> None:
    place = "sys/bus/pci/devices/0000:3b:00.0"
    root = write_tree(tmp_path, {f"{place}/vendor": "0x10de", f"{place}/class": "0x030200"})
    context = Context(policy=read_policy(), root=root)
    (problem,) = judge_versions(context, cuda="", cuda_available=False).problems

    assert "built without CUDA" in problem.text


def make_row(device: str, tflops: float, name: str = "NVIDIA H100 80GB HBM3") -> dict[str, Any]:
    return {
        "device": device, "name": name, "size": 8192, "dtype": "bfloat16", "tflops": tflops,
        "last_tflops": tflops, "repeats": 9, "wrong": 0, "threads": 0, "elements_off": 0,
    }  # fmt: skip


def test_one_device_slower_than_its_peers_is_named() -> None:
    rows = [make_row(f"cuda:{index}", 700.0) for index in range(7)] + [make_row("cuda:7", 610.0)]
    (problem,) = Gemm().judge({"rows": rows}, CONTEXT).problems

    assert problem.subject == "cuda:7"
    assert "610 TFLOP/s, below 630" in problem.text
    assert "the median of 8 devices is 700" in problem.because[1]


def test_a_device_below_its_kind_is_named_by_the_policy() -> None:
    (problem,) = Gemm().judge({"rows": [make_row("cuda:0", 300.0)]}, CONTEXT).problems

    assert "the policy has 590 for H100" in problem.because[1]


def test_a_device_that_cannot_compute_is_an_error() -> None:
    row = {"device": "cuda:3", "problem": "no answer in 20 s"}
    (problem,) = Gemm().judge({"rows": [make_row("cuda:0", 700.0), row]}, CONTEXT).problems

    assert (problem.code, problem.severity, problem.subject) == ("N424", "error", "cuda:3")
