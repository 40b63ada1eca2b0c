"""Archives of evidence: read in the place of the folder that they stand for, and never trusted."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from whystuck.cli import whystuck
from whystuck.evidence import archive
from whystuck.evidence.archive import SUFFIX, list_members, shorten, write_archive
from whystuck.evidence.finding import Gap
from whystuck.guarded.evidence_files import is_there, list_archive, look_at, open_evidence
from whystuck.pipeline import diagnose_paths, read_paths
from whystuck.read.content import read_content
from whystuck.read.walking import list_files

ERROR = b"[rank1]: RuntimeError: CUDA error: an illegal memory access was encountered\n"
PLAIN = {
    "rank-0/log.txt": b"2026-01-31T12:00:00.123456Z out fine\n",
    "rank-0/worker-7/proc.json": b'{"samples":[{"taken_ns":1,"pid":7}]}',
    "rank-1/log.txt": b"2026-01-31T12:00:01.123456Z err " + ERROR,
    "rank-1/exit.json": b'{"pid":8,"code":1,"ended_ns":5}',
    "rank-1/env.json": b"{}",
    "sources/index.json": b'{"files":{"/job/train.py":"000-train.py"}}',
    "sources/000-train.py": b"import torch\n",
    "gaps.json": b'[{"rank":0,"what":"stacks","reason":"not allowed"}]',
}
RECORD = {"kind": "exit", "round": 0, "command_exit": 1, "world_size": 2, "opened_ns": 10**18}


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """An incident of plain files."""
    incident = tmp_path / "plain" / "incidents" / "000"
    for name, data in PLAIN.items():
        path = incident / "n3" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (incident / "incident.json").write_text(json.dumps(RECORD))
    return incident


@pytest.fixture
def packed(plain: Path, tmp_path: Path) -> Path:
    """The same with an archive in the place of the node's folder."""
    incident = tmp_path / "packed" / "incidents" / "000"
    incident.mkdir(parents=True)
    shutil.copy(plain / "incident.json", incident)
    pack(plain / "n3", incident / f"n3{SUFFIX}")
    return incident


