"""Reports on evidence of which any one table, or any one column of a table, is missing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.diagnose.scenes import Job, at
from tests.diagnose.test_failed_rules import SCENES, TRUTH, raising, slow_input

from whystuck.diagnose.engine import diagnose
from whystuck.evidence.finding import Confidence, Verdict
from whystuck.evidence.model import Evidence

# Whose a row is comes from the name of its file: it cannot be missing from a table.
_OWNER = "rank"
_EMPTY = {int: 0, float: 0.0, str: "", bool: False, tuple: (), dict: {}, frozenset: frozenset()}


def list_fields(value: object) -> list[str]:
    """List the fields of a structure; none of anything else."""
    if dataclasses.is_dataclass(value):
        return [one.name for one in dataclasses.fields(value)]
    if isinstance(value, msgspec.Struct):
        return list(value.__struct_fields__)
    return []


def change(value: Any, **changes: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(value, **changes)
    return dataclasses.replace(value, **changes)


def find_unknown(owner: object, name: str) -> Any:
    """Return what a reader gives where a value is not told."""
    if dataclasses.is_dataclass(owner):
        one = next(one for one in dataclasses.fields(owner) if one.name == name)
        if one.default is not dataclasses.MISSING:
            return one.default
        if one.default_factory is not dataclasses.MISSING:
            return one.default_factory()
    value = getattr(owner, name)
    if list_fields(value):
        return value
    return next((empty for kind, empty in _EMPTY.items() if type(value) is kind), None)


def list_deletions(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what is missing and the rest: each field, and each field of all rows below it."""
    has_columns = any(isinstance(getattr(value, name), np.ndarray) for name in list_fields(value))
    for name in list_fields(value):
        part, where = getattr(value, name), f"{path}.{name}".strip(".")
        if has_columns and isinstance(part, tuple) and part and isinstance(part[0], str):
            yield where, change(value, **{name: ("",) * len(part)})
            continue
        if isinstance(part, np.ndarray):
            if len(part) and name != _OWNER:
                yield f"column {where}", change(value, **{name: np.zeros_like(part)})
            continue
        unknown = find_unknown(value, name)
        # What columns are numbers of is there as often as they say.
        is_indexed = has_columns and isinstance(part, tuple)
        if name != _OWNER and not is_indexed and not is_equal(part, unknown):
            yield where, change(value, **{name: unknown})
        if isinstance(part, tuple) and part and list_fields(part[0]):
            for column, rows in list_columns(part):
                yield f"{where}.{column}", change(value, **{name: rows})
        elif list_fields(part):
            for below, rest in list_deletions(part, where):
                yield below, change(value, **{name: rest})


def list_columns(rows: tuple[Any, ...]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the name of each column of a table of rows, and the rows without it."""
    for name in list_fields(rows[0]):
        if name != _OWNER:
            yield name, tuple(change(row, **{name: find_unknown(row, name)}) for row in rows)
    for name, part in ((one, getattr(rows[0], one)) for one in list_fields(rows[0])):
        if isinstance(part, tuple) and part and list_fields(part[0]):
            for column, _ in list_columns(part):
                made = []
                for row in rows:
                    inner = dict(list_columns(getattr(row, name))) if getattr(row, name) else {}
                    made.append(change(row, **{name: inner[column]}) if column in inner else row)
                yield f"{name}.{column}", tuple(made)


def is_equal(one: object, other: object) -> bool:
    try:
        return bool(one == other)
    except ValueError:
        return False


CASES = [
    pytest.param(name, where, rest, id=f"{name}-{where}")
    for name, make in SCENES.items()
    for where, rest in list_deletions(make())
]


def test_deletions_are_many() -> None:
    kinds = {str(case.values[1]).partition(".")[0] for case in CASES}

    assert {"collectives", "stacks", "exceptions", "exits", "topology", "incident"} <= kinds
    assert len(CASES) > 200


@pytest.mark.parametrize(("name", "where", "rest"), CASES)
def test_missing_part_costs_no_rule_and_blames_nobody(
    name: str, where: str, rest: Evidence
) -> None:
    report = diagnose(rest)

    assert not [item.summary for item in report.findings if item.code == "E902"], where
    assert (report.verdict is not Verdict.HEALTHY) or name in {"healthy", "traces"}
    for item in report.findings:
        if item.confidence is Confidence.CERTAIN:
            assert set(item.culprits.ranks) <= TRUTH.get(name, set()), where


@pytest.mark.parametrize("table", slow_input().traces.tables)
def test_missing_column_of_traces_still_gives_a_report(table: str) -> None:
    evidence = slow_input()
    tables = evidence.traces.tables
    for column in tables[table].columns:
        kept = {name: rows for name, rows in tables[table].columns.items() if name != column}
        rest = {**tables, table: dataclasses.replace(tables[table], columns=kept)}
        traces = dataclasses.replace(evidence.traces, tables=rest)

        report = diagnose(dataclasses.replace(evidence, traces=traces))

        is_failed = any(item.code == "E902" for item in report.findings)
        assert is_failed <= (report.verdict is not Verdict.HEALTHY), column


def test_ranks_that_raised_different_exceptions_are_only_likely() -> None:
    made = Job().of_kind("exit", command_exit=1).steps()
    made.raises(1, "ValueError", "bad sample", [at("/job/data.py", 7)]).ends(1, code=1)
    made.raises(2, "OSError", "no such file", [at("/job/data.py", 9)]).ends(2, code=1)

    finding = made.finding()

    assert (finding.code, finding.culprits.ranks) == ("C204", [1, 2])
    assert finding.confidence is Confidence.LIKELY


def test_no_evidence_at_all_is_inconclusive() -> None:
    assert diagnose(Evidence()).verdict is Verdict.INCONCLUSIVE
    assert diagnose(dataclasses.replace(raising(), exceptions=(), exits=())).findings == []
