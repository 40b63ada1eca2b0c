"""Files of dumps in every state: packed, doubled, of old attempts, broken, many."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.parse.dumps.builders import Entry, as_json, as_pickle, make_config, make_dump, make_entry

from whystuck.evidence.model import Evidence
from whystuck.parse.dumps.fast.vocabulary import Vocabulary
from whystuck.parse.dumps.flight_recorder import RankDump, RawDump, parse_flight_recorders
from whystuck.parse.dumps.merge import merge_tables
from whystuck.parse.errors import ParseError
from whystuck.pipeline import read_evidence
from whystuck.read import dump_files, packed
from whystuck.read.content import read_content
from whystuck.read.dump_files import DumpFile, RankFiles, read_chunk, read_dump_files
from whystuck.read.shared_columns import SharedColumns

CONFIG = make_config(**{"0": ("default_pg", [0, 1])})


def dump(count: int = 3) -> bytes:
    entries: list[Entry] = [make_entry(seq=seq) for seq in range(1, count + 1)]
    return as_pickle(make_dump(entries, pg_config=CONFIG))


def gaps(evidence: Evidence) -> list[str]:
    return [f"{gap.rank}: {gap.reason}" for gap in evidence.gaps]


def test_packed_dumps_are_read(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    (tmp_path / "trace_0.gz").write_bytes(gzip.compress(dump()))
    (tmp_path / "trace_1.zst").write_bytes(zstandard.compress(dump()))

    evidence = read_evidence(tmp_path)

    assert evidence.gaps == ()
    assert evidence.collectives.rank.tolist() == [0, 0, 0, 1, 1, 1]


def test_without_zstd_there_is_a_gap_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(packed, "import_module", fail)
    (tmp_path / "rank_0").write_bytes(dump())
    (tmp_path / "rank_1.zst").write_bytes(b"\x28\xb5\x2f\xfd rest")

    (gap,) = gaps(read_evidence(tmp_path))

    assert gap.startswith("1: rank_1.zst: packed with zstd")
    assert "hint: install `whystuck[zstd]`" in gap


@pytest.mark.parametrize("end", [-20, 40])
def test_damaged_gzip_is_a_gap(tmp_path: Path, end: int) -> None:
    packed = gzip.compress(dump())[:end]
    (tmp_path / "rank_0").write_bytes(dump())
    (tmp_path / "rank_1").write_bytes(packed)

    (gap,) = gaps(read_evidence(tmp_path))

    assert gap.startswith("1: rank_1: cannot be unpacked")


def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path: Path) -> None:
    bomb = tmp_path / "rank_0.gz"
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    piece = bytes(1024 * 1024)
    bomb.write_bytes(b"".join(packer.compress(piece) for _ in range(64)) + packer.flush())

    with pytest.raises(ParseError, match="more than 1048576 bytes"):
        read_content(bomb, limit=1024 * 1024)


def test_two_dumps_of_one_rank_are_told(tmp_path: Path) -> None:
    for name in ("rank_0", "rank_1", "copy_of_rank_1"):
        (tmp_path / name).write_bytes(dump())

    evidence = read_evidence(tmp_path)

    assert len(evidence.collectives.dumps) == 2
    assert gaps(evidence) == ["1: rank_1: rank 1 has copy_of_rank_1 already"]


def test_one_dump_in_two_formats_is_one(tmp_path: Path) -> None:
    (tmp_path / "rank_0.json").write_bytes(as_json(make_dump([make_entry()])))
    (tmp_path / "rank_0.pickle").write_bytes(dump())

    evidence = read_evidence(tmp_path)

    assert [item.artifact for item in evidence.collectives.dumps] == ["rank_0.pickle"]
    assert len(evidence.collectives) == 3


def test_both_recorders_of_a_rank_are_read_in_the_order_of_time(tmp_path: Path) -> None:
    for rank in (0, 1):
        folder = tmp_path / "node" / f"rank-{rank}"
        folder.mkdir(parents=True)
        for name, group, times in (("fr", "1", (10, 30)), ("fr_gloo", "0", (20,))):
            entries = [
                make_entry(seq=seq, process_group=(group, ""), time_created_ns=time)
                for seq, time in enumerate(times, 1)
            ]
            (folder / f"{name}.pickle").write_bytes(as_pickle(make_dump(entries)))

    evidence = read_evidence(tmp_path)
    table = evidence.collectives

    assert evidence.gaps == ()
    assert [table.groups[group].name for group in table.group] == ["1", "0", "1"] * 2
    assert table.rank.tolist() == [0, 0, 0, 1, 1, 1]
    assert table.row.tolist() == [0, 0, 1] * 2
    assert [table.dumps[item].artifact for item in table.artifact[:3]] == [
        "node/rank-0/fr.pickle",
        "node/rank-0/fr_gloo.pickle",
        "node/rank-0/fr.pickle",
    ]


def test_last_attempt_wins(tmp_path: Path) -> None:
    for attempt, count in ((0, 9), (1, 2)):
        for rank in (0, 1):
            folder = tmp_path / f"attempt_{attempt}" / str(rank)
            folder.mkdir(parents=True)
            (folder / "fr_trace").write_bytes(dump(count))

    evidence = read_evidence(tmp_path)

    assert evidence.collectives.rank.tolist() == [0, 0, 1, 1]
    assert [gap.what for gap in evidence.gaps] == ["attempt_0"]


def test_missing_and_broken_files_are_gaps(tmp_path: Path) -> None:
    config = make_config(**{"0": ("default_pg", [0, 1, 2, 3, 4])})
    whole = as_pickle(make_dump([make_entry()], pg_config=config))
    (tmp_path / "rank_0").write_bytes(whole)
    (tmp_path / "rank_1").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "rank_2").write_bytes(b"")
    (tmp_path / "rank_3").write_bytes(b"\0\0\0 not a dump")

    assert [gap.rank for gap in read_evidence(tmp_path).gaps] == [1, 2, 3, 4]


def test_packed_dumps_are_unpacked_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(6):
        (tmp_path / f"rank_{rank}.gz").write_bytes(gzip.compress(dump(400)))
    sizes = []

    def parse(raw: Sequence[RawDump], vocabulary: Vocabulary) -> list[RankDump | ParseError]:
        sizes.append(sum(len(one.data) for one in raw))
        return parse_flight_recorders(raw, vocabulary)

    monkeypatch.setattr(dump_files, "parse_flight_recorders", parse)
    monkeypatch.setattr(dump_files, "_CHUNK_BYTES", 2 * len(dump(400)))

    ranks = [RankFiles(rank, (DumpFile(tmp_path / f"rank_{rank}.gz", ""),)) for rank in range(6)]
    (table,) = read_chunk(ranks).tables

    assert table.sizes == (400,) * 6
    assert sizes == [2 * len(dump(400))] * 3


@pytest.mark.parametrize("room", [100_000, 0])
def test_processes_give_what_one_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    for rank in range(9):
        (tmp_path / f"rank_{rank}").write_bytes(dump(rank + 1))
    ranks = [
        RankFiles(rank, (DumpFile(tmp_path / f"rank_{rank}", f"rank_{rank}"),))
        for rank in reversed(range(10))
    ]
    here = read_dump_files(ranks)
    steps: list[tuple[int, int]] = []
    monkeypatch.setattr(dump_files, "_POOL_FROM_BYTES", 0)
    monkeypatch.setattr(dump_files, "_CHUNK_BYTES", 1)
    monkeypatch.setattr(dump_files, "SharedColumns", lambda _size: SharedColumns(room))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1}, raising=False)
    there = read_dump_files(ranks, progress=lambda done, total: steps.append((done, total)))
    with ThreadPoolExecutor(2) as pool:
        threads = read_dump_files(ranks, executor=pool)

    assert steps[-1] == (10, 10)
    assert len(there.tables) > 1
    one = merge_tables(here.tables).collectives
    for other in (there, threads):
        assert other.gaps == here.gaps
        two = merge_tables(other.tables).collectives
        assert two.dumps == one.dumps
        for column in ("rank", "seq", "row", "created_ns", "done"):
            np.testing.assert_array_equal(getattr(two, column), getattr(one, column))
        assert [two.forms[form] for form in two.form] == [one.forms[form] for form in one.form]
