from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import msgspec
import numpy as np
import pytest
from tests.report import samples

from whystuck.evidence.finding import Report
from whystuck.evidence.sections import StackNode
from whystuck.report.json import render_json, report_schema

PUBLISHED = Path(__file__).parents[2] / "docs" / "report.schema.json"
FINDING_KEYS = {
    "code", "name", "severity", "confidence", "summary", "culprits", "victims", "where",
    "because", "details", "ruled_out", "remedies", "measures",
}  # fmt: skip


@pytest.mark.parametrize("name", samples.ALL)
def test_json_fits_the_schema(name: str) -> None:
    data = json.loads(render_json(samples.ALL[name]()))

    jsonschema.Draft202012Validator(report_schema()).validate(data)


def test_published_schema_is_the_schema() -> None:
    assert json.loads(PUBLISHED.read_bytes()) == report_schema(), (
        "run `whystuck schema > docs/report.schema.json`"
    )


def test_json_has_every_key_of_the_contract() -> None:
    data = json.loads(render_json(samples.waiting()))

    assert {"schema_version", "verdict", "findings", "gaps", "coverage"} <= set(data)
    assert data["schema_version"] == 1
    assert set(data["findings"][0]) == FINDING_KEYS
    assert data["findings"][0]["culprits"] == {"ranks": [0], "nodes": [], "groups": []}
    assert data["findings"][0]["victims"] == {"ranks": "1"}
    assert data["coverage"] == {"ranks_expected": 2, "ranks_seen": 2, "sources": ["stacks"]}


def test_json_reads_back_as_the_same_report() -> None:
    assert msgspec.json.decode(render_json(samples.stuck()), type=Report) == samples.stuck()


def test_hostile_strings_come_back_unchanged_but_are_printed_escaped() -> None:
    data = render_json(samples.hostile())

    text = data.decode()
    assert json.loads(data)["findings"][0]["remedies"] == [samples.HOSTILE.replace("\udce9", "?")]
    assert "\x1b" not in text
    assert "\x9b" not in text
    assert "\u202e" not in text


def test_figures_without_a_value_are_left_out() -> None:
    finding = json.loads(render_json(samples.hostile()))["findings"][0]

    assert finding["measures"] == {"lost_ms": 1.5}
    assert "nan" not in finding["details"]


def test_numpy_values_and_number_keys_in_details_are_written_plainly() -> None:
    details = {"shapes": {0: np.array([41]), 1: [np.int64(40)]}}
    finding = msgspec.structs.replace(samples.extra_collective(), details=details)

    data = json.loads(render_json(msgspec.structs.replace(samples.stuck(), findings=[finding])))

    assert data["findings"][0]["details"] == {"shapes": {"0": [41], "1": [40]}}


def test_stack_of_a_runaway_recursion_is_cut() -> None:
    tree: list[StackNode] = []
    for line in range(5000):
        tree = [StackNode("again", "/a.py", line, "0", is_user_code=True, children=tree)]

    data = render_json(msgspec.structs.replace(samples.stuck(), stacks=tree))

    assert 100 < data.count(b'"again"') < 400
