"""The engine: from figures of a round to a trace at its place, with a tracer of the test."""

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from whystuck.agent.interfaces import FabricPoll
from whystuck.agent.metrics.gpu.families import UTILIZATION
from whystuck.agent.triggers.engine import STATE_FILE, RateLimits, TriggerEngine
from whystuck.agent.triggers.rules import TriggerKind, TriggerRule, parse_rules
from whystuck.agent.triggers.trace_output import MAX_KEPT, find_evidence, make_place
from whystuck.evidence.agent import TraceProgress, TraceRequest, TraceState
from whystuck.evidence.errors import UsageError
from whystuck.evidence.nodes.metrics import MetricFamily, MetricKind, Sample
from whystuck.evidence.records import IncidentRecord
from whystuck.launch.incidents.folder import EvidenceFolder


def family(name: str, *labels: str) -> MetricFamily:
    return MetricFamily(
        name=f"whystuck_rank_{name}",
        kind=MetricKind.GAUGE,
        help="",
        labels=("job", "rank", *labels),
    )


AGE, BEAT = family("last_progress_age_seconds"), family("beat_age_seconds")
STEPS, PENDING = family("optimizer_steps_total"), family("collectives_pending")
INFO = family("info", "pid")
STALL: dict[str, object] = {"name": "stuck", "when": "stall", "threshold": 60}


def stalled(ages: Sequence[float], *, job: str = "job") -> list[Sample]:
    """A round in which the ranks made no progress for so long."""
    now_ns, pid = time.time_ns(), os.getpid()
    samples = []
    for rank, age_s in enumerate(ages):
        labels = (job, str(rank))
        samples += [
            Sample(family=AGE, value=age_s, labels=labels, time_ns=now_ns),
            Sample(family=BEAT, value=0.5, labels=labels, time_ns=now_ns),
            Sample(family=INFO, value=1, labels=(*labels, str(pid + rank)), time_ns=now_ns),
        ]
    return samples


class TestTracer:
    """Writes a file for each rank that is asked for; ``refused`` say no to what they are given."""

    __test__ = False

    def __init__(self, refuses: Callable[[TraceRequest], str] = lambda _request: "") -> None:
        self.requests: list[TraceRequest] = []
        self._refuses = refuses
        self._progress: dict[str, list[TraceProgress]] = {}

    def answer(self, poll: FabricPoll) -> str:
        raise NotImplementedError

    def start(self, request: TraceRequest) -> list[TraceProgress]:
        self.requests.append(request)
        name = f"id-{len(self.requests)}"
        reason = self._refuses(request)
        if reason == "nobody":
            return []
        if reason == "wrong":
            raise UsageError("it cannot be asked", hint="")
        state = TraceState.REFUSED if reason else TraceState.PENDING
        self._progress[name] = [
            TraceProgress(
                request_id=name, pid=pid, rank=pid - os.getpid(), state=state, reason=reason
            )
            for pid in request.pids
        ]
        return self._progress[name]

    def start_raw(self, config: str, request: TraceRequest) -> list[TraceProgress]:
        raise NotImplementedError

    def cancel(self, request_id: str) -> list[TraceProgress]:
        raise NotImplementedError

    def progress(self, request_id: str) -> list[TraceProgress]:
        return self._progress[request_id]

    async def wait(self, request_id: str, timeout_s: float) -> list[TraceProgress]:
        request = self.requests[-1]
        done = []
        for one in self._progress[request_id]:
            file = Path(request.output) / f"job-rank{one.rank}.pt.trace.json"
            file.write_text("{}")
            state = TraceState.WRITTEN
            done.append(msgspec.structs.replace(one, state=state, file=str(file), file_bytes=2))
        return done


class SlowTracer(TestTracer):
    """Never ends a trace."""

    def __init__(self) -> None:
        super().__init__()
        self.is_waited_for = asyncio.Event()

    async def wait(self, request_id: str, timeout_s: float) -> list[TraceProgress]:
        self.is_waited_for.set()
        await asyncio.Event().wait()
        return []


def rules(*tables: dict[str, object]) -> tuple[TriggerRule, ...]:
    return parse_rules(tables)


async def play(
    engine: TriggerEngine, rounds: Sequence[Sequence[Sample]], *, settle: bool = True
) -> None:
    """Give the engine rounds as the thread of a sink does, and wait until it is done with them."""
    for samples in rounds:
        await asyncio.to_thread(engine.write, samples)
        for watch in engine._watches.values():
            watch.looked_s = float("-inf")
    await asyncio.sleep(0)
    while settle and engine._tasks:
        await asyncio.gather(*engine._tasks)


