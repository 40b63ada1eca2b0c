"""Stacks of one rank at a line to which the source beside them lets no other rank come."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say

from whystuck.evidence.finding import Confidence

LONE = [
    'Thread 311 (active): "MainThread"',
    "    all_reduce (torch/distributed/distributed_c10d.py:2806)",
    "    sync (tools/metrics.py:31)",
    "    on_eval_end (net/module.py:64)",
    "    run (net/loop.py:12)",
]
REST = [
    'Thread 312 (active): "MainThread"',
    "    barrier (torch/distributed/distributed_c10d.py:4551)",
    "    save (net/saver.py:80)",
    "    run (net/loop.py:15)",
]
HEADS = [
    (
        "$ py-spy dump --pid 311    # LOCAL_RANK=0",
        "$ py-spy dump --pid 312    # LOCAL_RANK=1, same for 2 and 3",
    ),
    ("# rank 0", "# rank 1 (2 and 3 same)"),
    ("rank 0:", "ranks 1-3:"),
    (
        "$ py-spy dump --pid 311   # RANK 0",
        "$ py-spy dump --pid 312   # RANK 1, RANKS 2 and 3 are identical",
    ),
]


def list_source(test: str, *more: str) -> list[str]:
    rows = [f"        if {test}:", '            self.log("score", s, sync_dist=True)', *more]
    return ["It hangs here. net/module.py:", *(f"  {63 + k} {row}" for k, row in enumerate(rows))]


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("test", ["self.trainer.is_global_zero", "dist.get_rank() == 0"])
def test_the_rank_that_a_condition_lets_in_alone_is_named(
    tmp_path: Path, heads: tuple[str, str], test: str
) -> None:
    lines = [*list_source(test), heads[0], *LONE, heads[1], *REST]
    found = say(tmp_path, *lines).findings[0]

    assert (found.code, found.culprits.ranks) == ("H102", [0])
    assert "by a condition on the rank" in found.summary
    assert found.confidence is Confidence.POSSIBLE


@pytest.mark.parametrize(
    ("test", "more"),
    [
        ("self.trainer.current_epoch > 2", ()),
        ("dist.get_rank() == 1", ()),
        ("dist.get_rank() == 0", ("            return", "        self.meet()")),
        ("dist.get_rank() == 0", ("        else:", "            self.meet()")),
        ("dist.get_rank() == 0", ("        if dist.get_rank() > 0:", "            self.meet()")),
    ],
)
def test_where_the_others_may_come_to_it_the_rank_is_not_named(
    tmp_path: Path, test: str, more: tuple[str, ...]
) -> None:
    lines = [*list_source(test, *more), HEADS[2][0], *LONE, HEADS[2][1], *REST]
    found = say(tmp_path, *lines).findings

    assert "H102" not in {one.code for one in found}


COMPUTES = [
    'Thread 312 (active): "MainThread"',
    "    _engine_run_backward (torch/autograd/graph.py:825)",
    "    backward (torch/_tensor.py:581)",
    "    run (net/loop.py:15)",
]
PAIR = [("rank 0", "rank 1"), ("# rank 0", "# rank 1"), ("py-spy of rank 0:", "rank 1:")]


@pytest.mark.parametrize("heads", PAIR)
@pytest.mark.parametrize("rest", [REST, COMPUTES], ids=["waits elsewhere", "computes"])
@pytest.mark.parametrize(
    "test",
    ["dist.get_rank() == 0", "accelerator.is_main_process and step % args.save_steps == 0"],
)
def test_one_of_two_ranks_that_a_condition_lets_in_alone(
    tmp_path: Path, heads: tuple[str, str], rest: list[str], test: str
) -> None:
    lines = [*list_source(test), heads[0], *LONE, heads[1], *rest]
    found = say(tmp_path, *lines).findings[0]

    assert (found.code, found.culprits.ranks) == ("H102", [0])
    assert found.confidence is Confidence.POSSIBLE


@pytest.mark.parametrize(
    ("test", "more"),
    [
        ("self.trainer.current_epoch > 2", ()),
        ("dist.get_rank() == 1", ()),
        ("dist.get_rank() == 0 or step % 500 == 0", ()),
        ("dist.get_rank() == 0", ("            return", "        self.meet()")),
        ("dist.get_rank() == 0", ("        else:", "            self.meet()")),
    ],
)
@pytest.mark.parametrize("rest", [REST, COMPUTES], ids=["waits elsewhere", "computes"])
def test_of_two_ranks_nobody_is_named_where_the_other_may_come_to_it(
    tmp_path: Path, test: str, more: tuple[str, ...], rest: list[str]
) -> None:
    lines = [*list_source(test, *more), "rank 0", *LONE, "rank 1", *rest]
    found = say(tmp_path, *lines).findings

    assert "H102" not in {one.code for one in found}
