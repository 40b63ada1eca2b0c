"""What one analysis takes in has an end; what is left out is told, and nothing is healthy then."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest
from tests.parse.dumps.builders import as_pickle, make_config, make_dump, make_entry

from whystuck.evidence.finding import Gap, Report, Verdict
from whystuck.parse.errors import ParseError
from whystuck.pipeline import analyze_traces, diagnose_paths
from whystuck.read import budget, dump_files, log_files, tree
from whystuck.read.budget import Budget, Deadline
from whystuck.read.collected import Collected
from whystuck.read.content import FreeBytes, read_content, share_free
from whystuck.read.dump_files import DumpFile, RankFiles, read_dump_files
from whystuck.read.log_files import LogPath
from whystuck.read.pool import Progress

TRACE = (
    b'{"distributedInfo":{"rank":%d},"traceEvents":['
    b'{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":1}]}'
)


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    """Dumps of three ranks of a job in which nothing is pending."""
    config = make_config(**{"0": ("default_pg", [0, 1, 2])})
    for rank in range(3):
        entries = [make_entry(seq=seq, state="completed", retired=True) for seq in range(1, 4)]
        dump = as_pickle(make_dump(entries, pg_config=config))
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(dump)
    return tmp_path


@pytest.fixture
def is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no time from the start on."""
    monkeypatch.setattr(budget, "_BASE_S", -1000.0)


def _list_left_out(report: Report) -> Sequence[Gap]:
    return [gap for gap in report.gaps if "more were not read" in gap.reason]


def test_what_is_read_whole_is_healthy(dumps: Path) -> None:
    report = diagnose_paths([dumps])

    assert report.verdict is Verdict.HEALTHY
    assert _list_left_out(report) == []


def test_of_each_kind_so_many_files_are_read(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MAX_FILES", 3)
    for rank in range(5):
        (dumps / f"rank_{rank}.log").write_text("step 1 loss 2.0\n" * 9)
    report = diagnose_paths([dumps])

    (gap,) = _list_left_out(report)
    assert (gap.rank, gap.what) == (None, "log")
    assert gap.reason.startswith("2 more were not read: of one kind,")
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "flight recorder" in report.coverage.sources


def test_of_traces_so_many_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MAX_FILES", 2)
    for rank in range(5):
        (tmp_path / f"rank{rank}.json").write_bytes(TRACE % rank)
    report, read = analyze_traces([str(tmp_path)])

    assert [header.rank for header in read.summary.ranks] == [0, 1]
    (gap,) = _list_left_out(report)
    assert (gap.what, gap.reason[:20]) == ("trace", "3 more were not read")


@pytest.mark.usefixtures("is_late")
def test_past_the_deadline_no_file_is_read(dumps: Path) -> None:
    (dumps / "rank_0.log").write_text("step 1 loss 2.0\n" * 9)
    with pytest.raises(Exception, match="no readable evidence"):
        diagnose_paths([dumps])


@pytest.mark.parametrize("is_pooled", [False, True])
def test_what_is_late_is_told_by_its_kind(
    dumps: Path, monkeypatch: pytest.MonkeyPatch, *, is_pooled: bool
) -> None:
    incident = dumps / "n0" / "rank-0"
    incident.mkdir(parents=True)
    (incident / "ops.ring").write_bytes(b"WSOPS001")
    for rank in range(3):
        (dumps / f"rank_{rank}.log").write_text("step 1 loss 2.0\n" * 9)
        (dumps / f"rank{rank}.pt.trace.json").write_bytes(TRACE % rank)
    if is_pooled:
        for module in (dump_files, log_files):
            monkeypatch.setattr(module, "_POOL_FROM_BYTES", 0)
            monkeypatch.setattr(module, "_CHUNK_BYTES", 1)
        monkeypatch.setattr("whystuck.read.traces.local._POOL_FROM_RAW_BYTES", 0)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1}, raising=False)
    read_dumps = tree._read_dumps

    def read_late(found: Collected, progress: Progress | None) -> None:
        found.budget.deadline.add(1e9)
        read_dumps(found, progress)

    # All are listed in time.
    monkeypatch.setattr(tree, "_read_dumps", read_late)
    report = diagnose_paths([dumps])

    assert {gap.what: gap.reason.split(":")[0] for gap in _list_left_out(report)} == {
        "flight recorder dump": "3 more were not read",
        "log": "3 more were not read",
        "op log": "1 more were not read",
        "trace": "3 more were not read",
    }
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "no file of this rank was found" not in {gap.reason for gap in report.gaps}