def run(
    folder: Path,
    tracer: TestTracer,
    rounds: Sequence[Sequence[Sample]],
    *tables: dict[str, object],
    job_dir: str = "",
) -> None:
    async def main() -> None:
        engine = TriggerEngine(rules(*tables), tracer, folder, node="n1", job_dir=job_dir)
        await play(engine, rounds)

    asyncio.run(main())


def test_stall_takes_traces_of_the_stalled_ranks(tmp_path: Path) -> None:
    tracer = TestTracer()

    run(tmp_path, tracer, [stalled([1, 2]), stalled([1, 70]), stalled([1, 75])], STALL)

    (request,) = tracer.requests
    assert (request.pids, request.iterations, request.stacks) == ((os.getpid() + 1,), 0, True)
    place = tmp_path / "triggers" / "000"
    trace = place / "n1" / "rank-1" / "job-rank1.pt.trace.json"
    assert trace.is_file()
    record = json.loads((place / "trigger.json").read_text())
    assert record["rule"] == "stuck"
    assert record["when"] == "stall"
    assert record["ranks"] == [1]
    assert record["reason"] == "1 of 2 ranks have made no progress for 70 s"
    assert record["values"]["stalled_s"] == pytest.approx(70, abs=5)
    assert record["problem"] == ""
    assert record["traces"][0]["file"] == str(trace)
    assert record["decided_ns"] <= record["ended_ns"]
    assert (place.stat().st_mode & 0o777) & ~0o700 == 0 or place.parent.stat().st_mode & 0o77 == 0


def test_rank_that_does_not_even_beat_is_a_stall(tmp_path: Path) -> None:
    # GIVEN one that holds the GIL for so long that nothing new is known of it
    tracer = TestTracer()
    silent = [
        msgspec.structs.replace(one, value=89.5) if one.family is BEAT else one
        for one in stalled([90])
    ]

    run(tmp_path, tracer, [silent], STALL)

    assert len(tracer.requests) == 1


def test_all_ranks_of_the_job_are_traced_when_asked(tmp_path: Path) -> None:
    tracer = TestTracer()
    both = [*stalled([1, 70]), *stalled([2], job="other")]

    run(tmp_path, tracer, [both], {**STALL, "ranks": "all"})

    assert tracer.requests[0].pids == (os.getpid(), os.getpid() + 1)


def test_rule_for_one_job_leaves_others_alone(tmp_path: Path) -> None:
    tracer = TestTracer()

    run(tmp_path, tracer, [stalled([70], job="other")], {**STALL, "job": "mine"})

    assert tracer.requests == []


def test_rank_that_asks_another_agent_is_left_to_it(tmp_path: Path) -> None:
    tracer, other = TestTracer(), os.getpid()

    async def main() -> None:
        engine = TriggerEngine(
            rules(STALL), tracer, tmp_path, node="n1", serves=lambda pid: pid != other
        )
        await play(engine, [stalled([70])])
        assert tracer.requests == []
        await play(engine, [stalled([1, 70], job="ours")])

    asyncio.run(main())

    assert [request.pids for request in tracer.requests] == [(other + 1,)]


def test_rank_without_a_pid_is_asked_for_by_its_number(tmp_path: Path) -> None:
    tracer = TestTracer()
    samples = [one for one in stalled([70]) if one.family is not INFO]

    run(tmp_path, tracer, [samples], STALL)

    assert (tracer.requests[0].job, tracer.requests[0].ranks) == ("job", (0,))


def test_rank_that_refuses_iterations_is_traced_for_a_time(tmp_path: Path) -> None:
    tracer = TestTracer(lambda request: "it does not step" if request.iterations else "")
    idle: dict[str, object] = {
        "name": "idle",
        "when": "gpu-utilization-low",
        "for_s": 20,
        "iterations": 3,
    }

    async def main() -> None:
        now_s = [0.0]
        engine = TriggerEngine(rules(idle), tracer, tmp_path, node="n1")
        engine._clock = lambda: now_s[0]
        labels = ("0", "GPU-0", "nvidia", "job", "0")
        for load in [0.9] * 3 + [0.01] * 15:
            sample = Sample(family=UTILIZATION, value=load, labels=labels, time_ns=time.time_ns())
            info = Sample(
                family=INFO, value=1, labels=("job", "0", str(os.getpid())), time_ns=time.time_ns()
            )
            now_s[0] += 2.0
            await play(engine, [[sample, info]])

    asyncio.run(main())

    assert [request.iterations for request in tracer.requests] == [3, 0]
    record = json.loads((tmp_path / "triggers/000/trigger.json").read_text())
    assert record["traces"][0]["state"] == "written"


