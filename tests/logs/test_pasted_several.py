"""Stacks below a heading that names several ranks, or all others."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.pipeline import read_evidence

OWN = [
    'Thread 2207 (active): "MainThread"',
    "    read (asr/io.py:20)",
    "    step (train.py:26)",
    "",
]
WAITS = [
    'Thread 2203 (active): "MainThread"',
    "    synchronize (torch/cuda/streams.py:231)",
    "    all_reduce (torch/distributed/distributed_c10d.py:2806)",
    "    step (train.py:28)",
    "",
]
BARE = WAITS[1:]
HEADINGS = {
    "range": "ranks 0-3,5-7:",
    "blank": "ranks 0-3 5-7",
    "and": "ranks 0-3 and 5-7:",
    "dots": "Ranks 0..3, 5..7",
    "list": "ranks [0, 1, 2, 3, 5, 6, 7]:",
    "fence": "=== ranks 0-3, 5-7 ===",
    "one": "rank 0-3, 5-7:",
    "others": "the other ranks (0-3, 5-7):",
    "stacks": "py-spy of ranks 0-3,5-7 (all alike):",
    "rest": "all others:",
    "rest of": "the rest of the ranks all look like this:",
    "everyone": "everyone else:",
}


def judge(folder: Path, *lines: str) -> tuple[list[int], list[int]]:
    """Return the ranks that have a stack, and those that are blamed."""
    text = ["it hangs, world size 8", *lines]
    finding = first_of(say(folder, *text))
    path = folder / "several.txt"
    path.write_text("\n".join(text))
    return sorted({one.rank for one in read_evidence(path).stacks}), finding.culprits.ranks


@pytest.mark.parametrize("heading", HEADINGS.values(), ids=HEADINGS)
@pytest.mark.parametrize("waits", [WAITS, BARE], ids=["threads", "frames"])
def test_stack_is_of_all_ranks_of_its_heading(
    tmp_path: Path, heading: str, waits: list[str]
) -> None:
    assert judge(tmp_path, "rank 4:", "", *OWN, heading, "", *waits) == ([*range(8)], [4])


@pytest.mark.parametrize("heading", HEADINGS.values(), ids=HEADINGS)
def test_order_of_stacks_does_not_matter(tmp_path: Path, heading: str) -> None:
    assert judge(tmp_path, heading, "", *WAITS, "rank 4:", "", *OWN) == ([*range(8)], [4])


NO_HEADINGS = {
    "one rank and its process": "rank 0, 30417:",
    "ranks that are missing": "missing ranks: 1, 2",
    "ranks in a sentence": "ranks 1-3 fail to join the group after 600 s",
    "what a rank prints": "[rank1]: ranks 0-3 are ready",
    "a question": "what are the others doing? nothing",
}


@pytest.mark.parametrize("line", NO_HEADINGS.values(), ids=NO_HEADINGS)
def test_other_lines_with_ranks_are_no_headings(tmp_path: Path, line: str) -> None:
    path = tmp_path / "several.txt"
    path.write_text("\n".join(["it hangs, world size 8", line, "", *WAITS]))

    assert len({one.rank for one in read_evidence(path).stacks}) == 1
