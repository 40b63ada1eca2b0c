"""``whystuck trace``: from files to exit codes, reports and tables."""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.tracing.data import find_traces, make_event

from whystuck.cli import main
from whystuck.tracing.device import temporal

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def run_command(*arguments: str | Path) -> tuple[int, str, str]:
        code = main([str(one) for one in arguments])
        shown = capfd.readouterr()
        return code, shown.out, shown.err

    return run_command


def write_trace(
    path: Path,
    rank: int | None = None,
    kernel_us: float = 10,
    name: str = "gemm",
    **keys: Any,
) -> Path:
    """A small trace; packed where its name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    info = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 4}}
    root = {
        "schemaVersion": 1,
        **info,
        "traceEvents": [
            make_event("cuda_runtime", "cudaLaunchKernel", 0, 5, correlation=1),
            make_event("kernel", name, 8, kernel_us, device=0, stream=7, correlation=1),
        ],
        **keys,
    }
    data = json.dumps(root).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_trace_without_command_lists_the_commands(run: Run) -> None:
    code, out, err = run("trace")

    assert (code, out) == (2, "")
    assert "  analyze  Tell from Kineto traces" in err


def test_mistyped_command_suggests_the_nearest(run: Run) -> None:
    assert run("trace", "analyse") == (
        2, "", "error: no command `analyse`\nhint: did you mean `whystuck trace analyze`?\n"
    )  # fmt: skip


def test_traces_without_trouble_are_healthy(run: Run, tmp_path: Path) -> None:
    for rank in range(3):
        write_trace(tmp_path / f"{rank}.json", rank)

    code, out, err = run("trace", "analyze", tmp_path)

    assert (code, err) == (0, "")
    assert "read 3 of 4 ranks · traces" in out
    assert "verdict: healthy" in out


def test_tables_are_csv_in_whole_nanoseconds(run: Run, tmp_path: Path) -> None:
    write_trace(tmp_path / "in" / "a.json.gz", rank=1, kernel_us=2.5)
    write_trace(tmp_path / "in" / "b.json", rank=0)

    code, _, _ = run("trace", "analyze", tmp_path / "in", "--tables", tmp_path / "out" / "deep")

    assert code == 0
    lines = (tmp_path / "out" / "deep" / "temporal_breakdown.csv").read_text().splitlines()
    assert lines == [
        ",".join(temporal.METRIC.columns),
        "0,0,10000,10000,0,10000,0,0,0,0",
        "1,0,2500,2500,0,2500,0,0,0,0",
    ]


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_tables_have_other_forms(run: Run, tmp_path: Path, form: str) -> None:
    trace = write_trace(tmp_path / "t.json", rank=3)

    code, _, _ = run(
        "trace", "analyze", trace, "--tables", tmp_path, "--tables-format", form,
        "--table", "temporal_breakdown",
    )  # fmt: skip

    path = tmp_path / f"temporal_breakdown.{form}"
    if form == "json":
        (row,) = json.loads(path.read_text())
    else:
        from pyarrow import parquet

        (row,) = parquet.read_table(path).to_pylist()
    assert (code, row["rank"], row["wall_ns"]) == (0, 3, 10_000)
    assert {one.name for one in tmp_path.iterdir()} == {"t.json", path.name}


@pytest.mark.parametrize("kind", ["empty", "text", "bytes", "cut gz", "other json", "no events"])
def test_a_bad_file_that_is_named_like_good_ones_is_a_gap(
    run: Run, tmp_path: Path, kind: str
) -> None:
    write_trace(tmp_path / "rank-0.json", 0)
    bad = tmp_path / "rank-1.json"
    if kind == "cut gz":
        bad = write_trace(tmp_path / "rank-1.json.gz", 1)
        bad.write_bytes(bad.read_bytes()[:40])
    else:
        texts = {"empty": "", "text": "hello\n", "other json": '{"a": 1}'}
        bad.write_text(texts.get(kind, '{"schemaVersion": 1, "deviceProperties": []}'))
    if kind == "bytes":
        bad.write_bytes(bytes(range(256)) * 8)

    code, out, _ = run("trace", "analyze", tmp_path, "--format", "json")
    named_code, _, err = run("trace", "analyze", bad)

    report = json.loads(out)
    assert (code, report["coverage"]["ranks_seen"]) == (0, 1)
    assert [gap["rank"] for gap in report["gaps"]] == [1]
    assert named_code == 2
    assert err.startswith("error: no trace in ")
    assert "hint: " in err


def test_other_files_beside_traces_are_passed_over(run: Run, tmp_path: Path) -> None:
    write_trace(tmp_path / "rank-0.json", 0)
    # What unpacks it, and what is not named like it.
    (tmp_path / "rank-0.json.gz").write_bytes(bytes(range(256)))
    for name in ("config-1.json", "rank-x.json", "metrics.json", "notes.txt", "rank-1"):
        (tmp_path / name).write_text('{"a": 1}')
    os.mkfifo(tmp_path / "control")
    (tmp_path / "again").symlink_to(tmp_path)

    code, out, _ = run("trace", "analyze", tmp_path, "--format", "json")

    assert (code, json.loads(out)["gaps"]) == (0, [])


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_what_is_no_file_and_is_named_like_a_trace_is_a_gap(
    run: Run, tmp_path: Path, kind: str
) -> None:
    write_trace(tmp_path / "rank-0.json", 0)
    bad = tmp_path / "rank-1.json"
    # To open a pipe that nobody writes to takes for ever.
    bad.symlink_to("nowhere") if kind == "link" else os.mkfifo(bad)

    code, out, _ = run("trace", "analyze", tmp_path, "--format", "json")

    (gap,) = json.loads(out)["gaps"]
    reason = "it is a link that leads nowhere" if kind == "link" else "it is no regular file"
    assert (code, gap["rank"], gap["reason"]) == (0, 1, f"rank-1.json: {reason}")


def test_merge_tells_what_is_named_like_a_trace_and_is_none(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in (0, 1):
        write_trace(folder / f"rank-{rank}.json", rank)
    (folder / "rank-2.json").write_text("{{{ garbage")
    (folder / "notes.json").write_text("{{{ garbage")

    code, out, err = run("trace", "merge", folder, "-o", tmp_path / "all.json")

    told, clocks = err.splitlines()
    assert (code, out) == (0, "")
    assert told.startswith("note: trace: rank-2.json: ")
    assert clocks.startswith("clocks: ")


def test_a_path_that_is_not_there_is_a_usage_error(run: Run, tmp_path: Path) -> None:
    code, out, err = run("trace", "analyze", tmp_path / "nope")

    assert (code, out) == (2, "")
    assert "does not exist" in err


def test_a_folder_without_traces_is_a_usage_error(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text('{"a": []}')

    code, _, err = run("trace", "analyze", tmp_path)

    assert code == 2
    assert "there is no trace in" in err


def test_two_traces_of_one_rank_leave_the_newest(run: Run, tmp_path: Path) -> None:
    write_trace(tmp_path / "old.json", 2, 10, baseTimeNanoseconds=1_000_000_000)
    write_trace(tmp_path / "new.json", 2, 20, baseTimeNanoseconds=2_000_000_000)
    out_folder = tmp_path / "out"

    _, out, _ = run("trace", "analyze", tmp_path, "--tables", out_folder, "--format", "json")

    (row,) = read_csv(out_folder / "temporal_breakdown.csv")
    (gap,) = json.loads(out)["gaps"]
    assert (row["rank"], row["wall_ns"]) == ("2", "20000")
    assert (gap["rank"], gap["reason"]) == (2, "old.json: rank 2 has new.json, which is taken")


def test_ranks_come_from_names_where_traces_tell_none(run: Run, tmp_path: Path) -> None:
    for rank in (4, 11):
        write_trace(tmp_path / f"trace_rank{rank}.1695835434000.pt.trace.json", kernel_us=rank)

    run("trace", "analyze", tmp_path, "--tables", tmp_path)

    rows = read_csv(tmp_path / "temporal_breakdown.csv")
    assert [(row["rank"], row["wall_ns"]) for row in rows] == [("4", "4000"), ("11", "11000")]


def test_numbers_of_processes_are_not_ranks(run: Run, tmp_path: Path) -> None:
    for place, pid in enumerate((31_234, 31_877)):
        write_trace(tmp_path / f"node_{pid}.169583543400{place}.pt.trace.json", kernel_us=1 + place)

    _, out, _ = run("trace", "analyze", tmp_path, "--tables", tmp_path, "--format", "json")

    rows = read_csv(tmp_path / "temporal_breakdown.csv")
    assert [(row["rank"], row["wall_ns"]) for row in rows] == [("0", "1000"), ("1", "2000")]
    assert any("numbered in the order of names" in gap["reason"] for gap in json.loads(out)["gaps"])


def test_a_trace_without_rank_beside_others_is_left_out(run: Run, tmp_path: Path) -> None:
    write_trace(tmp_path / "a.json", 0)
    write_trace(tmp_path / "b.json")

    _, out, _ = run("trace", "analyze", tmp_path, "--format", "json")

    report = json.loads(out)
    assert report["coverage"]["ranks_seen"] == 1
    assert any("b.json: its rank cannot be told" in gap["reason"] for gap in report["gaps"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--comm-pattern", "(["], "is no regular expression"),
        (["--table", "temporal_brakdown", "--tables", "x"], "there is no table"),
        (["--table", "temporal_breakdown"], "`--table` needs `--tables DIR`"),
    ],
)
def test_options_that_cannot_be_used(
    run: Run, tmp_path: Path, arguments: list[str], message: str
) -> None:
    trace = write_trace(tmp_path / "t.json", 0)

    code, out, err = run("trace", "analyze", trace, *arguments)

    assert (code, out) == (2, "")
    assert message in err
    assert "hint: " in err


def test_tables_that_cannot_be_written_are_one_sentence(run: Run, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.json", 0)

    code, _, err = run("trace", "analyze", trace, "--tables", trace)

    assert code == 2
    assert err.startswith("error: cannot write to")


def test_a_real_job_of_eight_ranks(run: Run, tmp_path: Path) -> None:
    folder = find_traces() / "injected" / "host_8rank_r5"

    code, _, err = run("trace", "analyze", folder, "--tables", tmp_path, "--fail-on", "never")

    assert (code, err) == (0, "")
    rows = read_csv(tmp_path / "temporal_breakdown.csv")
    assert [int(row["rank"]) for row in rows] == list(range(8))


def test_a_scheme_that_nobody_knows(run: Run) -> None:
    code, out, err = run("trace", "analyze", "nowhere://user:secret@host/x")

    assert (code, out) == (2, "")
    assert "`nowhere://host/x`" in err
    assert "secret" not in err


def test_file_urls_are_paths(run: Run, tmp_path: Path) -> None:
    write_trace(tmp_path / "in" / "t.json", 0)

    code, _, _ = run(
        "trace", "analyze", f"file://{tmp_path}/in", "--tables", f"file://{tmp_path}/out"
    )

    assert code == 0
    assert (tmp_path / "out" / "temporal_breakdown.csv").is_file()


def test_a_store_holds_traces_partials_and_tables(run: Run, tmp_path: Path) -> None:
    import fsspec

    # GIVEN a store of fsspec in this process, where so few traces are read
    files = fsspec.filesystem("memory")
    for rank in range(2):
        path = write_trace(tmp_path / f"rank{rank}.json", rank)
        files.put_file(str(path), f"/whystuck-test/in/{path.name}")
    try:
        code, out, err = run(
            "trace", "analyze", "memory://whystuck-test/in", "--tables",
            "memory://whystuck-test/out", "--partials", "memory://whystuck-test/partials",
        )  # fmt: skip
        table = files.cat_file("/whystuck-test/out/temporal_breakdown.csv")
        partials = files.find("/whystuck-test/partials")
    finally:
        files.rm("/whystuck-test", recursive=True)

    assert (code, err) == (0, "")
    assert "read 2 of 4 ranks" in out
    assert len(partials) == 2
    assert table.splitlines()[2].startswith(b"1,0,10000")
