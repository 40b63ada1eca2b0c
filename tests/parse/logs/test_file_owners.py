"""Whose lines are that people print of files: by the paths that grep, head and tail show."""

from __future__ import annotations

import pytest
from tests.parse.logs.jobs import read_files

FATAL = (
    "Fatal Python error: Segmentation fault\n\nCurrent thread 0x007f (most recent call first):\n"
    '  File "/srv/clips.py", line 93 in read\n'
)
PEER = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.8.0.12]:3\n"
LAUNCHED = "".join(
    f"node{rank // 8}/attempt_0/{rank % 8}/stderr.log:[rank{rank}]: {PEER}" for rank in (2, 11, 14)
)


def find_ranks(text: str) -> list[int]:
    return [fatal.rank for fatal in read_files({"paste.txt": text}).fatals]


@pytest.mark.parametrize(
    ("heading", "rank"),
    [
        ("$ head -22 node1/attempt_0/1/stderr.log\n", 9),
        ("==> node1/attempt_0/1/stderr.log <==\n", 9),
        ("lea@n1:~$ cat logs/rank_3.err\n", 3),
        ("==> out/rank3.log <==\n", 3),
        ("# tail -n 40 job/rank-12.out | less\n", 12),
    ],
)
def test_the_command_above_tells_whose_it_is(heading: str, rank: int) -> None:
    assert find_ranks(f"{LAUNCHED}\n{heading}{FATAL}") == [rank]


@pytest.mark.parametrize(
    "heading",
    [
        "$ head -22 node1/attempt_0/1/stderr.log\n\nand this one is from the launcher:\n",
        "$ cat logs/rank_3.err\n$ cat /etc/hostname\n",
        "$ cat logs/rank_3.err\n```\n",
        "see logs/rank_3.err\n",
        "$ head -22 attempt_0/1/stderr.log\n",
    ],
)
def test_lookalike_is_nobodys(heading: str) -> None:
    assert find_ranks(f"{LAUNCHED}\n{heading}{FATAL}") == [-1]
