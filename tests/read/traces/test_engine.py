"""The engines: what they tell of traces is the same, and a lost worker loses nothing."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.tracing.data import make_event

from whystuck.evidence.errors import UsageError
from whystuck.evidence.table import Table
from whystuck.evidence.traces.options import TraceOptions
from whystuck.evidence.traces.tables import TraceSummary
from whystuck.guarded.remote import MAX_FETCHED_BYTES
from whystuck.pipeline import map_traces, read_traces
from whystuck.read.traces.cluster import DaskEngine
from whystuck.read.traces.engines import choose_engine
from whystuck.read.traces.local import LocalEngine, bound_copies, choose_next, size_of_copy
from whystuck.read.traces.mapping import MapTask
from whystuck.read.traces.memory import choose_budget, estimate_peak, estimate_raw, parse_size
from whystuck.read.traces.plan import ReadPlan


def write_trace(path: Path, rank: int, kernels: int = 40) -> Path:
    events = []
    for number in range(kernels):
        start = number * 30.0
        link = {"correlation": number + 1}
        events.append(make_event("cuda_runtime", "cudaLaunchKernel", start, 5, **link))
        name = "ncclDevKernel_AllReduce" if number % 4 == 0 else f"gemm_{number % 7}"
        us = 10.125 + rank + number % 3
        events.append(make_event("kernel", name, start + 7, us, device=0, stream=7, **link))
    root = {
        "schemaVersion": 1,
        "distributedInfo": {"rank": rank, "world_size": 8},
        "traceEvents": events,
    }
    path.write_bytes(gzip.compress(json.dumps(root).encode()))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Traces of six ranks."""
    made = tmp_path / "traces"
    made.mkdir()
    for rank in range(6):
        write_trace(made / f"{rank}.json.gz", rank)
    return made


def as_bytes(summary: TraceSummary) -> dict[str, dict[str, object]]:
    """Every bit of every table."""
    return {
        name: {
            key: column.tolist() if column.dtype == object else (column.dtype, column.tobytes())
            for key, column in table.columns.items()
        }
        for name, table in summary.tables.items()
    }


class Sink:
    """Keeps what would be written."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int]] = []

    def write_rows(self, name: str, table: Table) -> None:
        self.rows.append((name, len(table)))


def force_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have even small files read by processes of their own."""
    monkeypatch.setattr("whystuck.read.traces.local._POOL_FROM_RAW_BYTES", 0)


PLAN = ReadPlan(options=TraceOptions(tables=("launches",)))


def test_processes_tell_the_same_as_this_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = read_traces([str(folder)], PLAN)
    force_pool(monkeypatch)
    pooled = read_traces([str(folder)], replace(PLAN, engine=LocalEngine(workers=2)))

    assert [header.rank for header in here.summary.ranks] == list(range(6))
    assert as_bytes(pooled.summary) == as_bytes(here.summary)
    assert pooled.summary.ranks == here.summary.ranks


def test_rows_of_events_go_to_the_sink_by_rank_and_are_not_held(folder: Path) -> None:
    sink = Sink()

    read = read_traces([str(folder)], PLAN, sink=sink)

    assert [row for row in sink.rows if row[0] == "launches"] == [("launches", 40)] * 6
    assert "launches" not in read.summary.tables
    kept = read_traces([str(folder)], replace(PLAN, keep_rows=True))
    assert len(kept.summary.tables["launches"]) == 240