@pytest.mark.parametrize(
    ("reason", "problem"),
    [
        ("nobody", "none of these ranks asks this agent for work"),
        ("wrong", "it cannot be asked"),
        ("its GIL is held", "its GIL is held"),
    ],
)
def test_trace_that_cannot_be_taken_says_why(tmp_path: Path, reason: str, problem: str) -> None:
    run(tmp_path, TestTracer(lambda _request: reason), [stalled([70])], STALL)

    record = json.loads((tmp_path / "triggers/000/trigger.json").read_text())
    assert record["problem"] == problem
    assert record["reason"].endswith("no progress for 70 s")


def test_rule_waits_between_traces_also_after_a_new_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    tracer = TestTracer()

    for _ in range(2):
        run(tmp_path, tracer, [stalled([70]), stalled([71]), stalled([72])], STALL)

    assert len(tracer.requests) == 1
    assert caplog.text.count("takes no trace: it took one") == 1


def test_two_rules_are_limited_apart(tmp_path: Path) -> None:
    tracer = TestTracer()

    run(tmp_path, tracer, [stalled([70])], STALL, {**STALL, "name": "other"})

    assert len(tracer.requests) == 2


def test_agent_that_ends_leaves_a_record(tmp_path: Path) -> None:
    async def main() -> None:
        tracer = SlowTracer()
        engine = TriggerEngine(rules(STALL), tracer, tmp_path, node="n1")
        await play(engine, [stalled([70])], settle=False)
        await tracer.is_waited_for.wait()
        await engine.stop()
        engine.write(stalled([90]))

    asyncio.run(main())

    record = json.loads((tmp_path / "triggers/000/trigger.json").read_text())
    assert record["problem"] == "the agent ended before the traces were there"


@pytest.mark.parametrize("state", [b"", b"{", b"[]", b'{"taken_ns": {"stuck": "x"}}', b"\xff" * 9])
def test_broken_state_is_begun_anew(tmp_path: Path, state: bytes) -> None:
    (tmp_path / STATE_FILE).write_bytes(state)
    (rule,) = rules(STALL)
    limits = RateLimits(tmp_path / STATE_FILE)

    assert limits.refusal(rule, 10**18) == ""
    limits.note(rule, 10**18)
    assert "waits" in RateLimits(tmp_path / STATE_FILE).refusal(rule, 10**18 + 1)


def test_limits_of_a_day_and_of_clocks_that_are_set_back(tmp_path: Path) -> None:
    (rule,) = rules({**STALL, "cooldown_s": 0, "max_per_day": 2})
    limits, hour_ns = RateLimits(tmp_path / STATE_FILE), 3600 * 10**9
    for hour in (1, 2):
        limits.note(rule, hour * hour_ns)

    assert "2 traces in 24 hours" in limits.refusal(rule, 3 * hour_ns)
    assert limits.refusal(rule, 26 * hour_ns) == ""
    assert limits.refusal(rule, 0) == ""


def test_full_disk_is_survived(tmp_path: Path) -> None:
    (rule,) = rules(STALL)
    limits = RateLimits(tmp_path / "absent" / STATE_FILE)

    limits.note(rule, 10**18)

    assert limits.refusal(rule, 10**18 + 1)


# -------------------------------------------------------------------------------------- places


@contextmanager
def job_with_evidence(tmp_path: Path) -> Iterator[tuple[Path, EvidenceFolder]]:
    job_dir = tmp_path / "whystuck-0-job"
    job_dir.mkdir(mode=0o700)
    evidence = EvidenceFolder(tmp_path / "evidence", "n1")
    (job_dir / "job.json").write_text(json.dumps({"id": "x", "evidence": str(evidence.root)}))
    yield job_dir, evidence


