"""Messages of two sizes, where source or prints tell whose tensor has another type."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report

ABORT = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    "  what():  [enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:{line}] "
    "op.preamble.length <= op.nbytes. {got} vs {wanted}"
)
RAISED = (
    "[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] "
    "op.preamble.length <= op.nbytes. {got} vs {wanted}"
)
# Each gives rank 2 elements of twice the size.
SOURCES = {
    "else": (
        "    if rank == 2:\n        total = torch.tensor([1.0], dtype=torch.float64)\n"
        "    else:\n        total = torch.tensor([1.0], dtype=torch.float32)"
    ),
    "not": (
        "    if dist.get_rank() != 2:\n        x = x.to(torch.bfloat16)\n    else:\n"
        "        x = x.float()   # why?"
    ),
    "ternary": "    kind = torch.int64 if self.rank == 2 else torch.int32",
    "methods": "x = x.double() if args.rank == 2 else x.float()",
    "classes": (
        "7  if rank == 2:\n8      n = torch.LongTensor([k])\n9  else:\n"
        "10     n = torch.IntTensor([k])"
    ),
    "numpy": "buf = np.zeros(8, dtype=np.float64 if rank == 2 else np.float32)",
    "one line": "if rank == 2: n = n.long()\nelse: n = n.int()",
}


def judge(folder: Path, source: str, complaint: str, got: int = 96, wanted: int = 48) -> Report:
    told = complaint.format(got=got, wanted=wanted, line=446)
    return say(folder, "4 procs on CPU:", source, "    dist.all_reduce(x)", "", told)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("complaint", [ABORT, RAISED])
def test_source_that_treats_a_rank_apart_names_it(
    tmp_path: Path, source: str, complaint: str
) -> None:
    finding = first_of(judge(tmp_path, SOURCES[source], complaint))

    assert (finding.code, finding.culprits.ranks) == ("H107", [2])
    assert finding.confidence == "likely"


def test_smaller_elements_are_found_from_the_other_side(tmp_path: Path) -> None:
    source = SOURCES["ternary"].replace("int64", "int8")
    finding = first_of(judge(tmp_path, source, ABORT, got=48, wanted=12))

    assert (finding.code, finding.culprits.ranks) == ("H107", [2])


@pytest.mark.parametrize(
    "form",
    [
        "[rank{0}]: x is {1}",
        "rank {0}: dtype={1}",
        "rank={0} dtype: {1}",
        "[r{0}] gather_stats: in torch.Size([12]) {1}",
        "[1,{0}]<stdout>:stats (12,), {1}",
        "(Trainer rank={0}, pid=71) stats dtype={1}",
    ],
)
def test_types_that_ranks_print_name_the_odd_one(tmp_path: Path, form: str) -> None:
    prints = [form.format(one, f"torch.float{64 if one == 1 else 32}") for one in range(4)]
    finding = first_of(judge(tmp_path, "\n".join(prints), ABORT))

    assert (finding.code, finding.culprits.ranks) == ("H107", [1])


@pytest.mark.parametrize("names", [("bf16", "fp32"), ("bfloat16", "float32")])
@pytest.mark.parametrize("form", ["[r{0}] stats dtype={1}", "rank {0}: buf, dtype: {1}"])
def test_types_without_their_module_are_read(
    tmp_path: Path, form: str, names: tuple[str, str]
) -> None:
    prints = [form.format(one, names[one != 2]) for one in range(4)]
    finding = first_of(judge(tmp_path, "\n".join(prints), ABORT))

    assert (finding.code, finding.culprits.ranks) == ("H107", [2])


@pytest.mark.parametrize(
    "form",
    [
        "[r{0}]     y = x.to({1})",
        "[x{0}] stats {1}",
        "step {0}: stats {1}",
        "[r{0}] stats of {1}_slow",
    ],
)
def test_types_of_no_rank_name_nobody(tmp_path: Path, form: str) -> None:
    prints = [form.format(one, f"torch.float{64 if one == 1 else 32}") for one in range(4)]

    assert first_of(judge(tmp_path, "\n".join(prints), ABORT)).culprits.ranks == []


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(SOURCES["ternary"].replace("int32", "int64"), id="same"),
        pytest.param("x = torch.zeros(8, dtype=torch.float32)", id="no rank"),
        pytest.param(SOURCES["ternary"].replace("self.rank", "local_rank"), id="local rank"),
        pytest.param(SOURCES["ternary"].replace("int64", "int8"), id="other sizes"),
        pytest.param("rank 0: dtype=torch.float64\nrank 1: dtype=torch.float32", id="two"),
        pytest.param(
            f"{SOURCES['ternary']}\n{SOURCES['numpy'].replace('== 2', '== 1')}", id="ranks"
        ),
        pytest.param(
            "if rank == 2:\n    lr = torch.float64\nelse:\n    name = torch.float32", id="names"
        ),
    ],
)
def test_types_that_do_not_explain_the_sizes_name_nobody(tmp_path: Path, source: str) -> None:
    report = judge(tmp_path, source, ABORT)

    assert all(not one.culprits.ranks for one in report.findings)
    assert first_of(report).code == "H106"


def test_one_of_two_ranks_is_not_named(tmp_path: Path) -> None:
    source = SOURCES["ternary"].replace("2 else", "1 else")
    report = judge(tmp_path, f"WORLD_SIZE=2 world_size=2\n{source}", ABORT)
    finding = first_of(report)

    assert (finding.code, finding.confidence, finding.culprits.ranks) == ("H107", "possible", [])


def test_types_in_a_job_that_is_well_are_nothing(tmp_path: Path) -> None:
    report = say(tmp_path, *SOURCES.values(), "rank 0: dtype=torch.float64", "epoch 3 done")

    assert not [one for one in report.findings if one.code in {"H106", "H107"}]
