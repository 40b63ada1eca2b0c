"""Evidence is opened without following links in it, and without waiting for anything."""

import gzip
import os
import socket
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from whystuck.cli import whystuck
from whystuck.guarded.evidence_files import open_evidence, settle
from whystuck.parse.errors import ParseError
from whystuck.pipeline import read_paths
from whystuck.read.content import open_content, read_content

ERROR = b"[rank1]: RuntimeError: CUDA error: an illegal memory access was encountered\n"
SECRET = b"[rank2]: RuntimeError: CUDA out of memory. SECRET\n"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file beside the evidence."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret.log").write_bytes(SECRET)
    return folder


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    folder = tmp_path / "evidence"
    folder.mkdir()
    (folder / "rank_1.log").write_bytes(ERROR)
    return folder


def diagnose(*paths: Path, command: str = "diagnose") -> str:
    result = CliRunner().invoke(whystuck, [command, *map(str, paths)])
    assert result.exception is None, result.output
    return result.output


def test_link_out_of_the_evidence_is_told_and_not_read(evidence: Path, outside: Path) -> None:
    (evidence / "rank_2.log").symlink_to(outside / "secret.log")

    said = diagnose(evidence)

    assert "SECRET" not in said
    assert "a link out of the evidence" in " ".join(said.split())


def test_link_to_another_file_of_the_evidence_needs_no_word(evidence: Path) -> None:
    (evidence / "latest.log").symlink_to("rank_1.log")

    assert [gap for gap in read_paths([evidence]).gaps if "link" in gap.reason] == []
    assert [file.artifact for file in read_paths([evidence]).logs.files] == ["rank_1.log"]


def test_link_that_the_user_names_is_followed(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "rank_2.log").symlink_to(outside / "secret.log")
    (tmp_path / "folder").symlink_to(outside)

    for path in (tmp_path / "rank_2.log", tmp_path / "folder", tmp_path / "folder" / "secret.log"):
        assert "SECRET" in diagnose(path, command="logs")
    # What he calls it tells whose it is.
    (file,) = read_paths([tmp_path / "rank_2.log"]).logs.files
    assert file.artifact == "rank_2.log"


@pytest.mark.parametrize("target", ["/dev/zero", "/proc/kmsg", "/dev/random", "/proc/self/environ"])
def test_endless_files_behind_links_are_left(evidence: Path, target: str) -> None:
    for name in ("rank_2.log", "nccl_trace_rank_3", "rank_4.json", "incident.json"):
        (evidence / name).symlink_to(target)

    assert "rank 1" in diagnose(evidence)


def test_folder_that_becomes_a_link_is_not_passed(evidence: Path, outside: Path) -> None:
    inner = evidence / "inner"
    inner.mkdir()
    (inner / "secret.log").write_bytes(ERROR)
    with open_evidence(inner / "secret.log") as stream:
        assert stream.read() == ERROR
    inner.rename(evidence / "moved")
    inner.symlink_to(outside)

    with pytest.raises(OSError, match="link"):
        open_evidence(inner / "secret.log")


@pytest.mark.parametrize("linked", ["rounds", "rounds/0"])
def test_rounds_that_are_links_are_not_listed(evidence: Path, outside: Path, linked: str) -> None:
    incident = evidence / "incidents" / "000" / "n0" / "rank-1"
    incident.mkdir(parents=True)
    record = '{"kind":"exit","round":0,"command_exit":1,"world_size":2}'
    (evidence / "incidents" / "000" / "incident.json").write_text(record)
    (incident / "log.txt").write_bytes(ERROR)
    home = outside / "0" / "n0" / "rank-1" if linked == "rounds" else outside / "n0" / "rank-1"
    home.mkdir(parents=True)
    (home / "log.txt").write_bytes(SECRET)
    place = evidence / linked
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(outside)

    assert "SECRET" not in diagnose(evidence)
    assert "SECRET" not in diagnose(evidence, command="logs")


def test_what_is_no_file_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("socket")
        for name in ("pipe", "socket", "."):
            with pytest.raises(OSError, match="no regular file"):
                open_evidence(tmp_path / name)


def test_file_that_grows_has_an_end(tmp_path: Path) -> None:
    path = tmp_path / "rank_1.log"
    path.write_bytes(ERROR)

    with open_evidence(path) as stream, path.open("ab") as more:
        read = stream.read(10)
        more.write(ERROR * 10_000)
        more.flush()
        read += stream.read()

    assert read == ERROR


def test_place_in_a_file_can_be_chosen(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 1000)

    with open_evidence(path) as stream:
        assert (stream.seek(-4, os.SEEK_END), stream.read()) == (255_996, b"\xfc\xfd\xfe\xff")
        assert (stream.seek(256), stream.read(2), stream.tell()) == (256, b"\0\1", 258)
        assert stream.read(300_000)[-1:] == b"\xff"


def test_sparse_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rank_1.log"
    with path.open("wb") as file:
        file.write(ERROR)
        file.truncate(1 << 40)

    with pytest.raises(OSError, match="sparse"):
        open_evidence(path)


def test_deep_folders_are_reached_without_a_path_that_is_too_long(tmp_path: Path) -> None:
    path = tmp_path
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(tmp_path)
        for _ in range(300):
            path /= "d" * 20
            Path("d" * 20).mkdir()
            os.chdir("d" * 20)
        Path("file").write_bytes(b"x")
        for _ in range(2):
            with open_evidence(path / "file") as stream:
                assert stream.read() == b"x"
    finally:
        os.fchdir(here)
        os.close(here)


def test_small_packed_file_cannot_be_large(tmp_path: Path) -> None:
    path = tmp_path / "rank_1.log.gz"
    block = gzip.compress(bytes(1 << 24))
    path.write_bytes(block * 64)

    with pytest.raises(ParseError, match="far larger"):
        read_content(path, limit=1 << 40)
    with open_content(path) as stream, pytest.raises(ParseError, match="far larger"):
        stream.read(1 << 40)


def test_a_path_is_settled_once(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")

    assert settle(tmp_path / "loop") == tmp_path / "loop"
    with pytest.raises(OSError, match="upwards"):
        open_evidence(tmp_path / ".." / "file")


def test_threads_that_read_evidence_leave_no_descriptor_behind(evidence: Path) -> None:
    def read() -> None:
        with open_evidence(evidence / "rank_1.log") as stream:
            assert stream.read() == ERROR

    def count() -> int:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    before = count()
    for _ in range(20):
        one = threading.Thread(target=read)
        one.start()
        one.join()

    assert count() == before
