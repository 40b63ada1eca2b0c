"""How two call sites relate: loops within loops, loops in callees, and branches on the rank."""

from __future__ import annotations

from textwrap import dedent

import pytest

from whystuck.diagnose.algorithms.source.branches import Relation, relate_sites
from whystuck.evidence.ops.collectives import Frame

FILE = "/job/train.py"


def relate(text: str) -> Relation:
    """Relate the calls marked A and B; frames named ``fA`` and ``fB`` are their callers."""
    text = dedent(text)
    lines = text.splitlines()

    def site(letter: str) -> list[Frame]:
        marked = [i for i, line in enumerate(lines, 1) if f"# {letter}" in line]
        called = [i for i, line in enumerate(lines, 1) if f"# call {letter}" in line]
        inner = [Frame("work" if called else "main", FILE, line) for line in marked]
        return inner + [Frame("main", FILE, line) for line in called]

    return relate_sites(site("A"), site("B"), {FILE: text})


@pytest.mark.parametrize(
    ("text", "relation"),
    [
        (
            """
            for batch in loader:
                all_reduce()  # B
            barrier()  # A
            """,
            Relation.A_AFTER_LOOP,
        ),
        (
            """
            for step in range(9):
                for p in params:
                    all_reduce()  # B
                barrier()  # A
            """,
            Relation.A_AFTER_INNER_LOOP,
        ),
        (
            """
            def work():
                for batch in loader:
                    all_reduce()  # B
            def main():
                work()  # call B
                barrier()  # A
            """,
            Relation.A_AFTER_LOOP,
        ),
        (
            """
            for step in range(9):
                if rank == 0:
                    barrier()  # A
                all_reduce()  # B
            """,
            Relation.A_EXTRA_BY_RANK,
        ),
        (
            """
            if rank != 0:
                barrier()  # A
            load()
            if rank == 0:
                barrier()  # B
            """,
            Relation.A_FIRST,
        ),
        (
            """
            if rank == 0:
                broadcast()  # A
            else:
                broadcast()  # B
            """,
            Relation.EXCLUSIVE,
        ),
        (
            """
            if step % 10 == 0:
                barrier()  # A
            all_reduce()  # B
            """,
            Relation.A_EXTRA,
        ),
    ],
)
def test_sites_relate(text: str, relation: Relation) -> None:
    assert relate(text) is relation