def test_partials_are_made_once_and_reduced_elsewhere(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "partials"
    plan = replace(PLAN, partials=str(place))
    direct = read_traces([str(folder)], PLAN)

    first = map_traces([str(folder)], plan)
    made = {path: path.stat().st_mtime_ns for path in place.iterdir()}
    # WHEN one more trace has come, and one partial was cut off
    write_trace(folder / "6.json.gz", 6)
    (spoilt, *_) = sorted(made)
    spoilt.write_bytes(spoilt.read_bytes()[:50])
    second = map_traces([str(folder)], plan)
    (folder / "6.json.gz").unlink()

    assert (first.files, first.kept) == (6, 0)
    assert (second.files, second.kept) == (7, 5)
    assert {p: p.stat().st_mtime_ns for p in made if p != spoilt} == {
        p: t for p, t in made.items() if p != spoilt
    }
    again = read_traces([str(place)], PLAN)
    assert len(again.summary.ranks) == 7
    by_rank = [one for one in again.summary.ranks if one.rank < 6]
    assert [one.started_ns for one in by_rank] == [one.started_ns for one in direct.summary.ranks]
    full = read_traces([str(folder)], plan)
    assert (full.files, full.kept) == (6, 6)
    assert as_bytes(full.summary) == as_bytes(direct.summary)


def test_other_content_or_options_make_another_partial(folder: Path, tmp_path: Path) -> None:
    plan = replace(PLAN, partials=str(tmp_path / "p"))
    map_traces([str(folder)], plan)
    write_trace(folder / "0.json.gz", 0, kernels=41)

    assert map_traces([str(folder)], plan).kept == 5
    other = replace(plan, options=TraceOptions(comm_patterns=("gemm_1",)))
    assert map_traces([str(folder)], other).kept == 0


def test_partials_of_other_options_are_not_mixed(folder: Path, tmp_path: Path) -> None:
    place = str(tmp_path / "p")
    map_traces([str(folder)], replace(PLAN, partials=place))

    with pytest.raises(UsageError, match="other options"):
        read_traces([place], ReadPlan(options=TraceOptions(all_steps=True)))


def test_a_partial_without_tables_that_are_asked_for_is_enough(
    folder: Path, tmp_path: Path
) -> None:
    map_traces([str(folder)], ReadPlan(partials=str(tmp_path / "p")))
    sink = Sink()

    read = read_traces([str(tmp_path / "p")], PLAN, sink=sink)

    assert len(read.summary.ranks) == 6
    assert "launches" not in dict(sink.rows)


# A worker that is killed, as by the kernel when memory is short, while it reads one file.
DEADLY = """
import json, os, sys
sys.path[:] = json.loads(sys.argv.pop(1))
from pathlib import Path
from whystuck.read.traces import worker
run, left = worker.run_task, Path({left!r})
def run_task(data):
    if {target!r} in data and left.stat().st_size:
        left.write_text(left.read_text()[1:])
        os.kill(os.getpid(), 9)
    return run(data)
worker.run_task = run_task
worker.main()
"""


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_killed_worker_loses_at_most_its_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: int
) -> None:
    force_pool(monkeypatch)
    expected = read_traces([str(folder)], PLAN)
    left = tmp_path / "left"
    left.write_text("x" * deaths)
    code = DEADLY.format(left=str(left), target=b"3.json.gz")
    monkeypatch.setattr("whystuck.read.traces.local._START", code)

    read = read_traces([str(folder)], replace(PLAN, engine=LocalEngine(workers=2)))

    assert left.read_text() == ""
    if deaths == 1:
        assert as_bytes(read.summary) == as_bytes(expected.summary)
        assert read.gaps == []
        return
    assert [header.rank for header in read.summary.ranks] == [0, 1, 2, 4, 5]
    (gap,) = read.gaps
    assert (gap.rank, gap.reason) == (
        3, "3.json.gz: the process that read it was killed twice, perhaps for lack of memory"
    )  # fmt: skip


