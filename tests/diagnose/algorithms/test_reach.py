"""Who comes to a call: all ranks, those of a rank, or whoever a value sends there."""

from __future__ import annotations

from textwrap import dedent

import pytest

from whystuck.diagnose.algorithms.source.reach import (
    Reach,
    find_reach,
    is_avoidable,
    is_conditional,
)
from whystuck.evidence.ops.collectives import Frame

FILE = "/job/train.py"


def sites(text: str) -> tuple[list[Frame], list[Frame], dict[str, str]]:
    """Make the calls marked A and B; lines marked ``call A`` are those of their callers."""
    text = dedent(text)
    lines = text.splitlines()

    def site(letter: str) -> list[Frame]:
        marked = [i for i, line in enumerate(lines, 1) if line.endswith(f"# {letter}")]
        called = [i for i, line in enumerate(lines, 1) if line.endswith(f"# call {letter}")]
        inner = [Frame(f"work{letter}" if called else "main", FILE, line) for line in marked]
        return inner + [Frame("main", FILE, line) for line in called]

    return site("A"), site("B"), {FILE: text}


LOOP = """
def workA(batch):
{work}

def main():
    for step in range(9):
        all_reduce()  # B
{call}
"""


def write(work: str = "barrier()  # A", call: str = "workA(step)  # call A") -> str:
    work = "\n".join("    " + line for line in work.splitlines())
    call = "\n".join("        " + line for line in call.splitlines())
    return LOOP.format(work=work, call=call)


@pytest.mark.parametrize(
    ("text", "reach"),
    [
        (write(), Reach.ALL),
        (write(call="if step % 10 == 0:\n    workA(step)  # call A"), Reach.ALL),
        (write(call="if (step + 1) % size == 0:\n    workA(step)  # call A"), Reach.ALL),
        (
            write(call="if args.evaluate and step > warmup_steps:\n    workA(1)  # call A"),
            Reach.ALL,
        ),
        (write(call="last = step == total\nif last:\n    workA(step)  # call A"), Reach.ALL),
        (write(call="if rank == 0:\n    workA(step)  # call A"), Reach.BY_RANK),
        (write(call="if step % 10 == 0 and not rank:\n    workA(1)  # call A"), Reach.BY_RANK),
        (write(call="saves = get_rank() == 0\nif saves:\n    workA(1)  # call A"), Reach.BY_RANK),
        (write(work="if rank != 0:\n    return\nbarrier()  # A"), Reach.BY_RANK),
        (write(work="if not batch:\n    return\nbarrier()  # A"), Reach.OPEN),
        (write(call="if loss > 3.0:\n    workA(step)  # call A"), Reach.OPEN),
        (write(call="if step % 10 == 0 and loss > 3:\n    workA(1)  # call A"), Reach.OPEN),
        (write(work="try:\n    step()\nexcept OSError:\n    barrier()  # A"), Reach.OPEN),
        (write(work="match batch:\n    case 1:\n        barrier()  # A"), Reach.OPEN),
        (write(work="if broken:\n    raise OSError\nbarrier()  # A"), Reach.ALL),
        # What an object is made from is no question about the rank.
        (write(call="x = build(rank)\nif x > 1:\n    workA(1)  # call A"), Reach.OPEN),
    ],
)
def test_conditions_tell_who_comes_to_a_call(text: str, reach: Reach) -> None:
    assert find_reach(*sites(text)) is reach


def test_conditions_of_both_calls_do_not_part_them() -> None:
    text = """
    def main():
        if rank < 4:
            all_reduce()  # B
            barrier()  # A
    """

    assert find_reach(*sites(text)) is Reach.ALL


def test_function_that_asks_for_the_rank_is_followed() -> None:
    text = "def is_saver(step):\n    return step == 5 and not rank\n\n" + dedent(
        write(call="if is_saver(step):\n    workA(step)  # call A")
    )

    assert find_reach(*sites(text)) is Reach.BY_RANK


def test_without_a_source_nothing_is_known() -> None:
    one, other, _ = sites(write())

    assert find_reach(one, other, {}) is Reach.UNKNOWN
    assert find_reach(one, other, {FILE: "def broken(:"}) is Reach.UNKNOWN
    assert find_reach(one, [Frame("other", "/job/b.py", 3)], {}) is Reach.UNKNOWN


def test_call_in_a_try_is_avoidable() -> None:
    text = """
    def main():
        for step in range(9):
            try:
                loss()
                all_reduce()  # B
            except MemoryError:
                pass
            barrier()  # A
    """
    one, other, sources = sites(text)

    assert is_avoidable(other, one, sources)
    assert not is_avoidable(one, other, sources)


def test_line_of_a_loop_with_a_condition_is_conditional() -> None:
    loop = "def main():\n    for group in groups:\n{}        all_reduce()  # A\n"
    one, _, sources = sites(loop.format(""))
    assert not is_conditional(one, sources)

    one, _, sources = sites(loop.format("        if not group:\n            continue\n"))
    assert is_conditional(one, sources)
