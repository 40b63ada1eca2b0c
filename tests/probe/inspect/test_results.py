"""Checksums of results, and sums over all ops, in a real job.

On gloo alone: results of asynchronous ops on devices are not looked at.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.launch.running import END
from tests.probe.inspect.inspected import Inspected, inspect_job

from whystuck.probe.inspect.lines import Lines
from whystuck.probe.inspect.op import Op
from whystuck.probe.inspect.reports import Reports
from whystuck.probe.inspect.spec import parse_spec

JOB = (
    """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
value = torch.arange(6.0) + rank
dist.all_reduce(value)
dist.broadcast(value * (rank + 1), 0)
dist.broadcast(value * (rank + 1), 1, async_op=True).wait()
dist.all_gather([torch.empty(6), torch.empty(6)], value * (rank + 1))
dist.all_gather_into_tensor(torch.empty(12), value * (rank + 1))
dist.all_reduce(value, async_op=True).wait()
dist.reduce(value, 0)
dist.reduce_scatter_tensor(torch.empty(3), value)
small = torch.tensor([1e-40, 0.0, 1.0, 2.0])
dist.all_reduce(small)
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
ddp(torch.ones(2, 4) * (rank + 1)).sum().backward()
"""
    + END
)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Inspected:
    made = inspect_job(tmp_path_factory.mktemp("results"), "stats", JOB)
    assert made.code == 0, made.out
    return made


def _by_op(job: Inspected, rank: int) -> dict[tuple[str, int], str]:
    lines = job.of_kind(rank, "result")
    return {(line["name"], line["seq"]): line["sum"] for line in lines}


def test_results_when_ranks_share_them_then_are_equal_and_of_all_kinds(job: Inspected) -> None:
    first, second = _by_op(job, 0), _by_op(job, 1)
    shared = first.keys() & second.keys()
    assert {name for name, _ in shared} >= {
        "all_reduce", "broadcast", "all_gather", "all_gather_base",
    }  # fmt: skip
    assert {key: first[key] for key in shared} == {key: second[key] for key in shared}
    assert len(set(first.values())) > 5
    seen = {name for name, _ in first}
    assert not seen & {"reduce", "reduce_scatter", "reduce_scatter_base"}
    assert ("broadcast", 2) in shared, "what the root gives is what the others get"


def test_sums_when_the_job_ends_then_tell_shares_of_all_elements(job: Inspected) -> None:
    kinds = ("side", "name", "dtype")
    sums: dict[tuple[str, ...], dict[str, Any]] = {}
    for line in job.of_kind(0, "shares"):
        sums[tuple(line[key] for key in kinds)] = line
    given = sums["in", "all_reduce", "float32"]
    tensors = job.find(0, "in", "all_reduce")
    assert given["count"] == given["counted"] == sum(one["count"] for one in tensors)
    assert (given["subnormal"], given["nan"], given["inf"]) == (1, 0, 0)
    assert given["zero"] >= 2


def _make(tmp_path: Path, spec: str) -> Reports:
    return Reports(parse_spec(spec), Lines(str(tmp_path / "inspect")), lambda _: None)


def _takes(reports: Reports, seq: int, name: str = "all_reduce") -> bool:
    op = Op(1, name, "0")
    op.seq = seq
    return reports.takes_result(op)


def test_results_when_a_job_is_long_then_fewer_are_kept(tmp_path: Path) -> None:
    reports = _make(tmp_path, "results")
    assert sum(_takes(reports, seq) for seq in range(1, 10_000)) == 9999
    assert sum(_takes(reports, seq) for seq in range(10_000, 100_000)) == 9000
    assert sum(_takes(reports, seq) for seq in range(100_000, 1_000_000)) == 9000
    assert not _takes(reports, 5, "reduce_scatter")


@pytest.mark.parametrize(
    ("spec", "takes"),
    [("finite", False), ("weights", False), ("stats", True), ("results:ops=broadcast", False)],
)
def test_results_when_asked_for_or_not_then_are_so(tmp_path: Path, spec: str, takes: bool) -> None:
    assert _takes(_make(tmp_path, spec), 3) is takes
