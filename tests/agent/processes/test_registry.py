from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.fabric.clients import until

from whystuck.agent.interfaces import FabricPoll
from whystuck.agent.processes import registry as registry_module
from whystuck.agent.processes.registry import SILENT_NS, ProcessRegistry
from whystuck.collect.beats import LAYOUT, MAGIC
from whystuck.collect.processes.proc_files import read_start
from whystuck.evidence.agent import ProcessEntry, ProcessKind, TraceRequest

CHILD = """
import os, subprocess, sys
print("ready", os.getpid(), flush=True)
for line in sys.stdin:
    if not line.strip():
        break
    name, *pairs = line.split()
    if name == "exec":
        os.execve(sys.executable, [sys.executable, *pairs], dict(os.environ, RANK="9"))
    environment = dict(os.environ, **dict(pair.split("=") for pair in pairs))
    child = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, env=environment)
"""


class Processes:
    """Real processes with a given environment, each of which can start some below it."""

    def __init__(self, folder: Path) -> None:
        self._script = folder / "child.py"
        self._script.write_text(CHILD)
        self._started: dict[int, subprocess.Popen[bytes]] = {}
        self._pipes: dict[int, Any] = {}

    def start(self, **environment: str) -> int:
        command = [sys.executable, str(self._script)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment)
        assert process.stdout
        pid = int(process.stdout.readline().split()[1])
        self._started[pid] = process
        self._pipes[pid] = process.stdout
        return pid

    def tell(self, pid: int, line: str) -> int:
        """Have a process start one below it; returns its pid."""
        process = self._started[pid]
        assert process.stdin
        process.stdin.write(f"{line}\n".encode())
        process.stdin.flush()
        return int(self._pipes[pid].readline().split()[1])

    def end(self, pid: int) -> None:
        process = self._started.pop(pid)
        process.kill()
        process.communicate()

    def close(self) -> None:
        for pid in list(self._started):
            self.end(pid)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path)
    yield made
    made.close()


@pytest.fixture
def registry() -> Iterator[ProcessRegistry]:
    made = ProcessRegistry(node="n1")
    yield made
    made.close()


def _poll(pid: int, address: str = "", **values: Any) -> FabricPoll:
    given: dict[str, Any] = {
        "address": address or f"/k/client{pid}",
        "told_pids": (pid,),
        "job_number": 0,
        "wants": 3,
        "time_ns": time.time_ns(),
    }
    return FabricPoll(pid=pid, uid=os.getuid(), **(given | values))


def _note(registry: ProcessRegistry, poll: FabricPoll) -> ProcessEntry:
    pid = registry.note(poll).pid
    (found,) = [entry for entry in registry.list_all() if entry.pid == pid]
    assert pid < 0 or registry.find(pid) == found
    return found


def _pids(entries: list[ProcessEntry]) -> list[int]:
    return [entry.pid for entry in entries]


def test_rank_is_known_from_its_first_poll(processes: Processes, registry: ProcessRegistry) -> None:
    pid = processes.start(RANK="1", LOCAL_RANK="0", WORLD_SIZE="2", TORCHELASTIC_RUN_ID="job7")
    entry = _note(registry, _poll(pid, told_pids=(9, 8), wants=1))
    assert (entry.pid, entry.told_pids, entry.kind) == (pid, (9, 8), ProcessKind.RANK)
    assert (entry.rank, entry.local_rank, entry.world_size) == (1, 0, 2)
    assert (entry.job, entry.node, entry.steps) == ("job7", "n1", -1)
    assert entry.is_busy
    assert entry.can_answer
    later = _note(registry, _poll(pid, can_answer=False))
    assert later.first_seen_ns == entry.seen_ns < later.seen_ns
    assert (later.is_busy, later.can_answer) == (False, False)
    assert registry.find(pid) == later
    assert registry.list_all() == [later]
    assert registry.find(1) is None


def test_ranks_come_first_and_launchers_and_helpers_last(
    processes: Processes, registry: ProcessRegistry
) -> None:
    launcher = processes.start()
    second = processes.tell(launcher, "start RANK=1 LOCAL_RANK=1")
    first = processes.tell(launcher, "start RANK=0 LOCAL_RANK=0")
    alone = processes.start()
    rank = processes.start(RANK="0", LOCAL_RANK="0", TORCHELASTIC_RUN_ID="zz")
    helper = processes.tell(rank, "start A=1")
    for pid in (launcher, helper, alone, second, rank, first):
        registry.note(_poll(pid))
    entries = registry.match(TraceRequest())
    assert _pids(entries) == [first, second, rank, alone, launcher, helper]
    assert [entry.rank for entry in entries] == [0, 1, 0, -1, -1, 0]
    assert _pids(registry.match(TraceRequest(ranks=(1,)))) == [second]
    assert _pids(registry.match(TraceRequest(job="zz", ranks=(0,)))) == [rank, helper]


