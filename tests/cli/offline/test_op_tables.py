"""`whystuck diagnose --tables`: what op logs hold, for programs."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.parse.ops.op_logs import MS, Ring

from whystuck.cli import main


def write_logs(folder: Path, *, packed: bool = True) -> Path:
    for rank in range(2):
        ring = Ring(rank, 2)
        ring.group()
        for step in range(12):
            ring.op(step=step, at_ns=(2000 + 100 * step) * MS, takes_ns=5 * MS)
        ring.op("all_to_all_base", in_splits=[1, 3], out_splits=[1, 3], line=22)
        ring.op("broadcast", root=1)
        ring.op("send" if rank else "recv", peer=1 - rank, tag=4)
        name = "ops.ring.gz" if packed else "ops.ring"
        path = folder / "n0" / f"rank-{rank}" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(gzip.compress(ring.data()) if packed else ring.data())
    return folder


@dataclass
class Result:
    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def run_with(*args: object) -> Result:
        code = main(["diagnose", *map(str, args)])
        return Result(code, *capfd.readouterr())

    return run_with


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_every_op_is_in_the_table(run: Run, tmp_path: Path, form: str) -> None:
    logs = write_logs(tmp_path / "logs")
    result = run(logs, "--tables", tmp_path / "out", "--tables-format", form)

    assert result.code == 0, result.err
    rows = read_rows(tmp_path / "out" / f"ops.{form}")
    assert len(rows) == 30
    first, split, root, sent = rows[0], rows[12], rows[13], rows[-1]
    assert [str(first[name]) for name in ("rank", "group", "seq", "op", "step", "line")] == [
        "0", "0", "1", "all_reduce", "0", "10",
    ]  # fmt: skip
    assert int(first["ended_ns"]) - int(first["enqueued_ns"]) == 5 * MS
    assert [(str(row["peer"]), str(row["tag"])) for row in (first, sent)] == [
        ("-1", "0"),
        ("0", "4"),
    ]
    assert str(root["root"]) == "1"
    assert json.loads(str(split["input_splits"]).replace("'", '"')) == [1, 3]
    assert sent["artifact"] == "n0/rank-1/ops.ring.gz"


def read_rows(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        from pyarrow import parquet

        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
        return rows
    if path.suffix == ".json":
        read: list[dict[str, Any]] = json.loads(path.read_text())
        return read
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_costs_are_in_a_table_and_in_the_report(run: Run, tmp_path: Path) -> None:
    logs = write_logs(tmp_path / "logs", packed=False)
    result = run(logs, "--tables", tmp_path / "out", "--format", "json")
    rows = read_rows(tmp_path / "out" / "communication.csv")
    told = json.loads(result.out)["communication"]["rows"]

    assert [row["op"] for row in rows] == [row["op"] for row in told]
    assert sorted(told[0]) == sorted(rows[0])
    reduced = next(row for row in rows if row["op"] == "all_reduce")
    assert (reduced["calls"], reduced["ranks"], float(reduced["median_ms"])) == ("12", "2", 2.5)


@pytest.mark.parametrize("form", ["text", "md"])
def test_costs_are_shown(run: Run, tmp_path: Path, form: str) -> None:
    result = run(write_logs(tmp_path / "logs"), "--format", form)

    assert "communication: in " in result.out
    assert "all_to_all_base" in result.out


def test_name_in_a_log_is_no_formula(run: Run, tmp_path: Path) -> None:
    ring = Ring(0, 1)
    ring.op(group=ring.group("=1+1"))
    path = tmp_path / "0.ring"
    path.write_bytes(ring.data())
    run(path, "--tables", tmp_path / "out")

    assert read_rows(tmp_path / "out" / "ops.csv")[0]["group"] == "'=1+1"


def test_evidence_without_op_logs_gives_tables_without_rows(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_text("Traceback (most recent call last):\nValueError: no\n")
    result = run(path, "--tables", tmp_path / "out", "--tables-format", "json")

    assert (tmp_path / "out" / "ops.json").read_text() == "[]\n"
    assert read_rows(tmp_path / "out" / "communication.csv") == []
    assert "communication" not in result.out


def test_folder_that_cannot_be_written_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run(write_logs(tmp_path / "logs"), "--tables", tmp_path / "file" / "out")

    assert result.code == 2
    assert "cannot write to" in result.err
