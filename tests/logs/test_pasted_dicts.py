"""Entries of flight recorders that somebody printed as dicts, or with the same ones left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Finding
from whystuck.parse.logs.blocks.calls.recorder_rows import RecorderReader
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import parse_line

# As torch 2.9 has them, 2.4, and a logger of the job.
NEW = (
    "{{'frames': [{{'name': 'pool', 'filename': '/job/heads.py', 'line': 77}}], 'record_id': {1}, "
    "'pg_id': {0}, 'process_group': ('5', 'tp'), 'collective_seq_id': {1}, 'p2p_seq_id': 0, "
    "'op_id': {1}, 'profiling_name': 'nccl:{2}', 'time_created_ns': 17, 'input_sizes': [{3}], "
    "'input_dtypes': ['{4}'], 'state': '{5}', 'is_p2p': False}}"
)
OLD = (
    '{{"record_id": {1}, "seq_id": {1}, "profiling_name": "nccl:{2}", '
    '"input_sizes": [{3}], "input_dtypes": ["{4}"], "state": "{5}"}}'
)
PAIRS = "coll_seq={1} op=nccl:{2} sizes=[{3}] dtype={4} state={5}"
LABELS = {
    "word": "rank {0} {1}",
    "colon": "rank{0}: {1}",
    "prefix": "[rank{0}]: {1}",
    "arrow": "Rank {0} -> {1}",
}
USUAL = ("all_gather", "[2, 640, 96]", "Half")


def entry(rank: int, form: str, *told: str, state: str = "started", label: str = "word") -> str:
    op, sizes, dtype = told or USUAL
    return LABELS[label].format(rank, form.format(rank, 88, op, sizes, dtype, state))


def judge(folder: Path, *lines: str) -> Finding:
    return first_of(say(folder, "last entries of tp, one per rank:", "", *lines))


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("form", [NEW, OLD, PAIRS])
@pytest.mark.parametrize(
    ("odd", "name"),
    [
        (("all_gather", "[2, 512, 96]", "Half"), "shape-mismatch"),
        (("all_gather", "[2, 640, 96]", "Float"), "dtype-mismatch"),
        (("broadcast", "[2, 640, 96]", "Half"), "op-mismatch"),
    ],
)
def test_rank_whose_entry_differs_is_named(
    tmp_path: Path, form: str, label: str, odd: tuple[str, str, str], name: str
) -> None:
    lines = [entry(rank, form, *(odd if rank == 2 else USUAL), label=label) for rank in range(4)]

    finding = judge(tmp_path, *lines)

    assert (finding.name, finding.culprits.ranks) == (name, [2])
    assert (form != NEW) or [(one.file, one.line) for one in finding.where] == [
        ("/job/heads.py", 77)
    ]


def split(folder: Path, usual: str, *, more: tuple[str, ...] = ()) -> Finding:
    """Diagnose a pair that waits with two sizes, while ranks of other pairs are past it."""
    own = [
        entry(4, NEW, "all_gather", "[2, 640, 96]", "Half"),
        entry(5, NEW, "all_gather", "[2, 512, 96]", "Half"),
    ]
    past = entry(0, NEW, "all_gather", usual, "Half", state="completed")
    return judge(folder, past, *more, *own)


@pytest.mark.parametrize(
    "same",
    [
        ("rank 1 same", "ranks 2, 3 same", "rank 6, rank 7 like rank 0"),
        ("rank 1: same as rank 0", "rank 2-3: identical", "rank6, rank7 same as rank0."),
        ("[rank1]: same", "rank 2 and 3 ditto", "ranks 6 & 7 are the same as rank 0"),
    ],
)
def test_others_that_are_past_the_call_tell_whose_size_is_wrong(
    tmp_path: Path, same: tuple[str, ...]
) -> None:
    finding = split(tmp_path, "[2, 640, 96]", more=same)

    assert (finding.name, finding.culprits.ranks) == ("shape-mismatch", [5])
    assert finding.victims.ranks == "4"


@pytest.mark.parametrize(
    ("usual", "more"),
    [
        pytest.param("[2, 640, 96]", (), id="one other alone"),
        pytest.param("[2, 448, 96]", ("rank 1 same",), id="others like nobody"),
        pytest.param(
            "[2, 640, 96]",
            (entry(1, NEW, "all_gather", "[2, 512, 96]", "Half", state="completed"),),
            id="others like both",
        ),
        pytest.param("[2, 640, 96]", ("rank 1 same but 512",), id="same with a but"),
    ],
)
def test_pair_of_two_sizes_leaves_open_whose_is_wrong(
    tmp_path: Path, usual: str, more: tuple[str, ...]
) -> None:
    finding = split(tmp_path, usual, more=more)

    assert (finding.name, finding.culprits.ranks) == ("shape-mismatch", [])


def test_two_ranks_of_another_size_may_be_another_group(tmp_path: Path) -> None:
    odd = ("all_gather", "[2, 512, 96]", "Half")
    lines = [entry(rank, PAIRS, *(odd if rank in (2, 6) else USUAL)) for rank in range(8)]

    assert judge(tmp_path, *lines).culprits.ranks == []


@pytest.mark.parametrize(
    "line",
    [
        "rank 3 {'record_id': 88, 'collective_seq_id': 88, 'profiling_name': 'nccl:broad",
        "rank 3 {'is_p2p': True, 'seq_id': 9, 'op': 'nccl:send 3->0', 'state': 'started'}",
        "rank 3 config: {'collective_seq_id': 'on', 'state': 'started', 'name': 'nccl:x'}",
    ],
)
def test_what_is_cut_or_no_collective_is_no_entry(tmp_path: Path, line: str) -> None:
    report = say(tmp_path, *(entry(rank, NEW) for rank in range(3)), line)

    assert all(3 not in one.culprits.ranks for one in report.findings)


HEADS = {
    "wide": ("rank  coll_seq  op        input_sizes     dtype  state", "  "),
    "bars": ("| rank | coll_seq | op | input_sizes | dtype | state |", " | "),
    "commas": ("rank,coll_seq,op,input_sizes,dtype,state", ","),
}


def rows(form: str, left_out: str, odd: tuple[str, str, str]) -> list[str]:
    head, mark = HEADS[form]
    told: list[tuple[str, ...]] = [("0", *USUAL), ("1", *USUAL), (left_out,), ("6", *odd)]
    told.append(("7", *USUAL))
    lines = [head]
    for rank, *cells in told:
        row = (
            [rank, "88", "nccl:" + cells[0], f"[{cells[1]}]", cells[2], "started"] if cells else []
        )
        lines.append(mark.join(row) if row else rank)
    return lines


@pytest.mark.parametrize("form", HEADS)
@pytest.mark.parametrize(
    ("left_out", "victims"),
    [
        ("...            (2-5 as 1)", "0-5,7"),
        ("...  (ranks 2-5 same as 1)", "0-5,7"),
        ("ranks 2-5 identical", "0-5,7"),
        ("...", "0-1,7"),
        ("…", "0-1,7"),
    ],
)
def test_rows_that_are_left_out_are_as_is_said(
    tmp_path: Path, form: str, left_out: str, victims: str
) -> None:
    finding = judge(tmp_path, *rows(form, left_out, ("all_reduce", "[1]", "Float")))

    assert (finding.name, finding.culprits.ranks) == ("op-mismatch", [6])
    assert finding.victims.ranks == victims


@pytest.mark.parametrize("form", HEADS)
def test_rows_of_several_ranks_are_of_each(tmp_path: Path, form: str) -> None:
    head, mark = HEADS[form]
    cells = ["88", "nccl:all_gather", "[[2, 640, 96]]", "Half", "started"]
    odd = ["88", "nccl:all_gather", "[[2, 512, 96]]", "Half", "started"]
    lines = [head, mark.join(["0-5", *cells]), mark.join(["6", *odd])]

    finding = judge(tmp_path, *lines)

    assert (finding.name, finding.culprits.ranks) == ("shape-mismatch", [6])
    assert finding.victims.ranks == "0-5"


def test_entries_that_are_said_to_be_the_same_are_copied_within_bounds() -> None:
    reader = RecorderReader()
    lines = [OLD.format(0, number, *USUAL, "completed") for number in range(500)]
    lines = [f"rank 0 {line}" for line in lines]
    told = list(read(reader, lines))
    assert len(told) == 500

    # The last ones alone are shared, and no more than some in all.
    shared = list(read(reader, ["rank 1-2 same as rank 0"]))
    assert {one.groups["own"] for one in shared} == {"1", "2"}
    assert {int(one.groups["seq"]) for one in shared} == {*range(436, 500)}
    more = [f"rank {32 * at + 3}-{32 * at + 34} same as rank 0" for at in range(500)]
    assert 4096 < len(list(read(reader, more))) < 8193


def read(reader: RecorderReader, lines: list[str]) -> Iterator[TabledSeen]:
    for row, text in enumerate(lines):
        yield from reader.read(parse_line(text.encode()), row, is_mark=True)