def test_pid_chooses_a_process_and_what_is_below_it(
    processes: Processes, registry: ProcessRegistry
) -> None:
    launcher = processes.start()
    below = processes.tell(launcher, "start A=1")
    other = processes.start()
    registry.note(_poll(below, told_pids=(7, 5), job_number=42))
    registry.note(_poll(other, told_pids=(8, 5)))

    def match(*pids: int, job: str = "") -> list[int]:
        return sorted(_pids(registry.match(TraceRequest(pids=pids, job=job))))

    assert match(below) == [below]
    assert match(launcher) == [below]
    assert match(7) == [below]
    assert match(5) == match(0) == match() == sorted([below, other])
    assert match(7, other) == sorted([below, other])
    assert match(123456789) == []
    # Ray names no job, and pids mean what they say.
    assert match(7, job="elsewhere") == [below]


def test_number_in_use_on_this_host_is_meant_as_such(
    processes: Processes, registry: ProcessRegistry
) -> None:
    pid, contained = processes.start(), processes.start()
    registry.note(_poll(pid))
    registry.note(_poll(contained, told_pids=(pid,)))
    assert _pids(registry.match(TraceRequest(pids=(pid,)))) == [pid]


def test_job_is_named_by_number_name_or_its_beginning(
    processes: Processes, registry: ProcessRegistry
) -> None:
    first = processes.start(TORCHELASTIC_RUN_ID="abc")
    second = processes.start(TORCHELASTIC_RUN_ID="abcd")
    third = processes.start()
    registry.note(_poll(first))
    registry.note(_poll(second))
    assert _note(registry, _poll(third, job_number=77)).job == "77"

    def match(job: str) -> list[int]:
        return sorted(_pids(registry.match(TraceRequest(job=job))))

    assert match("abc") == [first]
    assert match("abcd") == [second]
    assert match("ab") == sorted([first, second])
    assert match("77") == [third]
    assert match("x") == []


def test_two_containers_that_both_say_one_are_two(
    processes: Processes, registry: ProcessRegistry
) -> None:
    pids = [processes.start(), processes.start()]
    for pid in pids:
        registry.note(_poll(pid, told_pids=(1,)))
    assert sorted(_pids(registry.list_all())) == sorted(pids)
    assert sorted(_pids(registry.match(TraceRequest(pids=(1,))))) == sorted(pids)


def test_processes_outside_of_our_namespace_are_told_apart_by_their_sockets(
    registry: ProcessRegistry,
) -> None:
    for name in ("a", "b", "a"):
        entry = _note(registry, _poll(0, name, told_pids=(1,)))
        assert entry.pid < 0
    assert len(registry.list_all()) == 2
    assert len(registry.match(TraceRequest(pids=(1,)))) == 2


def test_process_that_has_just_gone_harms_nobody(registry: ProcessRegistry) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    registry.note(_poll(process.pid))
    entry = registry.find(process.pid)
    assert entry is not None
    assert entry.command == ""
    assert registry.list_all() == []


def test_another_program_in_the_same_process_is_read_anew(
    processes: Processes, registry: ProcessRegistry
) -> None:
    ended: list[int] = []
    registry.on_end = lambda entry: ended.append(entry.rank)
    pid = processes.start(RANK="1", LOCAL_RANK="1")
    assert _note(registry, _poll(pid, "/k/one")).rank == 1
    processes.tell(pid, f"exec {processes._script}")
    assert _note(registry, _poll(pid, "/k/two")).rank == 9
    assert ended == [1]
    assert len(registry.list_all()) == 1


def test_end_is_told_at_once(processes: Processes) -> None:
    async def go() -> None:
        ended: list[ProcessEntry] = []
        registry = ProcessRegistry(on_end=ended.append)
        pids = [processes.start(RANK=str(i), LOCAL_RANK=str(i)) for i in range(2)]
        for pid in pids:
            registry.note(_poll(pid))
        processes.end(pids[1])
        await until(lambda: bool(ended))
        assert [(one.pid, one.rank) for one in ended] == [(pids[1], 1)]
        assert _pids(registry.list_all()) == [pids[0]]
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are all that is wanted
        registry.close()
        assert len(os.listdir("/proc/self/fd")) == before - 1  # noqa: PTH208 - as above
        assert registry.list_all() == []

    asyncio.run(go())


def test_end_is_found_without_the_kernel_telling(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "_SWEEP_S", 0.01)

    def refuse(_pid: int) -> int:
        raise OSError(24, "too many open files")

    async def go() -> None:
        monkeypatch.setattr(os, "pidfd_open", refuse)
        ended: list[int] = []
        registry = ProcessRegistry(on_end=lambda entry: ended.append(entry.pid))
        pid, other = processes.start(), processes.start()
        registry.note(_poll(pid))
        registry.note(_poll(other))
        processes.end(pid)
        await until(lambda: ended == [pid])
        registry.close()

    asyncio.run(go())


