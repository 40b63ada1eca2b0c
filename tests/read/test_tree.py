"""From paths to evidence: folders as whystuck writes them, and files as people have them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.parse.dumps.builders import as_json, as_pickle, make_dump, make_entry

from whystuck.evidence.errors import UsageError
from whystuck.evidence.finding import Verdict
from whystuck.pipeline import diagnose_paths, read_evidence
from whystuck.read.naming import find_rank
from whystuck.read.sniffing import Kind, sniff

FRAMES = [{"name": "train", "filename": "/job/train.py", "line": 10}]
PENDING = make_entry("all_reduce", 5, retired=False, frames=FRAMES)
PAST = [make_entry("all_reduce", seq, frames=FRAMES) for seq in range(1, 5)]


def write(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_dumps(folder: Path, names: list[str], missing: int = 2) -> Path:
    for rank, name in enumerate(names):
        entries = PAST if rank == missing else [*PAST, PENDING]
        write(folder / name, as_pickle(make_dump(entries)))
    return folder


def write_incident(folder: Path, *, closed: float | None = None, world: int = 4) -> Path:
    record = {"kind": "stall", "world_size": world, "stalled_s": 30, "closed_after_s": closed}
    write(folder / "incident.json", json.dumps(record))
    write_dumps(folder, [f"n0/rank-{rank}/fr.pickle" for rank in range(4)])
    return folder


@pytest.mark.parametrize(
    "names",
    [
        [f"nccl_trace_rank_{rank}" for rank in range(4)],
        [f"host7_{rank}" for rank in range(4)],
        [f"{rank}.pkl" for rank in range(4)],
        [f"_dump_{rank}" for rank in range(4)],
        [f"rank-{rank}/fr.pickle" for rank in range(4)],
    ],
)
def test_dumps_of_any_name_are_read_with_their_ranks(tmp_path: Path, names: list[str]) -> None:
    report = diagnose_paths([write_dumps(tmp_path, names)])

    assert report.coverage.ranks_seen == 4
    assert report.findings[0].culprits.ranks == [2]


def test_json_dumps_and_several_paths_are_read(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / f"d_{rank}", as_json(make_dump(PAST if rank else [*PAST, PENDING])))
        for rank in range(2)
    ]
    report = diagnose_paths(paths)

    assert report.findings[0].culprits.ranks == [1]


def test_broken_dump_is_a_gap_and_the_others_are_read(tmp_path: Path) -> None:
    write_dumps(tmp_path, [f"_dump_{rank}" for rank in range(4)])
    write(tmp_path / "_dump_1", b"\x80\x02}q\x00(X\x07")
    write(tmp_path / "_dump_3", b"")
    report = diagnose_paths([tmp_path])

    assert {gap.rank for gap in report.gaps} == {1, 3}
    assert report.coverage.ranks_seen == 2


def test_rank_without_a_file_is_a_gap(tmp_path: Path) -> None:
    evidence = read_evidence(write_dumps(tmp_path, ["d_0", "d_1", "d_2", "d_4"]))
    # The fourth name is read as rank 4, so that rank 3 has nothing.
    assert [(gap.rank, gap.what) for gap in evidence.gaps] == [(3, "evidence")]


def test_incident_folder_is_read_with_citations_relative_to_it(tmp_path: Path) -> None:
    report = diagnose_paths([write_incident(tmp_path / "incidents" / "000")])

    (finding,) = report.findings
    assert finding.because[0].artifact == "n0/rank-0/fr.pickle"
    assert finding.culprits.nodes == ["n0"]
    assert report.context == {"kind": "stall", "stalled_s": 30.0, "limit_s": 0.0}


def test_whole_folder_gives_the_last_incident_that_is_open(tmp_path: Path) -> None:
    write_incident(tmp_path / "incidents" / "000")
    write_incident(tmp_path / "incidents" / "001")
    write_incident(tmp_path / "incidents" / "002", closed=43.0)
    report = diagnose_paths([tmp_path])

    assert "closed_after_s" not in report.context
    assert report.findings[0].because[0].artifact == "incidents/001/n0/rank-0/fr.pickle"


def test_folder_with_closed_incidents_gives_the_last_one(tmp_path: Path) -> None:
    write_incident(tmp_path / "incidents" / "000", closed=12.0)
    write_incident(tmp_path / "incidents" / "001", closed=43.0)

    assert diagnose_paths([tmp_path]).context["closed_after_s"] == 43.0


def test_folder_of_one_rank_does_not_miss_the_others(tmp_path: Path) -> None:
    folder = write_incident(tmp_path / "incidents" / "000")
    evidence = read_evidence(folder / "n0" / "rank-1")

    assert evidence.gaps == ()
    assert evidence.incident.kind == "stall"
    assert len(evidence.topology.ranks) == 1


def test_folder_without_incidents_is_judged_by_its_last_round(tmp_path: Path) -> None:
    write(tmp_path / "job.json", json.dumps({"exit_code": 0}))
    for rank in range(2):
        write(tmp_path / f"rounds/0/n0/rank-{rank}/exit.json", '{"code": 1}')
        write(tmp_path / f"rounds/1/n0/rank-{rank}/exit.json", '{"code": 0}')

    assert diagnose_paths([tmp_path]).verdict is Verdict.HEALTHY


def test_logs_with_a_traceback_are_a_crash(tmp_path: Path) -> None:
    text = 'Traceback (most recent call last):\n  File "/job/a.py", line 3, in f\nKeyError: 1\n'
    write(tmp_path / "worker.log", "".join(f"[rank3]: {line}\n" for line in text.splitlines()))
    report = diagnose_paths([tmp_path])

    assert report.verdict is Verdict.CRASHED
    assert report.findings[0].culprits.ranks == [3]


def test_sources_are_read_but_never_from_outside(tmp_path: Path) -> None:
    folder = write_incident(tmp_path / "000")
    write(folder / "sources" / "a.py", "x = 1\n")
    write(tmp_path / "secret", "secret")
    index = {"files": {"/job/a.py": "a.py", "/job/b.py": "../../secret"}}
    write(folder / "sources" / "index.json", json.dumps(index))

    assert dict(read_evidence(folder).sources) == {"/job/a.py": "x = 1\n"}


def test_missing_path_is_a_usage_error_with_a_hint(tmp_path: Path) -> None:
    for paths in ([tmp_path / "no"], [tmp_path, tmp_path / "no"]):
        with pytest.raises(UsageError, match="does not exist") as caught:
            diagnose_paths(paths)
        assert caught.value.hint


def test_folder_without_evidence_is_a_usage_error(tmp_path: Path) -> None:
    write(tmp_path / "model.pt", b"PK\x03\x04")
    write(tmp_path / "image.png", b"\x89PNG")
    write(tmp_path / "config.json", "{}")

    with pytest.raises(UsageError, match="no readable evidence"):
        diagnose_paths([tmp_path])


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_3", 3),
        ("node02_5", 5),
        ("0.pkl", 0),
        ("_dump_12", 12),
        ("rank7.2026.json", 7),
        ("x.txt", None),
    ],
)
def test_rank_is_found_in_file_names(name: str, rank: int | None) -> None:
    assert find_rank(name) == rank


def test_content_decides_over_the_name() -> None:
    assert sniff("anything.bin", as_pickle({"step": 1})) is None
    assert sniff("anything.bin", as_pickle(make_dump([]))) is Kind.FLIGHT_RECORDER
    assert sniff("dump_0", as_json(make_dump([]))) is Kind.FLIGHT_RECORDER
    assert sniff("x.txt", b"Thread 0x01 (most recent call first):\n") is Kind.FAULTHANDLER
    assert sniff("job.log", b"hello") is Kind.LOG
    assert sniff("job.log", b"[rank0]: hello") is Kind.LOG
    assert sniff("config.json", b'{"a": 1}') is None
    assert sniff("paste.txt", b'{"a": 1}') is Kind.LOG
    assert sniff("paste.txt", b'{"a": [1, 2,') is Kind.LOG
    assert sniff("paste.txt", b"[1,mpirank:3,host-1]<stdout>:step 1800\n") is Kind.LOG
    assert sniff("stdin", b"[1, 2, 3]\n") is Kind.LOG
    assert sniff("values.json", b"[1, 2, 3]\n") is None
    assert sniff("rank_0.log", b"{'loss': 1.5}\nstep 2\n") is Kind.LOG
    assert sniff("rank_0.log", b'{"loss": 1.5}\n[rank0]: step 2\n') is Kind.LOG
    assert sniff("n4.journal", b"2026-05-21T08:34:49+00:00 n4 kernel: a\n" * 2) is Kind.LOG
    assert sniff("n4.dmesg", b"[Fri Mar 13 17:19:48 2026] nvme1n1: a\n" * 2) is Kind.LOG
    assert sniff("steps.csv", b"2026,1\n2026,2\n") is None
    assert sniff("notes.md", b"# Notes\n\nNone of this is a log.\n") is None
    assert sniff("weights.bin", b"\0\0") is None


def seen_ranks(path: Path) -> set[int]:
    return {dump.rank for dump in read_evidence(path).collectives.dumps}


@contextmanager
def deep_folder(parent: Path, name: str, depth: int) -> Iterator[None]:
    """Make a folder in a folder in a folder; Python itself could not remove so many."""
    last = os.open(parent, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=last)
        inner = os.open(name, os.O_RDONLY, dir_fd=last)
        os.close(last)
        last = inner
    os.close(last)
    try:
        yield
    finally:
        subprocess.run(["rm", "-rf", str(parent / name)], check=True)


def test_deep_folders_and_odd_files_are_no_error(tmp_path: Path) -> None:
    write_dumps(tmp_path, ["rank_0", "rank_1"])
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "up").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "rank_2")
    os.mkfifo(tmp_path / "proc.json")
    (tmp_path / "sources").mkdir()
    os.mkfifo(tmp_path / "sources" / "index.json")
    with deep_folder(tmp_path, "d", 1_500):
        assert seen_ranks(tmp_path) == {0, 1}


def test_folder_too_deep_to_be_read_is_a_gap(tmp_path: Path) -> None:
    write_dumps(tmp_path, ["rank_0", "rank_1"])
    with deep_folder(tmp_path, "d" * 250, 20):
        gaps = read_evidence(tmp_path).gaps

    assert [gap for gap in gaps if gap.what.startswith("folder ddd")]


@pytest.mark.parametrize("name", ["job.json", "rounds/0/n1/rank-0/exit.json"])
def test_pipe_in_place_of_a_record_is_passed_over(tmp_path: Path, name: str) -> None:
    write_dumps(tmp_path / "rounds" / "0", ["rank_0", "rank_1"])
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(tmp_path / name)

    assert seen_ranks(tmp_path) == {0, 1}
