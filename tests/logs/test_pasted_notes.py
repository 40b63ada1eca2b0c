"""Notes behind the head of a thread that say whose stack it is, and who has it too."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.pipeline import read_evidence

MARKS = ["# {0}", "     <- {0}", "  <-- {0}", "  // {0}", " ({0})", "\t← {0}"]
SAVE = [
    'Thread 610 (active+gil): "MainThread"{0}',
    "    _save (torch/serialization.py:862)",
    "    save (torch/serialization.py:629)",
    "    keep (save.py:12)",
]
WAIT = [
    'Thread 611 (idle): "MainThread"{0}',
    "    barrier (torch/distributed/distributed_c10d.py:3696)",
    "    keep (save.py:15)",
]
LOCAL = ["local rank {0}", "LOCAL_RANK {0}", "local_rank={0}", "LOCAL_RANK={0}"]


def note(stack: list[str], mark: str, text: str) -> list[str]:
    return [line.format(" " + mark.format(text)) for line in stack]


def read_ranks(folder: Path, *lines: str) -> list[int]:
    (folder / "a.log").write_text("\n".join(lines) + "\n")
    return sorted(one.rank for one in read_evidence(folder).stacks)


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize(
    "rest", ["rank 1, and 2..3 the same", "ranks 1-3 are the same", "ranks 1-3"]
)
def test_ranks_behind_the_head_of_a_thread_have_its_stack(
    tmp_path: Path, mark: str, rest: str
) -> None:
    lines = [*note(SAVE, mark, "rank 0"), *note(WAIT, mark, rest)]

    assert read_ranks(tmp_path, *lines) == [0, 1, 2, 3]


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("local", LOCAL)
def test_local_rank_behind_the_head_of_a_thread_is_no_rank_of_a_job_of_hosts(
    tmp_path: Path, mark: str, local: str
) -> None:
    lines = note(WAIT, mark, local.format(3))

    assert read_ranks(tmp_path, *lines) == [3]
    hosts = [f"[rank{rank}]: step 3 loss 2.{rank}" for rank in (1, 9)]
    (tmp_path / "b").mkdir()
    assert read_ranks(tmp_path / "b", *hosts, *lines)[0] < 0


@pytest.mark.parametrize("local", LOCAL)
def test_device_of_the_process_whose_local_rank_is_noted_is_of_its_rank(
    tmp_path: Path, local: str
) -> None:
    xid = (
        "[Fri Mar  7 01:12:33 2025] NVRM: Xid (PCI:0000:1b:00): 119, pid=611, name=python, "
        "Timeout after 6s of waiting for RPC response from GPU2 GSP! Expected function 76 "
        "(GSP_RM_CONTROL) (0x20801702 0x4)."
    )
    finding = first_of(say(tmp_path, *note(WAIT, "# {0}", local.format(2)), xid))

    assert (finding.code, finding.culprits.ranks) == ("C208", [2])


def test_note_of_something_else_names_no_rank(tmp_path: Path) -> None:
    for text in ("the main one", "not a rank", "gil", "same as rank 0"):
        assert read_ranks(tmp_path, *note(WAIT, "# {0}", text))[0] < 0