def test_fault_of_who_is_told_is_not_ours(
    processes: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_entry: ProcessEntry) -> None:
        raise RuntimeError("theirs")

    registry = ProcessRegistry(on_end=fail)
    pid = processes.start()
    registry.note(_poll(pid))
    processes.end(pid)
    assert registry.list_all() == []
    assert "theirs" in caplog.text


def test_who_is_silent_is_not_listed_until_it_asks_again(
    processes: Processes, registry: ProcessRegistry
) -> None:
    pid = processes.start()
    registry.note(_poll(pid, time_ns=time.time_ns() - SILENT_NS))
    registry.note(_poll(0, "unknown", time_ns=time.time_ns() - SILENT_NS))
    assert registry.list_all() == []
    assert registry.find(pid) is not None
    assert len(registry._processes) == 1
    registry.note(_poll(pid))
    assert _pids(registry.list_all()) == [pid]


def _write_beat(path: Path, rank: int, world_size: int, steps: int) -> None:
    now_ns = time.time_ns()
    path.write_bytes(LAYOUT.pack(MAGIC, 7, now_ns, now_ns, rank, world_size, steps, 0, 0, 0, 0, 7))


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    """A job folder, as ``whystuck run`` makes it."""
    made = tmp_path / "whystuck-0-job"
    made.mkdir(mode=0o700)
    return made


def test_heartbeat_tells_steps_and_the_rank_of_a_spawned_process(
    processes: Processes, registry: ProcessRegistry, job_dir: Path
) -> None:
    parent = processes.start(WHYSTUCK_JOB_DIR=str(job_dir))
    pid = processes.tell(parent, "start A=1")
    registry.note(_poll(parent))
    assert _note(registry, _poll(pid)).kind is ProcessKind.PROCESS
    _write_beat(job_dir / f"beat-{pid}", 3, 4, 17)
    entry = _note(registry, _poll(pid))
    assert (entry.kind, entry.rank, entry.world_size) == (ProcessKind.RANK, 3, 4)
    assert entry.steps == 17
    launcher = registry.find(parent)
    assert launcher is not None
    assert launcher.kind is ProcessKind.LAUNCHER
    (job_dir / f"beat-{pid}").write_bytes(b"garbage")
    assert _note(registry, _poll(pid)).steps == 17
    assert [one.pid for one in registry.match(TraceRequest(job=job_dir.name))] == [pid, parent]


def test_heartbeat_of_another_process_that_had_the_pid_is_not_believed(
    processes: Processes, registry: ProcessRegistry, job_dir: Path
) -> None:
    pid = processes.start(WHYSTUCK_JOB_DIR=str(job_dir))
    start = read_start(pid)
    assert start is not None
    _write_beat(job_dir / f"beat-{pid}", 3, 4, 17)
    (job_dir / f"disarmed-{pid}").write_text('{"reason": "too dear"}')
    (job_dir / f"start-{pid}").write_text(str(start[1] - 1))

    entry = _note(registry, _poll(pid))
    assert (entry.kind, entry.rank, entry.steps) == (ProcessKind.PROCESS, -1, -1)
    (job_dir / f"start-{pid}").write_text(str(start[1]))
    entry = _note(registry, _poll(pid))
    assert (entry.kind, entry.rank, entry.steps) == (ProcessKind.RANK, 3, 17)


def test_pipe_in_the_place_of_a_heartbeat_does_not_hold_us_up(
    processes: Processes, registry: ProcessRegistry, job_dir: Path
) -> None:
    pid = processes.start(WHYSTUCK_JOB_DIR=str(job_dir))
    os.mkfifo(job_dir / f"beat-{pid}")
    assert _note(registry, _poll(pid)).steps == -1


def test_rank_that_has_disarmed_itself_is_listed_though_it_is_silent(
    processes: Processes, registry: ProcessRegistry, job_dir: Path
) -> None:
    pid = processes.start(WHYSTUCK_JOB_DIR=str(job_dir), RANK="0", WORLD_SIZE="1")
    registry.note(_poll(pid, time_ns=time.time_ns() - SILENT_NS))
    record = job_dir / f"disarmed-{pid}"
    record.write_text('{"reason": "dear", "parts": {"ops": "dear"}}')
    assert registry.list_all() == []
    record.write_text('{"reason": "dear", "parts": {"all": "dear"}}')
    assert _pids(registry.list_all()) == [pid]


@pytest.mark.skipif(os.getuid() != 0, reason="gives a folder to another user, which root can")
def test_heartbeat_of_another_user_is_not_believed(
    processes: Processes, registry: ProcessRegistry, job_dir: Path
) -> None:
    pid = processes.start(WHYSTUCK_JOB_DIR=str(job_dir))
    _write_beat(job_dir / f"beat-{pid}", 3, 4, 17)
    os.chown(job_dir, 12345, 12345)
    assert _note(registry, _poll(pid)).steps == -1


def test_number_of_processes_is_bounded(
    registry: ProcessRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "_MAX_PROCESSES", 8)
    for number in range(20):
        registry.note(_poll(0, f"/k/{number}", time_ns=time.time_ns() + number))
    assert len(registry.list_all()) == 8
