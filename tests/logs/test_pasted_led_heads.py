"""Heads of threads behind the rank they are of, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say

from whystuck.pipeline import read_evidence

LEADS = ["rank{0}  ", "Rank {0}: ", "# rank={0} | ", "== rank {0} == ", "RANK_{0} - "]
HEAD = 'Thread 0x7F{0}0 (active): "MainThread"'
REST = [
    "    barrier (torch/distributed/distributed_c10d.py:4551)",
    "    save (net/saver.py:80)",
    "    run (net/loop.py:15)",
]
LOADS = [
    "    read (net/data.py:31)",
    "    __getitem__ (net/data.py:64)",
    "    run (net/loop.py:12)",
]


def paste(lead: str, bodies: list[list[str]], prefix: str = "") -> list[str]:
    heads = [f"{lead.format(rank)}{HEAD.format(rank)}" for rank in range(len(bodies))]
    lines = [line for head, body in zip(heads, bodies, strict=True) for line in (head, *body)]
    return ["100 % util for 20 min, so I dumped the stacks", *(prefix + line for line in lines)]


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("prefix", ["", "> "])
def test_rank_before_the_head_of_a_thread_is_whose_it_is(
    tmp_path: Path, lead: str, prefix: str
) -> None:
    report = say(tmp_path, *paste(lead, [REST, REST, LOADS, REST], prefix))
    found = report.findings[0]

    assert (found.code[0], found.culprits.ranks) == ("H", [2])
    assert found.victims.ranks == "0-1,3"


def test_local_rank_before_the_head_is_no_rank_of_the_job(tmp_path: Path) -> None:
    lines = paste("local_rank {0}: ", [REST, LOADS])
    (tmp_path / "a.log").write_text("\n".join(lines) + "\n")
    stacks = read_evidence(tmp_path).stacks

    assert len(stacks) == 2


@pytest.mark.parametrize(
    "line",
    ["rank 3 Thread pool (active): 4 workers", "rank 3 says Thread 12 is (idle) now"],
)
def test_words_about_threads_begin_no_stack(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.log").write_text(f"{line}\n    f (a.py:3)\n")

    assert not read_evidence(tmp_path).stacks
