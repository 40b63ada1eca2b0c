"""The tables that ``whystuck fr -o FILE`` writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.diagnose.dumps import STARTED, Dumps
from tests.diagnose.scenes import MODULE, at
from tests.diagnose.test_torchfrtrace_cases import hang, loop

from whystuck.cli import main

OP_COLUMNS = [
    "rank", "group", "group_desc", "members", "sequence", "is_p2p", "op", "backend", "input_sizes",
    "output_sizes", "input_dtypes", "output_dtypes", "source", "target", "state", "created_ns",
    "started_ns", "completed_ns", "timeout_ms", "file", "line", "function", "site", "artifact",
    "row",
]  # fmt: skip
COLLECTIVE_COLUMNS = [
    "group", "group_desc", "members", "sequence", "status", "done", "started", "pending", "missing",
    "unknown", "diverging", "first_created_ns", "last_created_ns", "last_rank", "op", "backend",
    "input_sizes", "output_sizes", "input_dtypes", "output_dtypes", "file", "line", "function",
    "artifact", "row",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """4 ranks: one op with another size on rank 1, a transfer, and an op that rank 3 misses."""
    place = tmp_path / "dumps"
    place.mkdir()
    dumps = loop(Dumps(groups={"1": ("pipe", (1, 2))}), 1)
    dumps.op([0, 2, 3], "all_reduce").op([1], "all_reduce", input_sizes=[[7]])
    dumps.move(0, 1, (at("/job/p.py", 5), MODULE), group="1")
    return hang(dumps, [0, 1, 2]).write(place)


def write(folder: Path, name: str) -> Path:
    target = folder.parent / name
    assert main(["fr", str(folder), "-o", str(target)]) == 1
    return target


def test_json_has_all_tables(folder: Path) -> None:
    tables = json.loads(write(folder, "ops.json").read_bytes())
    ops, collectives = tables["ops"], tables["collectives"]

    assert list(ops[0]) == OP_COLUMNS
    assert list(collectives[0]) == COLLECTIVE_COLUMNS
    assert len(ops) == 4 * 3 + 3 + 2
    assert [row["status"] for row in collectives] == ["match", "match", "size-mismatch", "missing"]
    assert (collectives[2]["diverging"], collectives[3]["missing"]) == ("1", "3")
    assert {row["group"]: row["members"] for row in tables["groups"]} == {
        "0": "0-3",
        "1": "1-2",
    }
    assert tables["sites"][ops[0]["site"]]["stack"][0] == "train /job/train.py:22"
    assert [row["version"] for row in tables["dumps"]] == ["2.10"] * 4


def test_transfers_have_the_ranks_of_the_job(folder: Path) -> None:
    tables = json.loads(write(folder, "ops.json").read_bytes())
    [transfer] = tables["transfers"]
    ends = [(row["rank"], row["source"], row["target"]) for row in tables["ops"] if row["is_p2p"]]

    assert (transfer["source"], transfer["target"], transfer["line"]) == (1, 2, 5)
    assert (transfer["send_state"], transfer["recv_state"]) == ("done", "done")
    assert ends == [(1, 1, 2), (2, 1, 2)]


def test_lines_name_their_table(folder: Path) -> None:
    rows = [json.loads(line) for line in write(folder, "ops.jsonl").read_text().splitlines()]
    tables = json.loads(write(folder, "ops.json").read_bytes())
    ops: list[dict[str, Any]] = [row for row in rows if row.pop("table") == "ops"]

    assert ops == tables["ops"]


def test_parquet_holds_what_json_holds(folder: Path) -> None:
    tables = json.loads(write(folder, "ops.json").read_bytes())
    target = write(folder, "ops.parquet")

    assert pq.read_table(target).to_pylist() == tables["ops"]
    for name in ("collectives", "transfers", "groups", "sites", "dumps"):
        beside = target.with_name(f"ops.{name}.parquet")
        assert pq.read_table(beside).to_pylist() == tables[name]


def test_empty_dumps_give_empty_tables(tmp_path: Path) -> None:
    Dumps(2).write(tmp_path)
    target = tmp_path / "ops.parquet"
    main(["fr", str(tmp_path), "-o", str(target)])

    assert pq.read_table(target).column_names == OP_COLUMNS
    assert pq.read_table(tmp_path / "ops.collectives.parquet").num_rows == 0


def test_parquet_without_its_module_is_one_sentence_and_a_hint(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    assert main(["fr", str(folder), "-o", str(folder / "x.parquet")]) == 2
    assert capfd.readouterr().err == (
        "error: Parquet files need pyarrow, which is not installed\n"
        "hint: `pip install 'whystuck[parquet]'`, or write FILE.json or FILE.jsonl\n"
    )


def test_pickles_are_not_written(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["fr", str(folder), "-o", str(folder / "x.pickle")]) == 2
    assert "hint: tables go to .parquet, .json or .jsonl" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        (["-o", "x.json"], '{"schema_version":1,\n"ops":'),
        (["-o", "x.json", "--format", "json"], '{\n  "schema_version": 1,\n  "verdict":'),
        (["-o", "x.txt"], " read 4 of 4 ranks"),
        (["-o", "x.md"], "**stuck**"),
        (["-o", "x.html"], "<!doctype html>"),
        (["-j", "-o", "x.json"], '{\n  "schema_version": 1,\n  "timeline":'),
        (["-j", "-o", "x.txt"], "group 0"),
        (["-o", "x", "--format", "text"], " read 4 of 4 ranks"),
    ],
)
def test_name_and_format_decide_what_is_written(
    arguments: list[str], start: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    main(["fr", str(folder), *arguments])

    assert Path(arguments[arguments.index("-o") + 1]).read_text().startswith(start)


def test_states_of_transfers_that_are_not_done(tmp_path: Path) -> None:
    Dumps(2).recv(1, 0, state=STARTED).op([0], "barrier").write(tmp_path)
    main(["fr", str(tmp_path), "-o", str(tmp_path / "x.json"), "--fail-on", "never"])
    [transfer] = json.loads((tmp_path / "x.json").read_bytes())["transfers"]

    assert (transfer["send_state"], transfer["recv_state"]) == ("missing", "started")
