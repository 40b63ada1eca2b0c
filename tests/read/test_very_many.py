"""Of what is very many, some is looked at, and the rest is told: failures, records, lines."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
from tests.diagnose.logs.config_logs import tell, trace

from whystuck.diagnose.logs.cases import MAKERS
from whystuck.diagnose.logs.cases.devices import device_memory
from whystuck.diagnose.logs.cases.resources import memory
from whystuck.diagnose.logs.story import ALOOF, LINKED, MAX_CASES, Story
from whystuck.diagnose.logs.view import LogView
from whystuck.guarded.evidence_files import open_evidence
from whystuck.parse.logs.compiled import LogTables
from whystuck.parse.logs.lines.times import SECOND, read_stamp
from whystuck.parse.logs.reader import LogReader
from whystuck.pipeline import diagnose_paths, read_evidence
from whystuck.read import run_listing, runs, tree

_CUT = "comparison of all failures in the logs"


def _fail_apart(ranks: int) -> str:
    """Write a log in which each rank fails at a line of its own."""
    return "".join(
        trace("ValueError: x", f"train.py:{rank + 1}", rank=rank) for rank in range(ranks)
    )


def test_of_very_many_failures_the_earliest_are_compared(tmp_path: Path) -> None:
    report = tell(tmp_path, {"train.log": _fail_apart(3 * MAX_CASES)})
    story = Story(LogView(read_evidence(tmp_path)), MAKERS)

    assert [gap.what for gap in report.gaps if gap.what == _CUT] == [_CUT]
    assert story.is_cut
    assert len(story.cases) == MAX_CASES
    assert {case.ranks for case in story.cases} == {(rank,) for rank in range(MAX_CASES)}


def test_as_many_failures_as_are_compared_are_no_gap(tmp_path: Path) -> None:
    report = tell(tmp_path, {"train.log": _fail_apart(MAX_CASES)})

    assert _CUT not in {gap.what for gap in report.gaps}


def _write_incident(folder: Path, number: int) -> None:
    incident = folder / "incidents" / f"{number:03}"
    incident.mkdir(parents=True)
    record = {"kind": "exit", "round": number, "command_exit": 1, "opened_ns": number + 1}
    (incident / "incident.json").write_text(json.dumps(record))
    (folder / "rounds" / str(number)).mkdir(parents=True)


def test_of_very_many_incidents_the_newest_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (runs, run_listing):
        monkeypatch.setattr(module, "MAX_RECORDS", 5)
    # The numbers count, and not the names: 1000 comes after 999.
    for number in (1, 2, 3, 4, 5, 6, 7, 999, 1000):
        _write_incident(tmp_path, number)
    report = diagnose_paths([tmp_path])

    assert report.job is not None
    assert report.job.folder == "incidents/1000"
    assert len(report.job.other_runs) == 4
    assert "look at all runs" in {gap.what for gap in report.gaps}


def test_few_incidents_and_a_folder_with_an_odd_number_are_no_gap(tmp_path: Path) -> None:
    _write_incident(tmp_path, 1)
    (tmp_path / "rounds" / "\N{SUPERSCRIPT TWO}").mkdir()
    (tmp_path / "incidents" / ("9" * 200)).mkdir()
    report = diagnose_paths([tmp_path])

    assert report.job is not None
    assert report.job.folder == "incidents/001"
    assert "look at all runs" not in {gap.what for gap in report.gaps}


def test_sources_are_kept_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "MAX_SOURCE_BYTES", 100)
    _write_incident(tmp_path, 1)
    for rank in range(3):
        sources = tmp_path / "incidents" / "001" / "n0" / f"rank-{rank}" / "sources"
        sources.mkdir(parents=True)
        names = {"/job/a.py": "a.py"} | ({"/job/b.py": "b.py"} if rank == 2 else {})
        (sources / "index.json").write_text(json.dumps({"files": names}))
        for name in names.values():
            (sources / name).write_text("x" * 80)
        (sources.parent / "exit.json").write_text('{"code":1,"pid":5}')
    evidence = read_evidence(tmp_path)

    # That of several ranks counts once.
    assert {path: len(text) for path, text in evidence.sources.items()} == {"/job/a.py": 80}
    assert [gap.what for gap in evidence.gaps] == ["sources"]


def test_of_each_end_of_a_log_so_many_lines_are_sampled() -> None:
    log = b"".join(b"step %d loss 1.0\n" % number for number in range(1, 1001))
    reader = LogReader(LogTables(), sampled=10)
    reader.feed(log)
    facts = reader.finish().facts

    assert facts.kinds.total() == 20
    assert set(facts.progress.values()) == {1000}


@pytest.mark.parametrize(
    ("text", "second"),
    [
        ("1970-01-02 00:00:01", 86401),
        ("1970-01-01 23:59:60", 86399),
        ("2024-02-29 00:00:00", 1709164800),
        ("2023-02-29 00:00:00", None),
        ("2026-01-01 24:00:00", None),
        ("2026-01-01 00:60:00", None),
        ("0000-01-01 00:00:00", None),
    ],
)
def test_times_are_those_of_days_that_there_are(text: str, second: int | None) -> None:
    stamp = read_stamp("iso", text)

    assert (stamp and stamp.ns) == (None if second is None else second * SECOND)


def test_a_stream_of_evidence_tells_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"0123456789" * 20_000)
    with open_evidence(path) as stream:
        stream.read(70_001)
        assert stream.tell() == 70_001
        stream.seek(-3, 2)
        assert (stream.tell(), stream.read()) == (199_997, b"789")


def _count_calls(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> list[object]:
    """Have a function of a module note its calls."""
    calls: list[object] = []
    real = getattr(module, name)

    def called(*args: object) -> object:
        calls.append(args)
        return real(*args)

    monkeypatch.setattr(module, name, called)
    return calls


def test_what_the_kernel_killed_is_looked_up_and_not_searched_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = "".join(
        f"[ {n}.000000] Out of memory: Killed process {9000 + n} (python) anon-rss:1kB\n"
        for n in range(200)
    )
    worker = "RuntimeError: DataLoader worker (pid 9007) is killed by signal: Killed. "
    raised = "".join(trace(f"ValueError: {n}", rank=n) for n in range(200))
    calls = _count_calls(monkeypatch, memory, "_list_worker_pids")
    logs = {"kern.log": kills, "train.log": raised + trace(worker, rank=3)}
    tell(tmp_path, logs)

    assert 0 < len(calls) <= 2 * 201
    cases = memory.make_host_memory(LogView(read_evidence(tmp_path)))
    assert (3,) in {case.ranks for case in cases}


def test_lines_about_device_memory_are_compared_with_the_last_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    job = "".join(f"[rank{n}]: caught {line}" for n in range(100))
    job += "".join(trace("ValueError: x", rank=n) for n in range(100))
    (tmp_path / "train.log").write_text(job)
    view = LogView(read_evidence(tmp_path))
    calls = _count_calls(monkeypatch, device_memory, "select_own")
    (case,) = device_memory.make_device_memory(view)

    assert len(calls) <= 1
    assert case.support == ALOOF
    # After the last failure of its rank, it is no longer survived.
    (tmp_path / "train.log").write_text(job + f"[rank7]: {line}")
    (case,) = device_memory.make_device_memory(LogView(read_evidence(tmp_path)))
    assert case.support == LINKED


def test_a_process_is_of_the_rank_that_its_host_has(tmp_path: Path) -> None:
    lines = (
        "n{0}:77:77 [{1}] NCCL INFO comm 0x1 rank {0} nranks 4 cudaDev {1} busId {2} commId 0x1 - "
        "Init COMPLETE\n"
    )
    text = "".join(lines.format(n, n, f"{n}b000") for n in range(4))
    (tmp_path / "job.log").write_text(
        text + "".join(f"[rank{n}]: ValueError: x\n" for n in range(4))
    )
    view = LogView(read_evidence(tmp_path))

    assert view.find_rank_of_pid(77) is None
    assert [view.find_rank_of_pid(77, f"n{n}.local") for n in range(4)] == [0, 1, 2, 3]
    assert view.find_rank_of_pid(78, "n1") is None
    assert view.find_ranks_of_bus("PCI:0000:2b:00", "n2") == {2}
    assert view.find_ranks_of_bus("PCI:0000:2b:00", "n3") == frozenset()
    assert view.find_ranks_of_bus("PCI:0000:2b:00", "") == {2}