@pytest.mark.slow
def test_a_file_that_unpacks_without_end_is_a_gap(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_pool(monkeypatch)
    # GIVEN 3 GB of one text, packed to 3 MB: more than the worker may take
    piece = b"x" * (1 << 20)
    with gzip.open(folder / "rank9.json.gz", "wb", compresslevel=1) as stream:
        stream.write(b'{"traceEvents": [{"ph": "X", "name": "')
        for _ in range(3000):
            stream.write(piece)

    read = read_traces([str(folder)], replace(PLAN, engine=LocalEngine(2, 256 << 20)))

    assert [header.rank for header in read.summary.ranks][:6] == list(range(6))
    assert read.peak_bytes < 1400 << 20
    assert [gap.rank for gap in read.gaps] == [9]


def test_large_files_are_read_fewer_at_once() -> None:
    needs = [2_000, 900, 200, 200]

    # Over the budget: alone. Beside 900, nothing that needs more than what is left.
    assert choose_next([0, 1, 2, 3], [], needs, 1_000) == 0
    assert choose_next([1, 2, 3], [0], needs, 1_000) is None
    assert choose_next([2, 3], [1], needs, 1_000) is None
    assert choose_next([1, 2, 3], [3], needs, 1_000) == 1
    assert choose_next([2], [1], needs, 1_100) == 0


def test_copies_of_files_behind_urls_have_one_limit_for_all_workers(tmp_path: Path) -> None:
    # GIVEN sizes that are told, that are lies, and that nobody knows
    sizes = {"s3://b/one": 3 << 30, "s3://b/two": 2 << 30, "s3://b/lie": 1 << 62, "s3://b/none": 0}
    sizes |= {"s3://b/few": 1, str(tmp_path / "here"): 9 << 30}
    tasks = bound_copies([MapTask(place=p, artifact=p, size_bytes=s) for p, s in sizes.items()], 8)
    copies = [size_of_copy(task) for task in tasks]

    most = MAX_FETCHED_BYTES
    assert copies == [3 << 30, 2 << 30, most, most // 8, 64 << 20, 0]
    assert [task.fetch_bytes for task in tasks][:5] == copies[:5]
    # THEN no more are fetched at once than have room, and others go on beside them
    needs = [1] * len(tasks)
    assert choose_next([1, 2, 3, 4, 5], [0], needs, 99, copies) == 2
    assert choose_next([1, 2], [0], needs, 99, copies) is None
    assert choose_next([0, 5], [2], needs, 99, copies) == 1
    assert choose_next([2], [], needs, 99, copies) == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [("1G", 1 << 30), ("1.5GB", 3 << 29), ("512MiB", 1 << 29), (str(1 << 30), 1 << 30)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "lots", "-1G", "1M", "1e9", "5 apples"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        parse_size(text)


def test_the_budget_is_less_than_what_is_free() -> None:
    assert 0 < choose_budget() <= max(256 << 20, psutil.virtual_memory().available)


def test_packed_files_are_estimated_by_their_content(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b" " * 10_000_000))

    assert estimate_raw(path) == 10_000_000
    assert estimate_peak(10_000_000) > estimate_peak(0) > 0
    assert estimate_raw(tmp_path / "nothing") == 0


@pytest.mark.parametrize(
    "name",
    ["", "locally", "dask://", "dask://host", "dask://host:x", "ray://host:1", "dask://a b:1"],
)
def test_engines_that_are_none(name: str) -> None:
    with pytest.raises(UsageError, match="there is no engine"):
        choose_engine(name)


def test_engines() -> None:
    assert choose_engine("dask://head-node:8786") == DaskEngine("tcp://head-node:8786")
    assert choose_engine("dask+tls://[::1]:1") == DaskEngine("tls://[::1]:1")
    assert choose_engine("local", "2G", 3) == LocalEngine(3, 2 << 30)
    with pytest.raises(UsageError, match="local engine"):
        choose_engine("dask://h:1", "2G")


def test_no_scheduler_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whystuck.read.traces.cluster._CONNECT_TIMEOUT_S", 1)

    with pytest.raises(UsageError, match="no Dask scheduler answers at tcp"):
        list(DaskEngine("tcp://127.0.0.1:9").map([MapTask(place="x", artifact="x")]))


@contextmanager
def dask_cluster(scratch: Path, *, path: str | None = None) -> Iterator[str]:
    """A scheduler and a worker, each a process of its own."""
    ready = scratch / "scheduler.json"
    environment = {**os.environ, "DASK_LOGGING__DISTRIBUTED": "error"}
    started: list[psutil.Popen] = []

    def start(module: str, *arguments: str) -> None:
        code = f"from distributed.cli.{module} import main; main()"
        if path is not None:
            # As where whystuck is not installed: an import of it fails.
            code = f"import sys; sys.modules['whystuck'] = None; {code}"
        started.append(
            psutil.Popen(
                [sys.executable, "-c", code, *arguments, "--no-dashboard"],
                env=environment, cwd=scratch, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
        )  # fmt: skip

    try:
        start(
            "dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(ready)
        )
        end = time.monotonic() + 60
        while not (ready.exists() and ready.read_text().strip()):
            assert time.monotonic() < end
            time.sleep(0.05)
        address = json.loads(ready.read_text())["address"]
        start("dask_worker", address, "--nthreads", "1", "--no-nanny",
              "--local-directory", str(scratch / "local"))  # fmt: skip
        yield address
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_cluster_tells_the_same_bit_for_bit(folder: Path, tmp_path: Path) -> None:
    (folder / "bad.json").write_text('{"schemaVersion": 1, "deviceProperties": []}')
    here = read_traces([str(folder)], PLAN)

    with dask_cluster(tmp_path) as address:
        there = read_traces([str(folder)], replace(PLAN, engine=DaskEngine(address)))
        plan = replace(PLAN, engine=DaskEngine(address), partials=str(tmp_path / "p"))
        kept = [read_traces([str(folder)], plan).kept for _ in range(2)]

    assert as_bytes(there.summary) == as_bytes(here.summary)
    assert there.summary.ranks == here.summary.ranks
    assert there.gaps == here.gaps
    assert len(there.gaps) == 1
    assert kept == [0, 6]


@pytest.mark.slow
def test_workers_without_whystuck_are_a_clear_error(folder: Path, tmp_path: Path) -> None:
    with (
        dask_cluster(tmp_path, path="") as address,
        pytest.raises(UsageError, match="has no whystuck") as problem,
    ):
        read_traces([str(folder)], replace(PLAN, engine=DaskEngine(address)))

    assert "pip install whystuck==" in problem.value.hint
