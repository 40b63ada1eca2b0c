"""Answers of NCCL's RAS in logs: of two versions, cut, mixed with other lines, quoted; and none."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.parse.logs.jobs import read_files
from tests.parse.ras_answers import HASH, make_json, make_late_text

from whystuck.evidence.nodes.ras import RasCount, RasMember, RasStatus
from whystuck.pipeline import read_paths
from whystuck.read.collected import Choice

LATE = RasMember(1, 101, "127.0.0.1")
STEP = "[rank0]: step 310 loss 2.31"
# Of NCCL 2.28; what 2.24 to 2.27 print names no kind of op.
TEXTS = {"2.28": make_late_text().decode(), "2.24": make_late_text(kind="collective").decode()}
ALONE = f"""#0-0 ({HASH}) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 41
  Rank 1 has launched up to operation 40 -- GPU 1 managed by process 101 on node 127.0.0.1
"""


def find_answers(text: str) -> tuple[RasStatus, ...]:
    return read_files({"train.log": text}).ras


def tell_late(answers: tuple[RasStatus, ...]) -> list[tuple[RasMember, ...]]:
    return [
        count.members
        for answer in answers
        for comm in answer.comms
        for count in comm.counts
        if count.size == 1
    ]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_answer_among_lines_of_a_job_is_read(text: str) -> None:
    (answer,) = find_answers(f"{STEP}\n$ ncclras\n{text}{STEP}\n")

    assert (answer.version, answer.largest) == ("2.28.3", 4)
    assert tell_late((answer,)) == [(LATE,)]


def test_part_of_an_answer_is_read() -> None:
    (answer,) = find_answers(f"{STEP}\n{ALONE}")

    assert (answer.version, answer.comms[0].size) == ("", 4)
    assert answer.comms[0].counts == (
        RasCount("AllReduce", 41, 3),
        RasCount("AllReduce", 40, 1, (LATE,)),
    )


def test_lines_of_ranks_between_its_lines_are_passed_over() -> None:
    head, rest = ALONE.split("\n", 1)

    assert tell_late(find_answers(f"{head}\n{STEP}\n{STEP}\n{rest}")) == [(LATE,)]


@pytest.mark.parametrize(
    "before", ["> ", "[rank0]: ", "2026-11-23T22:00:01.000001Z stdout F ", "n1 | "]
)
def test_what_stands_before_its_lines_is_taken_off(before: str) -> None:
    lines = [f"{before}{line}" for line in ALONE.splitlines()]

    assert tell_late(find_answers("\n".join(lines) + "\n")) == [(LATE,)]


def test_same_communicator_again_is_another_answer() -> None:
    assert len(find_answers(ALONE + ALONE.replace("40", "41"))) == 2


@pytest.mark.parametrize(
    "text",
    [
        "NCCL version 2.28.3 compiled with CUDA 12.9\n[rank0]: step 1\n[rank0]: step 2\n",
        "checkpoint (1a2b) INCOMPLETE: shard 3 is not there\n",
        "#0-0 (main) MISMATCH of versions\n  Rank 1 has launched up to operation 40\n",
    ],
)
def test_what_only_looks_like_it_is_none(text: str) -> None:
    assert find_answers(text) == ()


@pytest.mark.parametrize("only_logs", [True, False], ids=["logs", "diagnose"])
@pytest.mark.parametrize("before", ["", "SERVER PROTOCOL 2\nOK\n"], ids=["ncclras", "nc"])
def test_cut_answer_in_a_file_is_read_by_each_command(
    tmp_path: Path, before: str, *, only_logs: bool
) -> None:
    head, _, _ = TEXTS["2.28"].partition("\nErrors\n")
    cut = f"{before}{head}\n{ALONE}"
    (tmp_path / "stdin").write_text(cut)

    evidence = read_paths([tmp_path / "stdin"], None, Choice(only_logs=only_logs))

    assert tell_late(evidence.ras) == [(LATE,)]
    assert not evidence.gaps


@pytest.mark.parametrize("only_logs", [True, False], ids=["logs", "diagnose"])
def test_lines_of_a_job_behind_an_answer_are_read(tmp_path: Path, *, only_logs: bool) -> None:
    oom = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    (tmp_path / "stdin").write_text(f"{TEXTS['2.28']}\n{oom}\n")

    evidence = read_paths([tmp_path / "stdin"], None, Choice(only_logs=only_logs))

    assert tell_late(evidence.ras) == [(LATE,)]
    told = (event for event in evidence.logs.events if not event.signature.startswith("ras."))
    assert [event.rank for event in told] == [1]


@pytest.mark.parametrize("only_logs", [True, False], ids=["logs", "diagnose"])
def test_cut_json_is_a_gap(tmp_path: Path, *, only_logs: bool) -> None:
    (tmp_path / "stdin").write_bytes(make_json([41, 40, 41, 41])[:-200])
    (tmp_path / "a.log").write_text(STEP)

    evidence = read_paths([tmp_path], None, Choice(only_logs=only_logs))

    assert [gap.reason for gap in evidence.gaps if "RAS" in gap.reason]
