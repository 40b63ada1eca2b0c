"""The tracer, with polls and files that the test makes: what no real job does on demand."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from whystuck.agent.interfaces import FabricPoll
from whystuck.agent.ondemand.rank_sync import Pace, Window, is_first_of_all, read_window
from whystuck.agent.ondemand.reach import reach_own
from whystuck.agent.ondemand.tracer import OnDemandTracer
from whystuck.agent.processes.registry import ProcessRegistry
from whystuck.evidence.agent import TraceRequest, TraceState
from whystuck.evidence.errors import UsageError

S = 1_000_000_000
TRACE = '{"baseTimeNanoseconds": 1000, "traceEvents": [{"ph": "X"}],"traceName": "x" }'


@pytest.fixture
def process() -> Iterator[int]:
    """A process that works, as one that steps does."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as one:
        yield one.pid
        one.kill()


COUNTS = """
from whystuck.probe.shared_steps import SharedSteps
steps, shared = 0, SharedSteps()
while True:
    steps += 1
    shared.note(steps)
    if steps == 20: print(flush=True)
    sum(range(100_000))
"""


@pytest.fixture
def counting_process() -> Iterator[int]:
    """A process that tells its steps, as one with a probe does."""
    with subprocess.Popen([sys.executable, "-c", COUNTS], stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == b"\n"
        yield one.pid
        one.kill()


class Rig:
    """A tracer, and a process that polls it."""

    def __init__(self, top: Path, pid: int) -> None:
        self.registry = ProcessRegistry(node="n1")
        self.root = top / "raw"
        self.marks = top / "k"
        self.marks.mkdir()
        self.tracer = OnDemandTracer(self.registry, raw_root=self.root, folder=self.marks)
        self.pid = pid
        self.asked_ns = 0
        self.ask()

    def ask(
        self, *, wants: int = 3, later_ns: int = 0, at_ns: int = 0, can_answer: bool = True
    ) -> str:
        """Poll as the process: that much later than now, or at a time that is told."""
        self.asked_ns = at_ns or time.time_ns() + later_ns
        return self.tracer.answer(
            FabricPoll(
                address="/x",
                pid=self.pid,
                uid=os.getuid(),
                told_pids=(self.pid, 1),
                job_number=0,
                wants=wants,
                time_ns=self.asked_ns,
                can_answer=can_answer,
            )
        )

    def start(self, **fields: object) -> TraceState:
        request = TraceRequest(**{"id": "a", "duration_ms": 100, **fields})  # type: ignore[arg-type]
        (told,) = self.tracer.start(request)
        return told.state

    def state(self, name: str = "a") -> TraceState:
        return self.tracer.progress(name)[0].state

    async def sent(self) -> str:
        """Poll until there is an answer, as the guards want to see the process work."""
        for _ in range(600):
            if text := self.ask():
                return text
            await asyncio.sleep(0.05)
        raise AssertionError(self.tracer.progress("a"))

    def write(self, name: str = "trace_1.json", data: str = TRACE) -> None:
        (folder,) = self.root.iterdir()
        (folder / name).write_text(data)


def test_rank_whose_probe_is_disarmed_is_refused_with_the_reason(
    tmp_path: Path, process: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def trace() -> None:
        monkeypatch.setattr("whystuck.agent.ondemand.tracer.find_job_dir", lambda _: str(tmp_path))
        rig = Rig(tmp_path, process)
        record = tmp_path / f"disarmed-{process}"
        record.write_text('{"reason": "dear", "parts": {"ops": "dear"}}')
        assert rig.start(id="b") is TraceState.PENDING
        rig.tracer.cancel("b")
        record.write_text('{"reason": "too dear", "parts": {"ops": "dear", "all": "too dear"}}')
        assert rig.start() is TraceState.REFUSED
        reason = rig.tracer.progress("a")[0].reason
        assert reason.startswith("its probe is disarmed: ops are not recorded any more: dear; ")
        assert reason.endswith(", and nothing else any more: too dear")

    asyncio.run(trace())


def test_iterations_that_came_to_nothing_are_asked_for_again(tmp_path: Path, process: int) -> None:
    async def main() -> None:
        rig = Rig(tmp_path, process)
        assert rig.start(iterations=2, stop_s=3600) is TraceState.PENDING
        text = await rig.sent()
        assert "ACTIVITIES_ITERATIONS=2" in text
        assert (rig.marks / f"trace-{process}").read_text() == "0 2 0\n", "its probe is told"
        sent_ns = rig.asked_ns
        answers = [bool(rig.ask(at_ns=sent_ns + n * S)) for n in range(1, 9)]
        assert answers == [True, True, False, True, False, False, False, True]
        rig.write("trace_1.json.tmp", "")
        assert rig.ask(later_ns=60 * S) == ""
        assert rig.state() is TraceState.COLLECTING
        rig.write()
        assert rig.ask(wants=1, later_ns=61 * S) == ""
        while rig.state() is not TraceState.WRITTEN:
            await rig.tracer.wait("a", 5)
        assert not (rig.marks / f"trace-{process}").exists()
        rig.tracer.close()

    asyncio.run(main())


def test_second_request_waits_its_turn_and_what_waits_can_be_taken_back(
    tmp_path: Path, process: int
) -> None:
    async def main() -> None:
        rig = Rig(tmp_path, process)
        assert rig.start() is TraceState.PENDING
        assert rig.start(id="b") is TraceState.BUSY
        with pytest.raises(UsageError, match="already"):
            rig.start()
        assert rig.tracer.cancel("a")[0].state is TraceState.CANCELLED
        assert rig.start(id="c") is TraceState.PENDING
        assert "ACTIVITIES_DURATION_MSECS=100" in await rig.sent()
        assert rig.tracer.cancel("c")[0].state is TraceState.WARM_UP, "Kineto has it"
        with pytest.raises(KeyError):
            rig.tracer.progress("nobody")
        rig.tracer.close()
        assert rig.state("c") is TraceState.FAILED

    asyncio.run(main())


def test_second_request_takes_nothing_back_that_the_first_has_said(
    tmp_path: Path, process: int
) -> None:
    async def main() -> None:
        rig = Rig(tmp_path, process)
        rig.start()
        await rig.sent()
        mark = rig.marks / f"trace-{process}"
        said = mark.read_text()
        assert rig.start(id="b") is TraceState.BUSY
        assert mark.read_text() == said
        rig.write()
        while mark.exists():
            await rig.tracer.wait("a", 5)
        assert rig.start(id="c") is TraceState.PENDING
        await rig.sent()
        while rig.state() is not TraceState.WRITTEN:
            await rig.tracer.wait("a", 5)
        assert mark.exists(), "of the third, while the first was finished"
        rig.tracer.close()

    asyncio.run(main())


def test_time_that_is_far_ahead_is_kept_here_and_can_be_taken_back(
    tmp_path: Path, process: int
) -> None:
    async def main() -> None:
        rig = Rig(tmp_path, process)
        for name in "ab":
            begin_ms = time.time_ns() // 1_000_000 + 3600_000
            assert rig.start(id=name, start_time_ms=begin_ms, stop_s=1) is TraceState.PENDING
            for later_s in (0, 1, 2, 60, 3500):
                assert rig.ask(later_ns=later_s * S) == ""
            (told,) = rig.tracer.progress(name)
            assert told.reason == "waits for the time that was asked for"
            if name == "a":
                assert rig.tracer.cancel("a")[0].state is TraceState.CANCELLED
        assert f"PROFILE_START_TIME={begin_ms}\n" in rig.ask(later_ns=3590 * S)
        rig.tracer.close()

    asyncio.run(main())


def _opened() -> list[str]:
    found = []
    for one in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(one.readlink()))
    return found


def test_traces_that_are_over_keep_nothing_of_their_processes(
    tmp_path: Path, counting_process: int
) -> None:
    async def main() -> None:
        rig = Rig(tmp_path, counting_process)
        assert rig.start(id="written") is TraceState.PENDING
        assert await rig.sent()
        assert f"/proc/{counting_process}" in _opened()
        rig.write()
        for _ in range(600):
            if rig.state("written") is TraceState.WRITTEN:
                break
            rig.ask(later_ns=5 * S)
            await asyncio.sleep(0.05)
        assert rig.state("written") is TraceState.WRITTEN
        assert f"/proc/{counting_process}" not in _opened(), "64 traces are known for long"
        assert "written" not in rig.tracer._jobs, "some kB each"
        assert rig.tracer.progress("written")[0].file_bytes > 0
        rig.tracer.close()

    asyncio.run(main())


def test_longest_window_is_taken_of_a_process_with_a_probe(
    tmp_path: Path, counting_process: int
) -> None:
    async def main() -> None:
        rig = Rig(tmp_path, counting_process)
        rig.start(duration_ms=600_000)
        assert "ACTIVITIES_DURATION_MSECS=600100\n" in await rig.sent()
        rig.tracer.close()

    asyncio.run(main())


def test_process_whose_socket_is_gone_is_told_of(tmp_path: Path, process: int) -> None:
    async def main() -> None:
        rig = Rig(tmp_path, process)
        rig.start()
        assert rig.ask(can_answer=False) == ""
        told = rig.tracer.progress("a")[0]
        assert (told.state, told.reason) == (
            TraceState.FAILED,
            "its socket was removed, so it can be told nothing",
        )
        rig.tracer.close()

    asyncio.run(main())


def test_window_that_kineto_missed_is_asked_for_anew(tmp_path: Path, process: int) -> None:
    async def main() -> None:
        rig = Rig(tmp_path, process)
        rig.start(stop_s=3600)
        first = await rig.sent()
        sent_ns = rig.asked_ns
        assert rig.ask(at_ns=sent_ns + 1 * S) == ""
        again = rig.ask(at_ns=sent_ns + 9 * S)
        assert "PROFILE_START_TIME" in again
        assert again != first
        rig.tracer.close()

    asyncio.run(main())


def test_folder_of_a_trace_that_is_asked_for_anew_stays_until_the_end(
    tmp_path: Path, process: int
) -> None:
    """Kineto may have the first request twice, and would print an error without the folder."""

    async def main() -> None:
        rig = Rig(tmp_path, process)
        assert rig.start(iterations=2, stop_s=3600) is TraceState.PENDING
        await rig.sent()
        (first,) = rig.root.iterdir()
        rig.write()
        (run,) = rig.tracer._jobs["a"].runs
        run.restart("the ranks began at different iterations, and are asked again")
        assert list(first.iterdir()) == []
        await rig.sent()
        (second,) = set(rig.root.iterdir()) - {first}
        (first / "trace_1.json").write_text(TRACE)
        (second / "trace_1.json").write_text(TRACE)
        while rig.state() is not TraceState.WRITTEN:
            await rig.tracer.wait("a", 5)
        assert not first.exists()
        rig.tracer.close()

    asyncio.run(main())


def test_configuration_of_a_client_is_handed_on(tmp_path: Path, process: int) -> None:
    async def main() -> None:
        rig = Rig(tmp_path, process)
        log_file = tmp_path / "deep" / "t.json"
        text = f"ACTIVITIES_LOG_FILE={log_file}\nACTIVITIES_DURATION_MSECS=500"
        harmful = "PROFILE_MEMORY=true\nENABLE_IPC_FABRIC=false\nREQUEST_TRACE_ID=7"
        (told,) = rig.tracer.start_raw(f"{harmful}\n{text}", TraceRequest(id="a", pids=(process,)))
        assert told.state is TraceState.PENDING
        sent = rig.ask()
        # It has no device, and nothing of the harmful lines arrives.
        assert sent == f"{text}\nACTIVITIES_WARMUP_PERIOD_SECS=0\nREQUEST_TRACE_ID=a\n"
        assert log_file.parent.is_dir()
        log_file.with_name(f"t_{process}.json").write_text(TRACE)
        while rig.state() is not TraceState.WRITTEN:
            await rig.tracer.wait("a", 5)
        assert rig.tracer.progress("a")[0].file == str(log_file.with_name(f"t_{process}.json"))
        for bad in ("no line", "ACTIVITIES_LOG_FILE=relative"):
            with pytest.raises(UsageError):
                rig.tracer.start_raw(bad, TraceRequest())
        rig.tracer.close()

    asyncio.run(main())


@pytest.mark.parametrize("is_raw", [False, True], ids=["ours", "dyno's"])
def test_process_with_a_probe_ends_a_window_before_kineto_does(
    tmp_path: Path, counting_process: int, *, is_raw: bool
) -> None:
    async def main() -> None:
        rig = Rig(tmp_path, counting_process)
        if is_raw:
            begin_ms = time.time_ns() // 1_000_000 + 5_000
            text = f"PROFILE_START_TIME={begin_ms}\nACTIVITIES_DURATION_MSECS=300\n"
            rig.tracer.start_raw(text, TraceRequest(id="a", pids=(counting_process,)))
        else:
            rig.start(duration_ms=300)
        sent = await rig.sent()
        lines = dict(line.split("=") for line in sent.splitlines() if "=" in line)
        assert lines["ACTIVITIES_DURATION_MSECS"] == "400", "the last line of a name counts"
        end_ns, *rest = (rig.marks / f"trace-{counting_process}").read_text().split()
        assert int(end_ns) == (int(lines["PROFILE_START_TIME"]) + 300) * 1_000_000
        assert rest == ["0", "0"]
        rig.tracer.close()

    asyncio.run(main())


def test_nobody_matches(tmp_path: Path, process: int) -> None:
    async def main() -> None:
        rig = Rig(tmp_path, process)
        assert rig.tracer.start(TraceRequest(pids=(2**22 + 1,))) == []
        await rig.tracer.finish(0.1)
        rig.tracer.close()

    asyncio.run(main())


def test_first_to_be_told_is_the_one_behind_the_longest_gap() -> None:
    paces = [Pace() for _ in range(3)]
    for second in (1, 2, 3):
        for pace, offset_s in zip(paces, (0.0, 0.2, 0.4), strict=True):
            pace.note(int((second + offset_s) * S))
    first, second_, third = paces

    def leads(pace: Pace, others: list[Pace], time_s: float) -> bool:
        pace.note(int(time_s * S))
        return is_first_of_all(pace, others, int(time_s * S))

    assert leads(first, [second_, third], 4.0)
    assert not leads(second_, [first, third], 4.2)
    assert not leads(third, [first, second_], 4.4)
    assert is_first_of_all(first, [], 5 * S)


def test_of_two_that_ask_at_the_same_time_one_leads_whichever_comes_first() -> None:
    first, second_, third = (Pace() for _ in range(3))
    for second in (1, 2, 3):
        for pace, offset_s in ((first, 0.0), (second_, 0.002), (third, 0.2)):
            pace.note(int((second + offset_s) * S))
    # The first one was due 2 ms ago.
    second_.note(4_002_000_000)
    assert is_first_of_all(second_, [first, third], 4_002_000_000)
    # One that does not come at all is waited for no longer.
    third.note(4_200_000_000)
    assert first.next_ns(4_200_000_000) == 5 * S


def test_window_of_a_trace_is_read_from_its_ends(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(
        '{"baseTimeNanoseconds": 1000000, "traceEvents": [{"name": "op", "ts": 1.0},'
        '{"ph": "M", "name": "process_labels", "ts": 5.5, "pid": 1},'
        '{"ph": "i", "name": "Record Window End", "ts": 8.25}],"traceName": "x"}'
    )
    assert read_window(reach_own(path), 2) == Window(1_005_500.0, 1_008_250.0)
    assert read_window(reach_own(path), 0) is None
    path.write_text(TRACE)
    gone = reach_own(path)
    assert read_window(gone, 2) is None
    path.unlink()
    assert read_window(gone, 2) is None


BEHIND_A = "the trace a waits, and comes first; `whystuck trace cancel a` ends that"


def test_traces_that_did_not_end_well_have_a_line_each_in_the_log(
    tmp_path: Path, process: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        rig = Rig(tmp_path, process)
        assert rig.start(id="a") is TraceState.PENDING
        assert rig.start(id="b") is TraceState.BUSY
        rig.tracer.cancel("a")
        rig.tracer.close()

    asyncio.run(work())
    lines = [one.getMessage() for one in caplog.records]
    assert lines == [
        f"trace b of pid {process}: busy: {BEHIND_A}",
        f"trace a of pid {process}: cancelled: taken back before it began",
    ]