def test_traces_of_a_stall_go_to_its_incident(tmp_path: Path) -> None:
    with job_with_evidence(tmp_path) as (job_dir, evidence):
        evidence.next_incident()
        incident = evidence.next_incident()
        evidence.write_incident(incident, IncidentRecord(kind="stall"))

        run(tmp_path, TestTracer(), [stalled([70])], STALL, job_dir=str(job_dir))

    assert incident.name == "001"
    assert (incident / "n1/rank-0/job-rank0.pt.trace.json").is_file()
    assert (incident / "trigger.json").is_file()


def test_traces_without_an_open_incident_get_a_number_of_their_own(tmp_path: Path) -> None:
    with job_with_evidence(tmp_path) as (job_dir, evidence):
        closed = evidence.next_incident()
        evidence.write_incident(closed, IncidentRecord(kind="stall", closed_after_s=3.0))

        run(tmp_path, TestTracer(), [stalled([70])], STALL, job_dir=str(job_dir))

        assert (evidence.root / "incidents/001/n1/rank-0").is_dir()
        assert evidence.next_incident().name == "002"


def test_evidence_is_found_by_the_environment_of_a_rank(tmp_path: Path) -> None:
    with job_with_evidence(tmp_path) as (job_dir, evidence):
        pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {"WHYSTUCK_JOB_DIR": str(job_dir)})
        try:
            # The kernel shows it some moments after the process was started.
            end_s = time.monotonic() + 20
            while not Path(f"/proc/{pid}/environ").read_bytes() and time.monotonic() < end_s:
                time.sleep(0.01)
            found = find_evidence("", [pid])
        finally:
            os.kill(pid, 9)
            os.waitpid(pid, 0)

    assert found == evidence.root
    assert find_evidence("", [2**30]) is None


@pytest.mark.parametrize(
    "text", ["", "{", '{"evidence": "relative"}', '{"evidence": "/absent"}', "[]"]
)
def test_job_that_does_not_tell_its_evidence_has_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.json").write_text(text)

    assert find_evidence(str(tmp_path), []) is None


def test_evidence_of_another_user_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job_with_evidence(tmp_path) as (job_dir, _):
        monkeypatch.setattr(os, "geteuid", lambda: 12345)

        assert find_evidence(str(job_dir), []) is None


def test_link_to_evidence_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "job.json").write_text(json.dumps({"evidence": str(tmp_path / "link")}))

    assert find_evidence(str(tmp_path), []) is None


def test_oldest_folders_of_rules_go_and_incidents_stay(tmp_path: Path) -> None:
    evidence = tmp_path / "evidence"
    for _ in range(MAX_KEPT + 5):
        place = make_place(evidence, tmp_path, TriggerKind.STEP_TIME)
        (place / "trigger.json").write_text("{}")
        if place.name == "000":
            (place / "incident.json").write_text("{}")

    names = sorted(path.name for path in (evidence / "incidents").iterdir())
    assert names[:2] == ["000", "005"]
    assert len(names) == MAX_KEPT + 1


def test_evidence_that_cannot_be_written_is_replaced_by_the_folder_of_the_agent(
    tmp_path: Path,
) -> None:
    with job_with_evidence(tmp_path) as (job_dir, evidence):
        (evidence.root / "incidents").write_text("a file is in the way")

        run(tmp_path, TestTracer(), [stalled([70])], STALL, job_dir=str(job_dir))

    assert (tmp_path / "triggers/000/n1/rank-0").is_dir()


def test_steps_and_waits_are_dated_by_their_beat(tmp_path: Path) -> None:
    async def main() -> TriggerEngine:
        rule: dict[str, object] = {"name": "slow", "when": "rank-slow"}
        engine = TriggerEngine(rules(rule), TestTracer(), tmp_path, node="n1")
        engine._clock = lambda: 1000.0
        now_ns = time.time_ns()
        await play(
            engine,
            [
                [
                    Sample(family=STEPS, value=8, labels=("job", "3"), time_ns=now_ns),
                    Sample(family=PENDING, value=1, labels=("job", "3"), time_ns=now_ns),
                    Sample(family=BEAT, value=0.75, labels=("job", "3"), time_ns=now_ns),
                    Sample(family=STEPS, value=8, labels=("job", "x"), time_ns=now_ns),
                    Sample(family=STEPS, value=8, labels=("job", ""), time_ns=now_ns),
                ]
            ],
        )
        return engine

    history = asyncio.run(main())._jobs["job"]
    assert list(history.ranks) == [3]
    assert history.ranks[3].waiting[0].time_s == pytest.approx(999.25, abs=0.2)
