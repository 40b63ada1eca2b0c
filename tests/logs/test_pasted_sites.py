"""Tracebacks of ranks that part, beside source: who came to a call alone, and who went past one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Report

PRINT = (
    "Rank {0} is running collective: CollectiveFingerPrint(SequenceNumber=1444, OpType={1}, "
    "TensorShape=[{2}], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(x))"
)
GLOO = "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81]"
LOOP = """\
    for batch in loader:
        loss = fwd_bwd(batch)
        if not torch.isfinite(loss):
            log.warning("non finite loss")
            loss = loss.detach() * 0
        loss_avg(loss)
        labels = batch["labels"]
        {count}
        if {test}:
            {leave}
        token_counts(n, labels.numel())
"""
Place = tuple[int, str, str, int]
LOSS: Place = (96, "loss_avg", "ALLREDUCE", 1)
COUNTS: Place = (101, "token_counts", "ALLREDUCE", 2)
BARRIER: Place = (97, "barrier", "ALLREDUCE", 1)


def raise_all(places: list[Place], *, is_timeout: bool) -> list[str]:
    """Write the tracebacks of all ranks."""
    lines = []
    for rank, (line, call, op, size) in enumerate(places):
        other = next((n for n, one in enumerate(places) if one != places[rank]), rank)
        own, theirs = PRINT.format(rank, op, size), PRINT.format(other, *places[other][2:])
        error = f"Detected mismatch between collectives on ranks. {own}, but {theirs}."
        if is_timeout:
            error = f"{GLOO} Timed out waiting 1800000ms for recv operation to complete"
        lines += [
            "Traceback (most recent call last):",
            '  File "/app/run.py", line 8, in <module>',
            "    fit()",
            f'  File "/app/loop.py", line {line}, in fit',
            f"    {call}(x)",
            f'  File "/app/meters.py", line {line - 80}, in {call}',
            "    dist.all_reduce(buf)",
            f"RuntimeError: {error}",
        ]
        lines[-8:] = [f"[rank{rank}]: {one}" for one in lines[-8:]]
    return lines


def show(count: str = "n = int((labels != -100).sum())", test: str = "n == 0") -> list[str]:
    text = LOOP.format(count=count, test=test, leave="continue")
    return ["$ sed -n 91,101p loop.py", *text.splitlines(), "$ ls"]


def judge(report: Report) -> tuple[str, list[int]]:
    return first_of(report).name, first_of(report).culprits.ranks


@pytest.mark.parametrize("is_timeout", [True, False])
@pytest.mark.parametrize(
    ("count", "test"),
    [
        ("n = int((labels != -100).sum())", "n == 0"),
        ("kept = labels[labels > 0]", "not kept.numel()"),
        ("num_valid = len(labels)", "num_valid < 1"),
        ("", 'batch["labels"] is None'),
    ],
)
def test_rank_that_went_past_a_call_by_its_data_left_it_out(
    tmp_path: Path, count: str, test: str, *, is_timeout: bool
) -> None:
    lines = raise_all([COUNTS, COUNTS, LOSS, COUNTS], is_timeout=is_timeout)
    report = say(tmp_path, *lines, "", *show(count, test))

    assert judge(report) == ("skipped-collective", [2])
    assert (first_of(report).where[0].line, first_of(report).victims.ranks) == (101, "0-1,3")


@pytest.mark.parametrize("is_timeout", [True, False])
def test_rank_that_comes_to_a_call_by_its_number_made_one_more(
    tmp_path: Path, *, is_timeout: bool
) -> None:
    source = (
        "    for batch in loader:\n        step(batch)\n        if rank == 0:\n            save()\n"
    )
    source += "            dist.barrier()\n        loss_avg(loss)\n"
    lines = raise_all([(97, *BARRIER[1:]), *[(98, *LOSS[1:])] * 3], is_timeout=is_timeout)
    shown = ["$ sed -n 93,98p loop.py", *source.splitlines(), "$ ls"]

    assert judge(say(tmp_path, *lines, "", *shown)) == ("extra-collective", [0])


SHAPE = ("shape-mismatch", [2])


def test_without_source_the_shapes_differ(tmp_path: Path) -> None:
    lines = raise_all([COUNTS, COUNTS, LOSS, COUNTS], is_timeout=False)

    assert judge(say(tmp_path, *lines)) == SHAPE


def test_condition_that_is_the_same_on_all_ranks_tells_nothing(tmp_path: Path) -> None:
    lines = raise_all([COUNTS, COUNTS, LOSS, COUNTS], is_timeout=False)

    assert judge(say(tmp_path, *lines, "", *show("", "step % 10"))) == SHAPE


def test_one_place_is_no_other_way(tmp_path: Path) -> None:
    lines = raise_all([COUNTS, COUNTS, (*COUNTS[:3], 7), COUNTS], is_timeout=False)

    assert judge(say(tmp_path, *lines, "", *show())) == SHAPE


def test_one_of_two_may_be_either(tmp_path: Path) -> None:
    lines = raise_all([COUNTS, LOSS], is_timeout=True)
    report = say(tmp_path, *lines, "", *show())

    assert not {rank for one in report.findings for rank in one.culprits.ranks}
