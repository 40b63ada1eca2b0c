"""``inspect.jsonl``, whole, torn and hostile."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystuck.evidence.finding import Gap
from whystuck.evidence.ops.inspection import Inspection
from whystuck.parse.errors import ParseError
from whystuck.parse.ops.inspection import parse_inspection

START = {"kind": "start", "rank": 1, "spec": "weights", "generation": 2, "step": 0}
TENSORS = {
    "kind": "tensors", "opt": 0, "set": 1,
    "names": ["a", "b"], "shapes": [[2], []], "dtypes": ["float32", "int64"],
}  # fmt: skip
OP = {"op": 3, "name": "all_reduce", "group": "0", "seq": 2, "step": 1}
TENSOR = {"place": 1, "shape": [4], "dtype": "float32", "count": 4, "nan": 2, "inf": 1}


def _sums(*values: int, step: int = 1, when: str = "after") -> dict[str, object]:
    data = b"".join(value.to_bytes(8, "little") for value in values)
    return {
        "kind": "weights", "opt": 0, "set": 1, "step": step, "when": when,
        "sums": base64.b64encode(data).decode(),
    }  # fmt: skip


def _parse(*lines: object, end: bytes = b"") -> tuple[Inspection, tuple[Gap, ...]]:
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines) + end
    return parse_inspection(data, rank=1, artifact="n0/rank-1/inspect.jsonl")


def test_checksums_when_all_is_well_then_are_read() -> None:
    same = {**_sums(step=1, when="before"), "same": True, "sums": ""}
    made, gaps = _parse(START, TENSORS, _sums(1, 2**64 - 1), same)
    assert gaps == ()
    assert [one.sums.tolist() for one in made.checksums] == [[1, 2**64 - 1]] * 2
    assert [(one.step, one.when, one.row) for one in made.checksums] == [
        (1, "after", 2),
        (1, "before", 3),
    ]
    assert made.checksums[0].generation == 2
    assert made.checksums[0].tensors.shapes == ((2,), ())


def test_ops_when_some_are_not_finite_then_only_these_are_kept() -> None:
    fine = {**TENSOR, "nan": 0, "inf": 0, "min": 0.5}
    made, _ = _parse(
        START,
        {"kind": "in", **OP, "tensors": [fine]},
        {"kind": "out", **OP, "tensors": [fine, TENSOR]},
    )
    (event,) = made.not_finite
    assert made.ops == 2
    assert (event.side, event.number, event.place, event.nan, event.inf) == ("out", 3, 1, 2, 1)


def test_lines_of_other_kinds_when_read_then_become_what_they_are() -> None:
    made, gaps = _parse(
        {"kind": "amp", "step": 1, "scale": 2.0, "skipped": True, "first_op": 1, "last_op": 9},
        {"kind": "said", "call": "c:C", "text": "odd", **OP},
        {"kind": "gap", "name": "recv", "reason": "no"},
        {"kind": "call-error", "call": "c:C", "text": "KeyError"},
        {"kind": "full", "limit_bytes": 16 << 20},
    )
    assert made.scaler[0].is_skipped
    assert made.said[0].text == "odd"
    assert made.is_full
    assert [gap.what for gap in gaps] == [
        "complete figures of recv",
        "the check c:C",
        "inspection of later steps",
    ]


def test_file_when_its_last_line_is_torn_then_the_others_count() -> None:
    made, gaps = _parse(START, TENSORS, end=b'{"kind":"weig')
    assert (made.spec, gaps) == ("weights", ())


@pytest.mark.parametrize(
    "line",
    [
        {"kind": "unknown"},
        [],
        {"kind": "in"},
        _sums(1),
        {**_sums(1, 2), "set": 7},
        {**_sums(1, 2), "sums": "%%%%"},
        {**_sums(1, 2), "same": True},
        {**_sums(1, 2), "step": -1},
        {"kind": "in", **OP, "tensors": [{**TENSOR, "nan": -1}]},
        {"kind": "in", **OP, "tensors": [{**TENSOR, "nan": 1e300}]},
        {**TENSORS, "shapes": []},
        {"kind": "said", "call": "c", "text": "x" * 100_000, **OP},
    ],
)
def test_line_when_it_makes_no_sense_then_is_told_and_passed_over(line: object) -> None:
    made, gaps = _parse(START, TENSORS, line)
    assert made.spec == "weights"
    assert (made.checksums, made.not_finite, made.said) == ((), (), ())
    (gap,) = gaps
    assert gap.what == "1 lines of n0/rank-1/inspect.jsonl"
    assert gap.reason.startswith("line 3: ")


@pytest.mark.parametrize("data", [b"\x80\x04\x95\n", b"[[[[" * 100_000 + b"\n", b"\n"])
def test_file_when_no_line_can_be_read_then_is_refused(data: bytes) -> None:
    with pytest.raises(ParseError):
        parse_inspection(data, rank=0, artifact="x")


@given(st.binary(max_size=200))
def test_file_when_it_is_anything_then_is_read_or_refused(data: bytes) -> None:
    try:
        parse_inspection(data, rank=0, artifact="x")
    except ParseError:
        return


def test_results_when_read_then_are_what_they_are() -> None:
    line = {"kind": "result", **OP, "shape": [4], "dtype": "float32", "sum": "ff" * 8}
    made, gaps = _parse(START, line, {**line, "sum": "-1"})
    (result,) = made.results
    assert (result.checksum, result.seq, result.number, result.row) == (2**64 - 1, 2, 3, 1)
    assert (result.rank, result.shape) == (1, (4,))
    assert len(gaps) == 1


def test_updates_when_read_then_have_their_generation_and_their_counts() -> None:
    line = {
        "kind": "amp", "source": "guard", "series": 2, "step": 7, "scale": None, "init": None,
        "skipped": True, "skips": 3, "updates": 10, "first_op": 4, "last_op": 9,
    }  # fmt: skip
    (update,) = _parse(START, line)[0].scaler
    assert (update.source, update.series, update.scale) == ("guard", 2, None)
    assert (update.skips, update.updates, update.generation, update.row) == (3, 10, 2, 1)