class _OneWorker(Executor):
    """Does the first work that it is given, and begins no other."""

    def __init__(self) -> None:
        self.count = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = _Waiting()
        if not self.count:
            future.set_result(fn(*args, **kwargs))
        self.count += 1
        return future


class _Waiting(Future[Any]):
    def cancel(self) -> bool:
        return self.cancelled() or (super().cancel() and not self.set_running_or_notify_cancel())


def test_what_has_not_begun_in_time_is_cancelled(
    dumps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (dump_files, log_files):
        monkeypatch.setattr(module, "_CHUNK_BYTES", 1)
    monkeypatch.setattr(budget, "_BASE_S", 0.0)
    names = [f"nccl_trace_rank_{rank}" for rank in range(3)]
    files = [DumpFile(dumps / name, name) for name in names]
    read = read_dump_files(
        [RankFiles(rank, (file,)) for rank, file in enumerate(files)],
        executor=_OneWorker(),
        deadline=Deadline(),
    )
    logs = log_files.read_logs(
        [LogPath(file.path, file.artifact) for file in files],
        executor=_OneWorker(),
        deadline=Deadline(),
    )

    assert (len(read.tables), read.late) == (1, 2)
    assert (len(logs.table.logs.files), logs.late) == (1, 2)


def test_a_deadline_counts_cpu_and_grows_with_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "_BASE_S", 0.0)
    (tmp_path / "log").write_bytes(os.urandom(2_000_000))
    with (tmp_path / "holes").open("wb") as file:
        file.truncate(1 << 40)
    deadline = Deadline([tmp_path / "log", tmp_path / "holes", tmp_path / "gone"])

    assert Deadline().is_over
    assert not deadline.is_over
    deadline.add(3.0)
    assert not deadline.is_over
    deadline.add(30.0)
    assert deadline.is_over


def test_what_comes_out_of_all_packed_files_has_an_end(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.gz").write_bytes(gzip.compress(bytes(100_000)))
    free = FreeBytes(250_000)

    assert len(read_content(tmp_path / "0.gz", free=free)) == 100_000
    assert len(read_content(tmp_path / "1.gz", free=free)) == 100_000
    for number in (2, 3):
        with pytest.raises(ParseError, match="far larger than anything sound"):
            read_content(tmp_path / f"{number}.gz", free=free)
    # What packs as sound files do is no matter of it.
    (tmp_path / "noise.gz").write_bytes(gzip.compress(os.urandom(9_000).hex().encode()))
    assert len(read_content(tmp_path / "noise.gz", free=free)) == 18_000


def test_a_file_that_says_it_is_too_large_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"x")[:-4] + b"\xff\xff\xff\x7f")
    with pytest.raises(ParseError, match="it is cut off, or has more than 100 bytes"):
        read_content(path, 100)


def test_free_bytes_are_shared() -> None:
    assert share_free(0, 100) == 100
    assert share_free(4, 1 << 26, 1 << 27) == 1 << 25
    assert share_free(1 << 20, 1 << 26) == 1 << 20


def test_a_budget_tells_each_kind_once() -> None:
    one = Budget()
    one.leave_out("log", 0)
    assert not one.is_spent
    one.leave_out("log", 2)
    one.leave_out("log")
    assert one.is_spent
    assert one.list_gaps() == [
        Gap(None, "log", "3 more were not read: it takes too long to read all")
    ]
