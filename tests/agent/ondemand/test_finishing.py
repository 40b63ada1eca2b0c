from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from whystuck.agent.ondemand.finishing import (
    FinishError,
    Order,
    check_whole,
    finish,
    make_added,
    make_name,
)
from whystuck.agent.ondemand.raw_files import RawFile, make_raw_file, make_root, watch_path
from whystuck.agent.ondemand.reach import Reach, reach_own
from whystuck.evidence.agent import ProcessEntry
from whystuck.read.traces.files import read_trace_name

TRACE = """ {
    "schemaVersion": 1,
    "traceEvents": [
  { "ph": "X", "name": "a]", "args": { "Input Dims": [[1, 2], []] } },
  { "ph": "i", "name": "Record Window End", "ts": 4.5 }
  ],"traceName": "/tmp/a]}.json" }"""


def _order(source: Path, output: str, *, is_packed: bool = False) -> Order:
    added = {"distributedInfo": {"rank": 1, "world_size": 4}, "hostName": 'n"1'}
    return Order(
        reach_own(source), output, "job-rank1-n1-x.pt.trace.json", added, is_packed=is_packed
    )


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("text", [TRACE, '\n{"traceEvents":[]}', '{ "traceEvents" : [ ] }\n'])
def test_rank_and_world_are_added_and_nothing_else_is_touched(
    tmp_path: Path, text: str, is_packed: bool
) -> None:
    source = tmp_path / "raw" / "t.json"
    source.parent.mkdir()
    source.write_text(text)
    done = finish(_order(source, str(tmp_path / "out" / "deep"), is_packed=is_packed))
    data = Path(done.file).read_bytes()
    assert done.file_bytes == len(data)
    told = json.loads(gzip.decompress(data) if is_packed else data)
    added = {"distributedInfo": {"rank": 1, "world_size": 4}, "hostName": 'n"1'}
    assert told == {**added, **json.loads(text)}
    assert not source.exists()
    assert list((tmp_path / "out" / "deep").iterdir()) == [Path(done.file)]


@pytest.mark.parametrize("cut", [*range(1, 60), len(TRACE) - 2, len(TRACE) - 30])
def test_trace_that_was_cut_is_told_and_kept(tmp_path: Path, cut: int) -> None:
    source = tmp_path / "t.json"
    source.write_text(TRACE[:-cut])
    assert check_whole(reach_own(source))
    with pytest.raises(FinishError, match=r"cut short|no JSON"):
        finish(_order(source, str(tmp_path / "out")))
    assert source.read_text() == TRACE[:-cut]


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "t.json"
    for data in (b"", b"[1]", b"text", b"\x80\x04\x95"):
        source.write_bytes(data)
        assert check_whole(reach_own(source))
    source.write_text(TRACE)
    assert not check_whole(reach_own(source))
    link = tmp_path / "link.json"
    link.symlink_to(source)
    assert check_whole(reach_own(link)), "a link may lead to a file of somebody else"
    os.mkfifo(tmp_path / "pipe.json")
    assert check_whole(reach_own(tmp_path / "pipe.json")) == "it is no regular file"


def test_file_that_cannot_be_put_there_is_kept(tmp_path: Path) -> None:
    source = tmp_path / "t.json"
    source.write_text(TRACE)
    (tmp_path / "file").write_text("")
    for output in (str(tmp_path / "file" / "below"), "nosuchstore://x/y"):
        with pytest.raises(FinishError, match="could not be put into"):
            finish(_order(source, output))
        assert source.read_text() == TRACE


