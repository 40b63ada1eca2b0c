"""Figures of the host against those that another tool measured on the same traces.

That tool rounds times to whole microseconds, starts up and ends down, so that each event may be
longer here by less than 2 us.
"""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest
from tests.tracing.data import find_traces, read_real
from tests.tracing.measuring import measure_rows

from whystuck.tracing.host import steps, user_annotations

B200 = "tl_b200_rank0of8/eager_trace.json.gz"
ROUNDED_NS = 2_000


def read_golden(name: str) -> list[dict[str, str]]:
    path = find_traces() / "golden" / name
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_annotations_of_devices_equal_the_golden_breakdown() -> None:
    golden = read_golden("tl_b200_rank0of8/gpu_user_annotation_breakdown.csv")

    rows = measure_rows(user_annotations.METRIC, read_real(B200))

    found = {row["name"]: row for row in rows if row["kind"] == "device"}
    assert set(found) == {row["name"] for row in golden}
    for row in golden:
        mine = found[row["name"]]
        for ours, theirs in (
            ("sum_ns", "sum (us)"),
            ("max_ns", "max (us)"),
            ("min_ns", "min (us)"),
        ):
            assert 0 <= mine[ours] - float(row[theirs]) * 1000 < ROUNDED_NS * mine["count"]


def test_work_of_devices_has_the_golden_annotation() -> None:
    golden = read_golden("tl_b200_rank0of8/gpu_kernels_with_user_annotations_r0.csv")

    rows = measure_rows(user_annotations.WORK, read_real(B200))

    found = {(row["correlation"], row["name"]): row["device_annotation"] for row in rows}
    compared = 0
    for row in golden:
        if row["s_cat"] == "gpu_user_annotation" or float(row["dur"]) < 1:
            continue  # rounded to no length, which that tool finds in no annotation
        (name,) = [
            annotation
            for (correlation, _), annotation in found.items()
            if correlation == int(row["correlation"])
        ]
        assert shorten(name) == row["s_user_annotation"]
        compared += 1
    assert compared > 800


def shorten(name: str) -> str:
    """Names are cut there at the first bracket, and what follows it is joined."""
    out: list[str] = []
    depth = 0
    for letter in name:
        depth += letter == "("
        if not depth:
            out.append(letter)
        depth -= letter == ")"
    return "".join(out)


@pytest.mark.parametrize(
    ("golden", "name"),
    [
        ("hta_sampled_2rank", "hta_sampled_2rank/rank-0.json.gz"),
        ("hta_sampled_2rank", "hta_sampled_2rank/rank-1.json.gz"),
        ("tl_b200_rank0of8", B200),
    ],
)
def test_steps_equal_the_golden_ones(golden: str, name: str) -> None:
    expected = json.loads((find_traces() / "golden" / golden / "profiler_steps.json").read_text())

    found: list[dict[str, Any]] = measure_rows(steps.METRIC, read_real(name))

    assert [row["step"] for row in found if row["step"] >= 0] == expected
