"""Collectives that a source text lets some ranks call."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from whystuck.diagnose.algorithms.source.calls import find_lone_calls, name_group
from whystuck.diagnose.algorithms.source.rank_tests import decide
from whystuck.evidence.ops.collectives import Frame

FILE = "/job/train.py"


@pytest.mark.parametrize(
    ("test", "answers"),
    [
        ("rank == 0", (True, False)),
        ("0 == dist.get_rank()", (True, False)),
        ("self.global_rank != 0", (False, True)),
        ("args.local_rank in (1, 2)", (False, True)),
        ("rank < 1 and step % 10 == 0", (True, False)),
        ("not rank", (True, False)),
        ("int_rank", (None, None)),
        ("is_main_process()", (True, False)),
        ("not self.is_master", (False, True)),
        ("trainer.is_global_zero", (True, False)),
        ("me == 1", (False, True)),
        ("tp_rank == 0", (None, None)),
        ("dist.get_rank(group) == 0", (None, None)),
        ("step == 0", (None, None)),
        ("rank == last", (None, None)),
        ("step > 5 or rank == 0", (True, False)),
    ],
)
def test_condition_is_answered_for_ranks_0_and_1(
    test: str, answers: tuple[bool | None, bool | None]
) -> None:
    node = ast.parse(test, mode="eval").body
    assert (decide(node, 0, frozenset({"me"})), decide(node, 1, frozenset({"me"}))) == answers


def find(text: str, rank: int = 0) -> list[tuple[str, int]]:
    text = dedent(text)
    main = next(i for i, line in enumerate(text.splitlines(), 1) if "def main" in line)
    calls = find_lone_calls(Frame("main", FILE, main + 1), rank, [1 - rank], {FILE: text})
    return [(call.op, call.place.line) for call in calls]


def test_calls_below_a_condition_on_the_rank_are_found_in_callees() -> None:
    text = """
    import os
    me = int(os.environ["RANK"])

    class Saver:
        def save(self):
            self.meet()

        def meet(self):
            dist.barrier()

    def main():
        if me == 0:
            saver.save()
        dist.all_reduce(x)
    """
    assert find(text) == [("barrier", 10)]
    assert find(text, rank=1) == []


def test_early_return_of_other_ranks_leaves_the_rest_to_one() -> None:
    text = """
    def main():
        if rank != 0:
            return
        dist.all_gather_object(out, x)
    """
    assert find(text) == [("all_gather_object", 5)]


@pytest.mark.parametrize(
    "text",
    [
        """
        def main():
            if rank == 0:
                dist.broadcast(x, 0)
            else:
                dist.broadcast(y, 0)
        """,
        """
        def main():
            if rank != 0:
                dist.barrier()
            prepare()
            if rank == 0:
                dist.barrier()
        """,
        """
        def main():
            if rank == 0:
                words.reduce(add)
                pool.scatter(x)
        """,
        """
        def main():
            if step == 0:
                dist.barrier()
        """,
        "def main(:\n    if rank == 0:\n        dist.barrier()",
    ],
)
def test_what_all_ranks_call_or_no_collective_is_no_lone_call(text: str) -> None:
    assert find(text) == []


def test_functions_that_call_each_other_in_many_ways_are_read_in_bounded_time() -> None:
    names = [f"f{number}" for number in range(30)]
    bodies = "\n".join(
        f"def {name}():\n" + "".join(f"    {other}()\n" for other in names) for name in names
    )
    assert find(f"{bodies}\ndef main():\n    f0()\n") == []


def test_recursion_ends() -> None:
    assert find("def main():\n    main()\n    if rank == 0:\n        dist.barrier()\n") == [
        ("barrier", 4)
    ]


@pytest.mark.parametrize(
    ("call", "group"),
    [
        ("dist.all_reduce(x)", ""),
        ("dist.all_reduce(x, group=None)", ""),
        ("dist.all_reduce(x, group=self.tp)", "self.tp"),
        ("dist.barrier(tp_group)", "tp_group"),
        ("work(x)", None),
    ],
)
def test_group_is_named_by_the_text_of_its_argument(call: str, group: str | None) -> None:
    assert name_group(Frame("main", FILE, 1), {FILE: call}) == group
