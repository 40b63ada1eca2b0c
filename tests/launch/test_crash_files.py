"""What is written when a job ends badly: logs by attempt, `fault.log`, the state of the node."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from whystuck.evidence.finding import Confidence, Finding, Gap, Report, Severity, Verdict
from whystuck.evidence.nodes.records import ClaimsRecord, HostRecord, MemoryRecord
from whystuck.evidence.records import ExitEntry, IncidentRecord, JobRecord
from whystuck.launch import jobdir
from whystuck.launch.incidents.fault_log import FaultLog
from whystuck.launch.incidents.folder import EvidenceFolder
from whystuck.launch.incidents.keeper import IncidentKeeper
from whystuck.launch.incidents.torch_files import TorchFiles
from whystuck.launch.node_watch import NodeWatch
from whystuck.launch.options import RunOptions
from whystuck.launch.output.logfile import LogFile
from whystuck.launch.output.rank_logs import RankLogs
from whystuck.launch.processes.rank_table import RankProcess, RankTable
from whystuck.pipeline import read_evidence
from whystuck.read.round_logs import find_round_files

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S.*")


def _process(rank: int, pid: int, attempt: int = 0, *, is_twin: bool = False) -> RankProcess:
    return RankProcess(rank, pid, is_member=True, attempt=attempt, pidfd=None, is_twin=is_twin)


# ------------------------------------------------------------------------------------- logs


def test_log_of_an_attempt_is_renamed_when_the_next_begins(tmp_path: Path) -> None:
    evidence = EvidenceFolder(tmp_path, "n0")
    logs = RankLogs(evidence, RankTable(tmp_path, "n0"))
    first, second = _process(1, 10), _process(1, 11, attempt=1)
    logs.find(first).write("out", b"one\n")
    logs.find(second).write("out", b"two\n")
    logs.find(first).write("err", b"late\n")  # what is still in the pipe
    logs.close()
    folder = evidence.rank_dir(1)
    assert logs.find(first).path == folder / "log-attempt-0.txt"
    assert logs.find(second).path == folder / "log.txt"
    assert (folder / "log-attempt-0.txt").read_text().count("\n") == 2, "opened once more"
    assert (folder / "log.txt").read_text().endswith(" out two\n")


def test_log_of_a_twin_is_apart(tmp_path: Path) -> None:
    evidence = EvidenceFolder(tmp_path, "n0")
    logs = RankLogs(evidence, RankTable(tmp_path, "n0"))
    for pid in (10, 11):
        logs.find(_process(1, pid, is_twin=pid == 11)).write("out", b"%d\n" % pid)
    logs.close()
    assert sorted(path.name for path in evidence.rank_dir(1).iterdir()) == [
        "log-pid-11.txt",
        "log.txt",
    ]


def test_log_of_a_process_that_nobody_knows(tmp_path: Path) -> None:
    evidence = EvidenceFolder(tmp_path, "n0")
    with pytest.raises(KeyError):
        RankLogs(evidence, RankTable(tmp_path, "n0")).of_pid(1)


def test_log_that_was_never_written_can_be_moved(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log.txt")
    log.move(tmp_path / "log-attempt-0.txt")
    log.write("out", b"one\n")
    log.close()
    assert [path.name for path in tmp_path.iterdir()] == ["log-attempt-0.txt"]


# ------------------------------------------------------- the logs of a round and an incident


def _write(path: Path, text: str = "2026-01-31T12:00:00.000000Z out hello\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def _incident(root: Path, **record: Any) -> Path:
    folder = root / "incidents" / "000"
    folder.mkdir(parents=True)
    EvidenceFolder.write_incident(folder, IncidentRecord(kind="exit", **record))
    return folder


def _found(folder: Path, root: Path, **record: Any) -> tuple[list[str], list[str]]:
    logs = find_round_files(folder, IncidentRecord(kind="exit", **record))
    files = [path.relative_to(root).as_posix() for path in logs.files]
    return files, sorted(path.relative_to(folder).as_posix() for path in logs.replaced)


def test_logs_of_the_round_stand_for_their_ends(tmp_path: Path) -> None:
    folder = _incident(tmp_path, round=0, command_exit=1)
    for name in ("launcher.txt", "rank-0/log.txt", "rank-0/log.1.txt", "rank-0/exit.json"):
        _write(tmp_path / "rounds/0/n0" / name)
    _write(tmp_path / "rounds/1/n0/launcher.txt")
    files, replaced = _found(folder, tmp_path, round=0, command_exit=1)
    assert files == [
        "rounds/0/n0/launcher.txt",
        "rounds/0/n0/rank-0/log.1.txt",
        "rounds/0/n0/rank-0/log.txt",
    ]
    assert replaced == ["n0/launcher.txt", "n0/rank-0/log.txt"]


@pytest.mark.parametrize(
    ("attempt", "names"),
    [(0, ["log-attempt-0.txt"]), (1, []), (2, ["log-attempt-2.txt"]), (3, ["log.txt"])],
)
def test_logs_are_those_of_the_attempt(tmp_path: Path, attempt: int, names: list[str]) -> None:
    folder = _incident(tmp_path, round=0, command_exit=1)
    for name in ("log-attempt-0.txt", "log-attempt-2.txt", "log.txt"):
        _write(tmp_path / "rounds/0/n0/rank-0" / name)
    files, _ = _found(folder, tmp_path, round=0, command_exit=1, attempt=attempt)
    assert [Path(name).name for name in files] == names


@pytest.mark.parametrize("record", [{}, {"round": 0}, {"round": 0, "command_exit": 0}])
def test_logs_are_left_alone_when_the_end_was_not_bad(
    tmp_path: Path, record: dict[str, int]
) -> None:
    folder = _incident(tmp_path, **record)
    _write(tmp_path / "rounds/0/n0/launcher.txt")
    assert _found(folder, tmp_path, **record) == ([], [])


def test_logs_that_are_too_long_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whystuck.read.round_logs.MAX_BYTES", 10)
    folder = _incident(tmp_path, round=0, command_exit=1)
    _write(tmp_path / "rounds/0/n0/rank-0/log.txt")
    _write(folder / "n0/rank-0/log.txt")
    evidence = read_evidence(tmp_path)
    (gap,) = evidence.gaps
    assert gap.what == "logs of round 0"
    assert "only their ends are read" in gap.reason


def test_incident_that_was_copied_elsewhere_is_read_alone(tmp_path: Path) -> None:
    folder = _incident(tmp_path, round=0, command_exit=1)
    _write(folder / "n0/rank-0/log.txt", TRACE)
    evidence = read_evidence(folder)
    assert [item.artifact for item in evidence.exceptions] == ["n0/rank-0/log.txt"]
    assert evidence.gaps == ()


TRACE = """\
2026-01-31T12:00:00.000000Z err Traceback (most recent call last):
2026-01-31T12:00:00.000000Z err   File "/job/train.py", line 7, in step
2026-01-31T12:00:00.000000Z err     raise ValueError("bad batch")
2026-01-31T12:00:00.000000Z err ValueError: bad batch
"""


def test_citations_lead_to_the_logs_of_the_round(tmp_path: Path) -> None:
    folder = _incident(tmp_path, round=0, command_exit=1)
    _write(tmp_path / "rounds/0/n0/rank-0/log.txt", TRACE)
    _write(folder / "n0/rank-0/log.txt", TRACE)
    for base in (tmp_path, folder):
        (item,) = read_evidence(base).exceptions
        assert (base / item.artifact).resolve() == tmp_path / "rounds/0/n0/rank-0/log.txt"
        assert not Path(item.artifact).is_absolute()


# -------------------------------------------------------------------------------- fault.log


def test_fault_log_has_a_section_for_each_round(tmp_path: Path) -> None:
    table = RankTable(tmp_path, "n0")
    for command in (["torchrun", "a.py"], ["torchrun", "b\nc.py"]):
        log = FaultLog(EvidenceFolder(tmp_path, "n0"))
        log.start_round(command)
        log.note_ranks(table)
        table.torch_version, table.python_version = "2.13.0", "3.11.7"
        log.note_ranks(table)
        log.note_ranks(table)
        for pid, entry in enumerate((ExitEntry(code=0), ExitEntry(code=3), ExitEntry(signal=9))):
            process = _process(pid, pid)
            process.exit = entry
            log.note_end(process)
        log.end_round(1)
    lines = (tmp_path / "fault.log").read_text().splitlines()
    assert all(LINE.fullmatch(line) for line in lines)
    texts = [line[20:] for line in lines]
    assert texts.count("PyTorch Version: 2.13.0") == 2
    assert texts.count("Rank 1 (pid 1) ended: 3") == 2
    assert texts.count("Rank 2 (pid 2) ended by SIGKILL") == 2
    assert not any("Rank 0" in text for text in texts)
    starts = [text for text in texts if text.startswith("Start of round")]
    assert starts == ["Start of round 0: torchrun a.py", "Start of round 1: torchrun b c.py"]
    assert texts[-1] == "Round 1 ends with code 1."


def test_fault_log_tells_a_verdict_and_the_incident_has_its_section(tmp_path: Path) -> None:
    evidence = EvidenceFolder(tmp_path, "n0")
    evidence.note("an older round")
    evidence = EvidenceFolder(tmp_path, "n0")
    log = FaultLog(evidence)
    log.start_round(["true"])
    finding = Finding(
        code="C201", name="process-killed", severity=Severity.ERROR,
        confidence=Confidence.CERTAIN, summary="rank 3 ended by SIGKILL",
    )  # fmt: skip
    folder = evidence.next_incident()
    log.note_report(folder, Report(verdict=Verdict.CRASHED, findings=[finding]))
    section = (folder / "fault.log").read_text()
    assert "an older round" not in section
    assert "error: C201 process-killed (certain): rank 3 ended by SIGKILL" in section
    assert f"Report: {folder}/report.txt" in section
    assert (tmp_path / "fault.log").read_text().endswith(section)


def test_fault_log_of_very_many_ends_is_short(tmp_path: Path) -> None:
    log = FaultLog(EvidenceFolder(tmp_path, "n0"))
    for rank in range(500):
        process = _process(rank, rank)
        process.exit = ExitEntry(code=1)
        log.note_end(process)
    assert len((tmp_path / "fault.log").read_text().splitlines()) == 65


# -------------------------------------------------------------------------------- the node


def test_node_watch_writes_what_it_knows(tmp_path: Path) -> None:
    evidence, table = EvidenceFolder(tmp_path / "ev", "n0"), RankTable(tmp_path, "n0")
    table.add(rank=1, pid=os.getpid(), world_size=2, is_member=False)
    table.add(rank=1, pid=os.getppid(), world_size=3, is_member=True)
    watch = NodeWatch(evidence, table)
    watch.start()
    watch.look(0.0)
    folder = evidence.next_incident()
    watch.write_incident(folder, table.processes())
    watch.close()
    node = folder / "n0"
    host = msgspec.json.decode((node / "host.json").read_bytes(), type=HostRecord)
    assert host.start is not None
    assert host.end is not None
    assert host.end.time_ns > host.start.time_ns
    claims = msgspec.json.decode((node / "ranks.json").read_bytes(), type=ClaimsRecord).claims
    assert [(one.rank, one.pid, one.world_size) for one in claims] == [
        (1, os.getpid(), 2),
        (1, os.getppid(), 3),
    ]
    assert claims[0].parent_pid == os.getppid()
    memory = msgspec.json.decode((node / "rank-1/memory.json").read_bytes(), type=MemoryRecord)
    assert memory.pid == os.getppid()  # the one that is a member
    assert memory.points[0][1] > 0
    read = read_evidence(folder)
    assert (len(read.memory), len(read.hosts), len(read.claims)) == (1, 2, 2)
    assert read.topology.node_by_rank == {1: "n0"}


class BrokenWatch(NodeWatch):
    """One in which everything fails."""

    def write_incident(self, folder: Path, processes: object) -> list[Gap]:
        raise ZeroDivisionError


def test_incident_is_reported_although_the_node_cannot_be_looked_at(tmp_path: Path) -> None:
    evidence, table = EvidenceFolder(tmp_path / "ev", "n0"), RankTable(tmp_path, "n0")
    table.add(rank=0, pid=2**22 + 1, world_size=1, is_member=True)
    (process,) = table.processes()
    process.exit = ExitEntry(pid=process.pid, signal=int(signal.SIGKILL))
    options = RunOptions(command=["true"], evidence=tmp_path / "ev")
    said: list[str] = []
    keeper = IncidentKeeper(
        options, evidence, table, said.append, TorchFiles(evidence, options, table, said.append),
        BrokenWatch(evidence, table), RankLogs(evidence, table), FaultLog(evidence),
        JobRecord(command=["true"]), lambda *_: None,
    )  # fmt: skip
    keeper.close_exit(IncidentRecord(kind="exit", world_size=1, command_exit=137))
    report = json.loads((tmp_path / "ev/incidents/000/report.json").read_text())
    assert report["findings"][0]["code"] == "C201"
    assert [gap["what"] for gap in report["gaps"] if "ZeroDivisionError" in gap["reason"]] == [
        "state of the node"
    ]


def test_job_folder_leaves_a_small_shared_memory_to_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobdir, "_MIN_ROOM_BYTES", 1 << 62)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with jobdir.make_job_dir() as folder:
        assert folder.parent == tmp_path
        assert folder in jobdir.list_job_dirs()


# ------------------------------------------------------------------------- the table of ranks


@contextmanager
def _claimed(table: RankTable, rank: int, script: str) -> Iterator[RankProcess]:
    """Start a process that claims a rank, and run its script to the end when the block is left."""
    with subprocess.Popen(["sh", "-c", f"read _; {script}"], stdin=subprocess.PIPE) as process:
        table.add(rank=rank, pid=process.pid, world_size=2, is_member=True)
        known = table.find(process.pid)
        assert known is not None
        yield known
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
        while known.is_alive:
            time.sleep(0.01)


def test_job_of_which_a_rank_has_failed_is_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not move then is no stall: the launcher ends it, by SIGKILL in the end."""
    table = RankTable(tmp_path, "n0")
    table.start()
    begin_ns = time.time_ns()
    with _claimed(table, 0, "exit 0"):
        pass
    assert not table.is_ending()
    assert not table.has_failed_before(time.time_ns())
    with _claimed(table, 1, "exit 3"):
        pass
    assert table.is_ending()
    assert table.has_failed_before(time.time_ns())
    assert not table.has_failed_before(begin_ns)
    monkeypatch.setattr("whystuck.launch.processes.rank_table._ENDING_S", 0.0)
    assert not table.is_ending(), "a launcher that does not end the others leaves a stall"


def test_rank_that_said_that_it_fails_is_no_echo_of_the_first_to_end(tmp_path: Path) -> None:
    table = RankTable(tmp_path, "n0")
    table.start()
    with (
        _claimed(table, 2, "exit 1") as echo,
        _claimed(table, 1, "exit 1") as second,
        _claimed(table, 0, "exit 1") as first,
    ):
        table.note_failing(first.pid)
        table.note_failing(second.pid)
        table.note_failing(2**22 + 1)
    ended = [one.exit for one in (first, second, echo) if one.exit is not None]
    ends = [(entry.failed_ns > 0, entry.after_launcher_kill) for entry in ended]
    assert ends == [(True, False), (True, False), (False, True)]
