"""Logs are read whatever their size, packing and encoding, in one process or in several."""

from __future__ import annotations

import bz2
import gzip
import lzma
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.logs.cases import CORPUS, load_case
from tests.logs.pad import Size, pad_case

from whystuck.parse.logs import reader
from whystuck.parse.logs.blocks.stacks.shown_source import MOST_PASTED
from whystuck.parse.logs.compiled import LogTables, load_tables
from whystuck.parse.logs.tables import LogTable
from whystuck.pipeline import read_evidence
from whystuck.read import log_files
from whystuck.read.log_files import LogPath, read_logs

ECC = "[rank2]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
STEPS = "".join(f"[rank{rank}]: step {step} loss 2.1\n" for step in range(999) for rank in range(4))
TEXT = STEPS + ECC + STEPS
TABLES = LogTables()


def read(*paths: Path, root: Path) -> LogTable:
    return read_logs([LogPath(path, str(path.relative_to(root))) for path in paths], TABLES).table


def test_our_signatures_are_compiled_once_for_each_thread() -> None:
    """The search counts what it finds: two threads cannot share one."""
    with ThreadPoolExecutor(1) as pool:
        others = [pool.submit(load_tables).result() for _ in range(2)]

    assert load_tables() is load_tables()
    assert others[0] is others[1] is not load_tables()


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-16-be", "latin-1"])
def test_packed_logs_in_any_encoding_are_read(
    suffix: str, pack: Callable[[bytes], bytes], encoding: str, tmp_path: Path
) -> None:
    path = tmp_path / f"train.log{suffix}"
    path.write_bytes(pack(TEXT.encode(encoding)))

    (event,) = read(path, root=tmp_path).logs.events

    assert (event.signature, event.rank, event.row) == ("cuda.ecc", 2, 3997)


def test_zstd_is_read(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    path = tmp_path / "train.log.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(TEXT.encode()))

    assert [event.rank for event in read(path, root=tmp_path).logs.events] == [2]


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_log_whose_packing_is_cut_off_is_read_up_to_there(share: float, tmp_path: Path) -> None:
    path = tmp_path / "train.log.gz"
    noise = os.urandom(3_000_000).hex()
    data = gzip.compress((ECC + noise + "\n").encode())
    path.write_bytes(data[: int(len(data) * share)])

    result = read_logs([LogPath(path, path.name)], TABLES)

    assert [event.rank for event in result.table.logs.events] == [2]
    (gap,) = result.gaps
    assert "cannot be unpacked to its end" in gap.reason


def test_log_that_cannot_be_read_is_a_gap(tmp_path: Path) -> None:
    there = tmp_path / "rank-0.log"
    there.write_text(ECC)

    result = read_logs(
        [LogPath(there, there.name), LogPath(tmp_path / "rank-1.log", "rank-1.log", 1)], TABLES
    )

    assert len(result.table.logs.events) == 1
    assert [(gap.rank, gap.what) for gap in result.gaps] == [(1, "log")]


def test_packed_and_rotated_logs_are_found_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "rank-2.log.2.gz").write_bytes(gzip.compress(ECC.encode()))
    (tmp_path / "rank-2.log.1").write_text("[rank2]: step 2\n")
    (tmp_path / "rank-2.log").write_text("[rank2]: step 3\n")
    (tmp_path / "job.o4711").write_text("step 3\n")
    (tmp_path / "docker.log").write_text('{"log":"step 3\\n","stream":"stdout"}\n')

    evidence = read_evidence(tmp_path)

    assert {file.artifact: file.rank for file in evidence.logs.files} == {
        "rank-2.log.2.gz": 2,
        "rank-2.log.1": 2,
        "rank-2.log": 2,
        "job.o4711": -1,
        "docker.log": -1,
    }
    assert [event.rank for event in evidence.logs.events] == [2]
    # What was rotated away first comes first.
    assert [file.artifact for file in evidence.logs.files if file.rank == 2] == [
        "rank-2.log.2.gz",
        "rank-2.log.1",
        "rank-2.log",
    ]


def tell(table: LogTable) -> tuple[object, ...]:
    """Everything that must not depend on how files are cut."""
    return (
        [(e.signature, e.artifact, e.row, e.rank, e.attempt, e.count) for e in table.logs.events],
        [(e.type, e.artifact, e.row, e.last_row, e.rank, e.message) for e in table.exceptions],
        sorted((e.artifact, e.row, e.rank, e.code or 0, e.signal or 0) for e in table.exits),
        [(c.template, c.count, c.ranks) for c in table.logs.clusters],
        [(f.artifact, f.kind, f.rank, f.size_bytes, f.node) for f in table.logs.files],
    )


@pytest.mark.parametrize(
    "name", ["c204-first-observed-decoy", "c206-second-attempt", "c211-all-waited-27", "c208-xid79"]
)
@pytest.mark.parametrize("segment", [2000, 9000])
def test_files_cut_into_parts_tell_the_same(
    name: str, segment: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pad_case(load_case(CORPUS / name), Size(24, seed=3)).write(tmp_path)
    paths = sorted(path for path in folder.rglob("*.[tl]*") if path.name != "truth.json")
    # Of what is compared across a whole text only small ones are read, which are never cut.
    assert MOST_PASTED < log_files.SEGMENT_BYTES
    monkeypatch.setattr(reader, "MOST_PASTED", 0)
    whole = tell(read(*paths, root=folder))

    monkeypatch.setattr(log_files, "SEGMENT_BYTES", segment)

    assert tell(read(*paths, root=folder)) == whole


def test_processes_tell_the_same_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("no fork here")
    for rank in range(6):
        (tmp_path / f"rank-{rank}.log").write_text(TEXT.replace("rank2", f"rank{rank}"))
    paths = sorted(tmp_path.iterdir())
    whole = tell(read(*paths, root=tmp_path))
    seen: list[tuple[int, int]] = []

    monkeypatch.setattr(log_files, "_POOL_FROM_BYTES", 0)
    monkeypatch.setattr(log_files, "_CHUNK_BYTES", 1)
    monkeypatch.setattr(log_files, "count_cpus", lambda: 2)
    named = [LogPath(path, path.name) for path in paths]
    result = read_logs(named, TABLES, progress=lambda done, total: seen.append((done, total)))

    assert tell(result.table) == whole
    size = sum(path.stat().st_size for path in paths)
    assert seen[-1] == (size, size)


def test_another_executor_can_be_given(tmp_path: Path) -> None:
    path = tmp_path / "rank-2.log"
    path.write_text(TEXT)
    with ThreadPoolExecutor(1) as pool:
        result = read_logs([LogPath(path, path.name)], executor=pool)

    assert len(result.table.logs.events) == 1


def test_line_across_two_parts_belongs_to_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.log"
    path.write_text(ECC * 7)
    monkeypatch.setattr(log_files, "SEGMENT_BYTES", 100)

    (event,) = read(path, root=tmp_path).logs.events

    assert (event.row, event.count) == (1, 7)


def test_file_that_grows_or_shrinks_while_it_is_read_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.log"
    path.write_text(TEXT)
    monkeypatch.setattr(log_files, "SEGMENT_BYTES", 20_000)
    cut = log_files._cut

    def change(file: Path, size: int) -> list[tuple[int, int | None, int]]:
        segments = list(cut(file, size))
        file.write_text(STEPS[:1000] + ECC)
        return segments

    monkeypatch.setattr(log_files, "_cut", change)

    assert [event.rank for event in read(path, root=tmp_path).logs.events] == [2]