def test_file_goes_to_any_store(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    source = tmp_path / "t.json"
    source.write_text(TRACE)
    done = finish(_order(source, "memory://bucket/traces"))
    assert done.file == "memory://bucket/traces/job-rank1-n1-x.pt.trace.json"
    with fsspec.open(done.file) as stream:
        assert json.load(stream)["distributedInfo"]["rank"] == 1


def test_large_trace_is_copied_in_pieces(tmp_path: Path) -> None:
    source = tmp_path / "t.json"
    event = '{ "ph": "X", "name": "op", "args": {"a": [1]} },\n'
    source.write_text(TRACE.replace('{ "ph": "X"', event * 80_000 + '{ "ph": "X"', 1))
    done = finish(_order(source, str(tmp_path / "out"), is_packed=True))
    told = json.loads(gzip.decompress(Path(done.file).read_bytes()))
    assert len(told["traceEvents"]) == 80_002
    assert told["distributedInfo"]["world_size"] == 4


def test_names_tell_the_rank_and_hold_nothing_strange() -> None:
    entry = ProcessEntry(pid=77, rank=12, job="../a b/c", node="n 1/x")
    assert make_name(entry, "id") == "a_b_c-rank12-n_1_x-id.pt.trace.json"
    assert read_trace_name(make_name(entry, "id")).rank == 12
    plain = ProcessEntry(pid=77, node="n1")
    assert make_name(plain, "id") == "pid77-n1-id.pt.trace.json"
    assert read_trace_name(make_name(plain, "id")).rank == -1
    assert make_added(plain) == {"hostName": "n1"}
    assert make_added(ProcessEntry(pid=1)) == {}


def test_file_of_a_trace_is_found_under_any_name_in_its_folder(tmp_path: Path) -> None:
    root = make_root(tmp_path / "raw")
    raw = make_raw_file(root, "id-7", pid=7, host_pid=os.getpid(), probe=False)
    assert raw.look() == (-1, -1)
    folder = Path(raw.path).parent
    (folder / "trace_7.json.tmp").write_text("")
    assert raw.look() == (0, -1)
    (folder / "trace_7.json.tmp").rename(folder / "trace_7.json")
    assert raw.look() == (-1, 0)
    found = raw.find()
    assert found is not None
    assert found.path == str(folder / "trace_7.json")
    raw.remove()
    assert not folder.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="traces a process of another user, which root can")
@pytest.mark.parametrize(("before", "after"), [(0o700, 0o711), (0o1777, 0o1777), (0o755, 0o755)])
def test_job_of_another_user_can_write_and_the_folder_stays_open(
    tmp_path: Path, before: int, after: int
) -> None:
    command = [sys.executable, "-c", "import os; os.setuid(12345); print(1, flush=True); input()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as job:
        assert job.stdout
        assert job.stdout.readline() == b"1\n"
        tmp_path.chmod(before)
        raw = make_raw_file(tmp_path, "id-7", pid=job.pid, host_pid=job.pid, probe=False)
        job.communicate(b"\n")

    assert tmp_path.stat().st_mode & 0o7777 == after
    assert Path(raw.path).parent.stat().st_uid == 12345


def test_file_that_lay_there_before_is_not_the_new_one(tmp_path: Path) -> None:
    old = tmp_path / "deep" / "t_7.json"
    first = watch_path(str(tmp_path / "deep" / "t.json"), pid=7, host_pid=os.getpid())
    assert first.look() == (-1, -1)
    old.write_text("old")
    assert first.look() == (-1, 3)
    second = watch_path(str(tmp_path / "deep" / "t.json"), pid=7, host_pid=os.getpid())
    assert second.look() == (-1, -1)
    (tmp_path / "deep" / "t_7.json.tmp").write_text("newer")
    assert second.look() == (5, -1)
    (tmp_path / "deep" / "t_7.json.tmp").rename(old)
    assert second.look() == (-1, 5)
    second.remove()
    assert old.exists(), "it is the user's folder"


def test_container_has_a_tmp_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    raw = RawFile(str(folder / "trace.json"), folder, 7, Reach(os.getpid()))
    assert raw.look() == (-1, -1)
    folder.mkdir()
    (folder / "trace_7.json").write_text("x")
    assert raw.look() == (-1, 1)
