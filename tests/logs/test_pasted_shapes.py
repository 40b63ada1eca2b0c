"""Shapes that ranks print before gloo meets messages of two sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report
from whystuck.pipeline import read_evidence

ABORT = [
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
    (
        "  what():  [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:446] "
        "op.preamble.length <= op.nbytes. {0} vs {1}"
    ),
]
PRINTS = {
    "size": "[rank{0}]: batch 78 preds torch.Size([{1}, 4])",
    "shape": "[default{0}]:step 78 | logits.shape=({1}, 4) loss 2.1",
    "barred": "{0} | batch 78 | x shape: [{1}, 4]",
    "bare": "[rank{0}] batch 78 sends preds [{1}, 4]",
    "round": "11:02:13 rank {0}: batch 78 reduce ({1},4) float32",
    "times": "rank={0} batch 78: {1}x4 to gather",
}
EARLIER = {form: text.replace("78", "77") for form, text in PRINTS.items()}


def judge(
    folder: Path, sizes: Sequence[int], *, form: str = "size", met: tuple[int, int] = (1024, 796)
) -> Report:
    order = [3, 1, 0, 2][: len(sizes)]
    lines = [EARLIER[form].format(rank, 64) for rank in sorted(order)]
    lines += [PRINTS[form].format(rank, sizes[rank]) for rank in order if rank < len(sizes)]
    return say(folder, *lines, *(line.format(*met) for line in ABORT))


@pytest.mark.parametrize("form", PRINTS)
def test_rank_whose_last_tensor_is_as_large_as_what_came_is_named(
    tmp_path: Path, form: str
) -> None:
    finding = first_of(judge(tmp_path, [64, 49, 64, 64], form=form, met=(784, 1024)))

    assert (finding.code, finding.confidence) == ("H106", "likely")
    assert finding.culprits.ranks == [1]
    assert finding.details["shapes"]["1"] == [49, 4]


def test_size_of_elements_is_any_that_fits_both(tmp_path: Path) -> None:
    finding = first_of(judge(tmp_path, [64, 64, 64, 80], met=(512, 640)))

    assert finding.culprits.ranks == [3]


@pytest.mark.parametrize(
    ("sizes", "met"),
    [
        ([30, 23, 30, 30], (120, 92)),
        ([30, 30, 30, 29], (60, 44)),
        ([32, 32, 27, 32], (108, 128)),
    ],
    ids=["a quarter", "the last of eight", "other way round"],
)
def test_pieces_of_the_tensors_that_a_ring_sends_tell_as_well(
    tmp_path: Path, sizes: list[int], met: tuple[int, int]
) -> None:
    finding = first_of(judge(tmp_path, sizes, met=met))

    odd = [rank for rank, size in enumerate(sizes) if size != sizes[0]]
    assert (finding.code, finding.culprits.ranks) == ("H106", odd)


def test_label_of_the_launcher_before_what_is_printed_names_the_rank(tmp_path: Path) -> None:
    lines = [f"{rank}: histogram torch.Size([{9 - rank // 3}]) int32" for rank in range(4)]
    finding = first_of(say(tmp_path, *lines, *(line.format(36, 32) for line in ABORT)))

    assert (finding.code, finding.culprits.ranks) == ("H106", [3])


@pytest.mark.parametrize(
    ("sizes", "met"),
    [
        ([30, 23, 30, 30], (120, 88)),
        ([30, 30, 30, 28], (512, 96)),
        ([64, 49, 64, 64], (1024, 800)),
        ([64, 49, 49, 64], (1024, 784)),
        ([64, 49, 50, 64], (1024, 784)),
        ([64, 64, 64, 64], (1024, 784)),
        ([64, 49], (1024, 784)),
    ],
    ids=[
        "no piece",
        "pieces and all",
        "other bytes",
        "two sides",
        "three sizes",
        "one size",
        "two ranks",
    ],
)
def test_shapes_that_do_not_explain_the_bytes_blame_nobody(
    tmp_path: Path, sizes: list[int], met: tuple[int, int]
) -> None:
    finding = first_of(judge(tmp_path, sizes, met=met))

    assert (finding.code, finding.confidence, finding.culprits.ranks) == ("H106", "possible", [])


def test_shapes_alone_are_no_fault(tmp_path: Path) -> None:
    lines = [PRINTS["size"].format(rank, 49 + rank) for rank in range(4)]

    assert not say(tmp_path, *lines).findings


def test_rows_of_a_table_are_of_no_ranks(tmp_path: Path) -> None:
    (tmp_path / "layers.log").write_text("2 | conv | 9\n0 | stem | 3\n1 | head | 4\n")
    (tmp_path / "ranks.log").write_text("1 | step 1\n0 | step 1\n0 | step 2\n1 | step 2\n")

    ranks = {file.artifact: file.ranks for file in read_evidence(tmp_path).logs.files}

    assert ranks == {"layers.log": frozenset(), "ranks.log": {0, 1}}


@pytest.mark.parametrize(
    ("form", "sizes", "met"),
    [
        ("bare", [64, 49, 64, 64], (1024, 800)),
        ("round", [64, 49, 49, 64], (1024, 784)),
        ("times", [64, 64, 64, 64], (1024, 784)),
    ],
)
def test_bare_shapes_that_do_not_explain_the_bytes_blame_nobody(
    tmp_path: Path, form: str, sizes: list[int], met: tuple[int, int]
) -> None:
    assert first_of(judge(tmp_path, sizes, form=form, met=met)).culprits.ranks == []


def test_line_with_two_shapes_tells_none(tmp_path: Path) -> None:
    lines = [f"[rank{rank}] from (64, 4) to ({64 - 15 * (rank == 1)}, 4)" for rank in range(4)]
    finding = first_of(say(tmp_path, *lines, *(line.format(784, 1024) for line in ABORT)))

    assert (finding.code, finding.culprits.ranks) == ("H106", [])


def sign(*names: str, first: str = "Traceback (most recent call last):") -> list[str]:
    """Write shapes and a traceback behind short names, in a text in which most lines have none."""
    shapes = [f"{name} pooled torch.Size([{9 if name == names[-1] else 12}, 8])" for name in names]
    raised = [
        first,
        '  File "pool.py", line 20, in step',
        "    dist.all_gather(out, pooled)",
        "RuntimeError: Connection closed by peer [10.1.0.7]:5120",
    ]
    text = ["three processes with gloo, this is the end of it", "", "the prints are mine"]
    aborts = [line.format(384, 288) for line in ABORT]
    return [*text, *shapes, *aborts, *(f"{names[0]} {line}" for line in raised)]


def test_short_names_that_are_counted_from_zero_are_ranks(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, *sign("r0", "r1", "r2")))

    assert (finding.code, finding.culprits.ranks) == ("H106", [2])


@pytest.mark.parametrize("names", [("r1", "r2", "r3"), ("r00", "r01", "r02"), ("r0", "r1", "n2")])
def test_short_names_that_may_be_hosts_are_no_ranks(tmp_path: Path, names: tuple[str, ...]) -> None:
    report = say(tmp_path, *sign(*names))

    assert not {rank for one in report.findings for rank in one.culprits.ranks}


def test_short_names_of_hosts_on_which_nccl_runs_are_no_ranks(tmp_path: Path) -> None:
    nccl = (
        "r1:4410:4477 [0] NCCL INFO comm 0x5581 rank 3 nranks 8 cudaDev 0 busId 7000 - Init "
        "COMPLETE"
    )
    report = say(tmp_path, *sign("r0", "r1", "r2"), nccl)

    assert not {rank for one in report.findings for rank in one.culprits.ranks}
