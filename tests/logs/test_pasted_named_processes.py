"""Stacks whose lines begin with the name of a rank and its process, and ranks that look alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.ranks import parse_ranks

WAITS = [
    '{0}Thread {1} (active): "MainThread"',
    "    broadcast (torch/distributed/distributed_c10d.py:2712)",
    "    share_vocab (corpus/build.py:61)",
    "    main (corpus/build.py:90)",
]
WORKS = [
    '{0}Thread {1} (active+gil): "MainThread"',
    "    merge_pairs (corpus/bpe.py:204)",
    "    train_vocab (corpus/bpe.py:77)",
    "    main (corpus/build.py:84)",
]
NAMES = {
    "plain": "(rank{0} pid={1}) ",
    "line": "(rank_{0} pid={1}) ",
    "big": "(Rank{0}, pid={1}) ",
    "address": "(rank{0} pid={1}, ip=10.4.0.7) ",
}


def show(form: str, rank: int, stack: list[str], *, each: bool = False) -> list[str]:
    name = NAMES[form].format(rank, 700 + rank)
    head, *rest = (line.format(name, 700 + rank) for line in stack)
    return [head, *((name + line if each else line) for line in rest)]


ALIKE = [
    "1, 2 and 5 look like rank 0",
    "1,2,5 same as rank 0",
    "1 2 5: like rank 0",
    "ranks 1, 2, 5 have the same stack as rank 0",
]


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("form", NAMES)
def test_prefix_of_a_rank_and_its_process_tells_whose_a_stack_is(
    tmp_path: Path, form: str, each: bool
) -> None:
    shown = [line for rank in (0, 3) for line in show(form, rank, WAITS, each=each)]
    found = first_of(say(tmp_path, *shown, *show(form, 4, WORKS, each=each)))

    assert (found.code, found.culprits.ranks) == ("H101", [4])
    assert found.victims.ranks == "0,3"


@pytest.mark.parametrize("said", ALIKE)
def test_numbers_alone_may_tell_who_looks_like_a_rank(tmp_path: Path, said: str) -> None:
    shown = [*show("plain", 0, WAITS), *show("plain", 3, WAITS), *show("plain", 4, WORKS)]
    found = first_of(say(tmp_path, *shown, said))

    assert (found.code, found.culprits.ranks) == ("H101", [4])
    assert parse_ranks(found.victims.ranks) == frozenset({0, 1, 2, 3, 5})


@pytest.mark.parametrize(
    "said",
    [
        "1, 2 and 5 do not look like rank 0",
        "1, 2 and 5 look nearly like rank 0",
        "12 GB more than rank 0",
        "2 of them are like rank 0 used to be",
        "1, 2 and 5 look idle",
    ],
)
def test_other_words_with_numbers_tell_of_no_rank(tmp_path: Path, said: str) -> None:
    shown = [*show("plain", 0, WAITS), *show("plain", 3, WAITS), *show("plain", 4, WORKS)]
    found = first_of(say(tmp_path, *shown, said))

    assert found.culprits.ranks == [4]
    assert parse_ranks(found.victims.ranks) == frozenset({0, 3})


@pytest.mark.parametrize(
    "name", ["(ranker6 pid=704) ", "(RayTrainWorker pid=704) ", "(rank pid=704) "]
)
def test_other_names_of_processes_name_no_rank(tmp_path: Path, name: str) -> None:
    shown = [*show("plain", 0, WAITS), *show("plain", 3, WAITS)]
    report = say(tmp_path, *shown, WORKS[0].format(name, 704), *WORKS[1:])

    assert not any(one.culprits.ranks for one in report.findings)


XID = (
    "Mar  3 04:10:51 gh-7 kernel: NVRM: Xid (PCI:0000:{0}:00): 79, pid={1}, name=python3, GPU has "
    "fallen off the bus."
)
STARTED = [
    (
        "[2025-03-03 03:00:01,730] [INFO] [launch.py:331:main] process {0} spawned with command: "
        "['python3', 'ft.py', '--local_rank={1}'] RANK={2}"
    ),
    "gh-7: started pid {0}: env LOCAL_RANK={1} RANK={2} WORLD_SIZE=32 python3 ft.py",
    "launcher gh-7 | process {0} -> LOCAL_RANK={1} RANK={2}",
]


@pytest.mark.parametrize("form", STARTED)
def test_launcher_that_tells_variables_of_a_process_tells_its_rank(
    tmp_path: Path, form: str
) -> None:
    rows = [form.format(900 + local, local, 24 + local) for local in range(4)]
    finding = first_of(say(tmp_path, XID.format("5d", 902), *rows))

    assert (finding.code, finding.culprits.ranks) == ("C208", [26])


@pytest.mark.parametrize(
    "row",
    [
        "process 902 spawned with command: ['python3', 'ft.py', '--rank-file', 'r'] MASTER_RANK=26",
        "process 902 waits, see RANK=26",
        "processes 900, 902 started with RANK=25 RANK=26",
        "gh-7: started pid 902: env GROUP_RANK=26 python3 ft.py",
    ],
)
def test_variables_of_others_tell_no_rank(tmp_path: Path, row: str) -> None:
    finding = first_of(say(tmp_path, XID.format("5d", 902), row))

    assert (finding.code, finding.culprits.ranks) == ("C208", [])