def pack(folder: Path, target: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    with target.open("wb") as out:
        named = ((path.relative_to(folder).as_posix(), path) for path in files)
        write_archive(out, folder.name, named)


def add_members(*members: tarfile.TarInfo) -> bytes:
    """Make a tar of members, each with as many bytes as it claims, where these are few."""
    out = io.BytesIO()
    for info in members:
        out.write(info.tobuf(tarfile.GNU_FORMAT))
        kept = info.size if info.size < 1 << 20 else 0
        out.write(b"x" * kept + bytes(-kept % 512))
    return out.getvalue() + bytes(1024)


def member(name: str, size: int = 3, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, "/etc/passwd"
    return info


def test_archive_when_read_then_answers_as_the_folder(plain: Path, packed: Path) -> None:
    for one, other in ((plain, packed), (plain.parent.parent, packed.parent.parent)):
        left, right = diagnose_paths([one]), diagnose_paths([other])
        assert left.findings
        assert left.findings == right.findings
        assert left.verdict == right.verdict
        assert left.gaps == right.gaps
    left_read, right_read = read_paths([plain]), read_paths([packed])
    assert left_read.sources == right_read.sources == {"/job/train.py": "import torch\n"}
    assert left_read.topology == right_read.topology
    assert [one.artifact for one in left_read.exits] == ["n3/rank-1/exit.json"]
    assert left_read.exits == right_read.exits


def test_archive_when_listed_then_has_the_paths_of_the_folder(plain: Path, packed: Path) -> None:
    gaps: list[Gap] = []
    one = [path.relative_to(plain) for path in list_files(plain, gaps)]
    assert one == sorted(path.relative_to(packed) for path in list_files(packed, gaps))
    named = list_files(packed / f"n3{SUFFIX}", gaps)
    assert {path.relative_to(packed) for path in named} == set(one) - {Path("incident.json")}
    assert not gaps


def test_archive_when_given_alone_then_is_read(packed: Path) -> None:
    said = CliRunner().invoke(whystuck, ["diagnose", str(packed / f"n3{SUFFIX}")])
    assert "illegal memory access" in said.output


@pytest.mark.parametrize("part", ["n3", "n3/rank-1", "n3/rank-0/worker-7"])
def test_part_of_an_archive_when_given_then_is_read_as_the_folder(
    plain: Path, packed: Path, part: str
) -> None:
    gaps: list[Gap] = []
    one = [path.relative_to(plain) for path in list_files(plain / part, gaps)]
    assert one == [path.relative_to(packed) for path in list_files(packed / part, gaps)]
    left, right = (
        CliRunner().invoke(whystuck, ["diagnose", str(x / part)]) for x in (plain, packed)
    )
    assert left.exit_code == right.exit_code
    assert left.output.replace("/plain/", "/packed/") == right.output
    # What was written all the time lies in the folder, and is read too.
    (packed / part).mkdir(parents=True)
    (packed / part / "log-attempt-0.txt").write_bytes(b"a line\n")
    listed = [path.relative_to(packed) for path in list_files(packed / part, gaps)]
    assert sorted(listed) == sorted([*one, Path(part) / "log-attempt-0.txt"])
    assert not gaps


def test_part_that_no_archive_has_does_not_exist(packed: Path) -> None:
    for part in ("n4", "n3/rank-7", "n3/rank-1/log"):
        done = CliRunner().invoke(whystuck, ["diagnose", str(packed / part)])
        assert "no such file" in str(done.exception)


def test_archive_when_unpacked_by_tar_then_is_the_folder(packed: Path, tmp_path: Path) -> None:
    with tarfile.open(packed / f"n3{SUFFIX}") as tar:
        tar.extractall(tmp_path / "out", filter="data")
    for name, data in PLAIN.items():
        assert (tmp_path / "out" / "n3" / name).read_bytes() == data


def test_member_when_opened_then_ends_where_it_ends(packed: Path) -> None:
    path = packed / "n3" / "rank-1" / "log.txt"
    data = PLAIN["rank-1/log.txt"]
    with open_evidence(path) as stream:
        assert stream.read() == data
        stream.seek(-6, io.SEEK_END)
        assert stream.read(100) == data[-6:]
        stream.seek(3)
        assert (stream.read(4), stream.tell()) == (data[3:7], 7)
    assert read_content(path) == data
    assert look_at(path).size == len(data)
    assert is_there(packed / "n3/rank-0/worker-7/proc.json")
    for missing in ("n3/rank-1/log.tx", "n3/rank-1", "n3", "rank-1/log.txt", "n4/rank-1/log.txt"):
        with pytest.raises(FileNotFoundError):
            open_evidence(packed / missing)


def test_file_in_the_folder_counts_before_the_archive(packed: Path) -> None:
    (packed / "n3" / "rank-1").mkdir(parents=True)
    (packed / "n3" / "rank-1" / "log.txt").write_bytes(b"another line\n")
    paths = list(list_files(packed, []))
    assert len(paths) == len(set(paths))
    assert read_content(packed / "n3/rank-1/log.txt") == b"another line\n"
    assert read_content(packed / "n3/rank-0/log.txt") == PLAIN["rank-0/log.txt"]


@pytest.mark.parametrize(
    "bad",
    [
        member("n3/rank-0/link", 0, tarfile.SYMTYPE),
        member("n3/rank-0/hard", 0, tarfile.LNKTYPE),
        member("n3/rank-0/pipe", 0, tarfile.FIFOTYPE),
        member("n3/rank-0/device", 0, tarfile.CHRTYPE),
        member("n3/rank-0/sparse", 3, tarfile.GNUTYPE_SPARSE),
        member("n3/rank-0/pax", 3, tarfile.XHDTYPE),
        member("/etc/rank-0/log.txt"),
        member("n3/../../rank-0/log.txt"),
        member("n3/./rank-0"),
        member("n3//rank-0"),
        member("../n3/rank-0/log.txt"),
        member("n4/rank-0/log.txt"),
        member("n3"),
        member("n3/" + "d/" * 6 + "log.txt"),
        member("n3/rank-0/a\x1b[31mlog.txt"),
    ],
    ids=lambda one: f"{one.type!r}-{one.name[:20]!r}",
)
def test_member_that_leads_elsewhere_is_left_out(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    path = tmp_path / f"n3{SUFFIX}"
    path.write_bytes(add_members(bad, member("n3/rank-1/log.txt")))
    found = list_archive(path)
    assert list(found.by_name) == ["n3/rank-1/log.txt"]
    assert found.problem == "1 members of the archive are no plain files of `n3`"
    with pytest.raises(OSError, match=r"upwards|No such file|Not a directory"):
        open_evidence(tmp_path / bad.name)


@pytest.mark.parametrize(
    ("break_it", "problem"),
    [
        (lambda data: data[:700], "cut off"),
        (lambda data: b"?" + data[1:], "damaged at byte 0"),
        (lambda data: data[:1024] + b"\x01" * 512, "damaged at byte 1024"),
        (lambda _: add_members(member("n3/a", 1 << 40)), "cut off"),
        (lambda _: negative(), "cut off"),
    ],
    ids=["short", "checksum", "rubbish", "huge", "negative"],
)
def test_broken_archive_is_a_gap(
    tmp_path: Path, break_it: Callable[[bytes], bytes], problem: str
) -> None:
    whole = add_members(member("n3/rank-1/notes", 300))
    (tmp_path / f"n3{SUFFIX}").write_bytes(break_it(whole))
    (tmp_path / "rank_1.log").write_bytes(ERROR)
    [gap] = [gap for gap in read_paths([tmp_path]).gaps if gap.what == f"n3{SUFFIX}"]
    assert problem in gap.reason


def negative() -> bytes:
    """Make a header with a size below 0, as its binary form allows, and the right sum."""
    head = bytearray(member("n3/a").tobuf(tarfile.GNU_FORMAT)[:512])
    head[124:136] = b"\xff" * 4 + struct.pack(">q", -512)
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + bytes(1024)


def test_archive_that_is_a_link_or_no_file_is_not_opened(tmp_path: Path, packed: Path) -> None:
    folder = tmp_path / "evidence"
    folder.mkdir()
    (folder / "rank_1.log").write_bytes(ERROR)
    (folder / f"n3{SUFFIX}").symlink_to(packed / f"n3{SUFFIX}")
    os.mkfifo(folder / f"n4{SUFFIX}")
    (folder / f"n5{SUFFIX}").mkdir()
    assert [path.name for path in list_files(folder, [])] == ["rank_1.log"]
    for name in ("n3", "n4", "n5"):
        with pytest.raises(FileNotFoundError):
            open_evidence(folder / name / "rank-1" / "log.txt")


def test_archive_of_holes_is_refused(tmp_path: Path) -> None:
    with (tmp_path / f"n3{SUFFIX}").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="sparse"):
        list_archive(tmp_path / f"n3{SUFFIX}")


def test_archive_of_too_many_members_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MAX_MEMBERS", 3)
    data = add_members(*(member(f"n3/rank-{rank}/log.txt") for rank in range(5)))
    found = list_members(io.BytesIO(data), len(data), "n3")
    assert len(found.by_name) == 3
    assert "first 3 members" in found.problem


@pytest.mark.parametrize("kind", ["folders", "one name"])
def test_archive_of_many_headers_is_cut(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(archive, "MAX_MEMBERS", 3)
    several = [member("n3/a") for _ in range(5)]
    for one in several if kind == "folders" else ():
        one.type = tarfile.DIRTYPE
    data = add_members(*several)
    assert "first 3 members" in list_members(io.BytesIO(data), len(data), "n3").problem


def test_last_of_two_members_with_one_name_counts(tmp_path: Path) -> None:
    second = member("n3/a", 2)
    (tmp_path / f"n3{SUFFIX}").write_bytes(add_members(member("n3/a"), second))
    assert read_content(tmp_path / "n3" / "a") == b"xx"


def test_other_tar_files_are_left_as_they_are(tmp_path: Path, plain: Path) -> None:
    pack(plain / "n3", tmp_path / "n3.tar")
    assert list(list_files(tmp_path / "n3.tar", [])) == [tmp_path / "n3.tar"]


def test_names_are_made_to_fit() -> None:
    assert shorten("train.py") == "train.py"
    long = shorten("ü" * 200 + ".py")
    assert long.endswith("üü.py")
    assert len(long.encode()) <= 80
    assert shorten("a\n\x1bb.py") == "a__b.py"
