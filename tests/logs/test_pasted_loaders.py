"""What a rank raises that waited for a worker of its data loader, and comments behind commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

RAISED = [
    "{0}Traceback (most recent call last):",
    '{0}  File "/srv/seg/train.py", line 121, in <module>',
    "{0}    for batch in loader:",
    '{0}  File "/opt/py/lib/torch/utils/data/dataloader.py", line 1243, in _get_data',
    '{0}    raise RuntimeError(f"DataLoader timed out after {{self._timeout}} seconds")',
    "{0}RuntimeError: DataLoader timed out after 240 seconds",
]
CLOSED = (
    "[rank{0}]: RuntimeError: [../gloo/transport/tcp/pair.cc:525] Connection closed by peer "
    "[10.0.0.7]:4120"
)
LOCKS = """\
Thread 871 (idle): "MainThread"
    acquire_pool (store/pool.py:40)   # with self._mutex
    put (store/index.py:88)           # holds index._mutex
    step (loop.py:210)
Thread 902 (idle): "writer"
    touch (store/index.py:31)         # with self._mutex
    drain (store/pool.py:77)          # holds pool._mutex
    run (threading.py:953)"""


@pytest.mark.parametrize("prefix", ["[rank5]:", "[rank5]: ", "5: "])
def test_a_loader_that_timed_out_is_the_rank_of_the_stuck_worker(
    tmp_path: Path, prefix: str
) -> None:
    lines = [*(line.format(prefix) for line in RAISED), CLOSED.format(0), CLOSED.format(1)]
    found = first_of(say(tmp_path, *lines))
    assert (found.code, found.culprits.ranks) == ("H112", [5])


def test_the_line_alone_is_told_without_a_rank(tmp_path: Path) -> None:
    found = first_of(say(tmp_path, RAISED[-1].format("")))
    assert (found.code, found.culprits.ranks) == ("H112", [])


def test_another_timeout_is_an_exception_as_before(tmp_path: Path) -> None:
    lines = [line.format("[rank5]: ") for line in RAISED]
    lines[-1] = "[rank5]: RuntimeError: the feature store timed out after 240 seconds"
    assert first_of(say(tmp_path, *lines)).code == "C204"


@pytest.mark.parametrize(
    "comment",
    [
        "# rank 6, all others are in reduce_scatter",
        "# this is rank 6; the others wait in reduce_scatter",
        "# rank 6 (node 1), others wait",
    ],
)
def test_a_comment_that_says_more_than_the_rank_is_its_rank(tmp_path: Path, comment: str) -> None:
    lines = [f"$ py-spy dump --pid 871   {comment}", *LOCKS.splitlines()]
    found = first_of(say(tmp_path, *lines))
    assert (found.code, found.culprits.ranks) == ("H115", [6])


@pytest.mark.parametrize("comment", ["# rank 6, rank 7", "# not rank 6, others"])
def test_a_comment_about_several_is_no_rank_of_one(tmp_path: Path, comment: str) -> None:
    lines = [f"$ py-spy dump --pid 871   {comment}", *LOCKS.splitlines()]
    assert 6 not in first_of(say(tmp_path, *lines)).culprits.ranks
