"""Clients of dynolog get what they had from it."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

import pytest
from tests.agent.rpc.parts import Agent, running, send_raw

from whystuck.agent.rpc.dyno_calls import choose_processes
from whystuck.agent.rpc.frames import pack_frame
from whystuck.evidence.agent import ProcessEntry, ProcessKind, TraceRequest
from whystuck.evidence.errors import UsageError

LAUNCHER = ProcessEntry(pid=10, told_pids=(10, 5), kind=ProcessKind.LAUNCHER)
RANKS = [
    ProcessEntry(pid=11 + rank, told_pids=(11 + rank, 10, 5), kind=ProcessKind.RANK, rank=rank)
    for rank in range(3)
]
LOADER = ProcessEntry(pid=20, told_pids=(20, 11, 10, 5), kind=ProcessKind.HELPER)
JOB = [LAUNCHER, LOADER, *RANKS]


def body_of(pids: str = "0", job: int = 0, limit: int = 3, config: str = "A=1") -> bytes:
    """The text that the client writes, which is not quite what a JSON library would write."""
    text = json.dumps(config)
    return (
        f'\n{{\n    "fn": "setKinetOnDemandRequest",\n    "config": {text},\n    "job_id": {job},\n'
        f'    "pids": [{pids}],\n    "process_limit": {limit}\n}}'
    ).encode()


def ask(body: bytes, entries: list[ProcessEntry]) -> tuple[bytes, Agent]:
    async def go() -> tuple[bytes, Agent]:
        async with running(entries) as agent:
            return await send_raw(agent.port, pack_frame(body)), agent

    return asyncio.run(go())


def ask_json(body: bytes, entries: list[ProcessEntry]) -> dict[str, Any]:
    raw, _ = ask(body, entries)
    (length,) = struct.unpack("=i", raw[:4])
    assert length == len(raw) - 4
    found = json.loads(raw[4:])
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("body", "reply"),
    [
        (b'{"fn":"getStatus"}', b'{"status":1}'),
        (b'{"fn":"getVersion"}', b'{"version":"0.6.0"}'),
        (b'\n{\n    "fn": "dcgmProfPause",\n    "duration_s": 60\n}', b'{"status":false}'),
        (b'{"fn":"dcgmProfPause"}', b'{"status":"failed"}'),
        (b'{"fn":"dcgmProfResume"}', b'{"status":false}'),
    ],
)
def test_reply_has_the_very_bytes(body: bytes, reply: bytes) -> None:
    raw, _ = ask(body, [])

    assert raw == pack_frame(reply)


@pytest.mark.parametrize(
    "body",
    [
        b'{"fn":"noSuchCall"}',
        b'{"fn":["getStatus"]}',
        b'{"config":""}',
        body_of().replace(b'"A=1"', b'"ACTIVITIES_LOG_FILE=/tmp/"q".json"'),
    ],
)
def test_unknown_call_gets_no_reply(body: bytes) -> None:
    raw, agent = ask(body, JOB)

    assert raw == b""
    assert agent.server.counters.answered == 0


def test_request_that_matches_nobody_has_the_keys_of_dynolog() -> None:
    raw, _ = ask(body_of(), [])

    assert raw[4:] == (
        b'{"activityProfilersBusy":0,"activityProfilersTriggered":[],"eventProfilersBusy":0,'
        b'"eventProfilersTriggered":[],"processesMatched":[]}'
    )


@pytest.mark.parametrize("pids", ["", "0"])
def test_no_pids_mean_all_ranks(pids: str) -> None:
    raw, agent = ask(body_of(pids), JOB)

    assert raw[4:] == (
        b'{"activityProfilersBusy":0,"activityProfilersTriggered":[11,12,13],'
        b'"eventProfilersBusy":0,"eventProfilersTriggered":[],"processesMatched":[11,12,13]}'
    )
    assert agent.tracer.configs == ["A=1"]


@pytest.mark.parametrize("pids", ["10", "5", "5,10"])
def test_pid_of_an_ancestor_matches_the_ranks_below(pids: str) -> None:
    assert ask_json(body_of(pids), JOB)["processesMatched"] == [11, 12, 13]


@pytest.mark.parametrize(
    ("pids", "matched"), [("11", [11]), ("20", [20]), ("11,20", [11, 20]), ("99", []), ("0,9", [])]
)
def test_pid_matches_itself(pids: str, matched: list[int]) -> None:
    assert ask_json(body_of(pids), JOB)["processesMatched"] == matched


def test_limit_is_for_what_is_traced_and_not_for_what_matches() -> None:
    reply = ask_json(body_of(limit=1), JOB)

    assert reply["processesMatched"] == [11, 12, 13]
    assert reply["activityProfilersTriggered"] == [11]


@pytest.mark.parametrize(("limit", "traced"), [(0, []), (-1, [11, 12, 13]), (1000, [11, 12, 13])])
def test_limit_may_be_anything(limit: int, traced: list[int]) -> None:
    assert ask_json(body_of(limit=limit), JOB)["activityProfilersTriggered"] == traced


def test_launcher_alone_is_traced_when_it_is_named() -> None:
    assert ask_json(body_of("10"), [LAUNCHER])["processesMatched"] == [10]
    assert ask_json(body_of("5"), [LAUNCHER])["processesMatched"] == []
    assert choose_processes([LAUNCHER], ()) == []


def test_job_counts_unless_it_is_0() -> None:
    slurm = [ProcessEntry(pid=30, told_pids=(30,), kind=ProcessKind.RANK, job_number=77)]

    assert ask_json(body_of(job=77), slurm)["processesMatched"] == [30]
    assert ask_json(body_of(job=78), slurm)["processesMatched"] == []
    assert ask_json(body_of("30", job=78), slurm)["processesMatched"] == []
    assert ask_json(body_of("30"), slurm)["processesMatched"] == [30]


def test_busy_process_is_counted_and_said() -> None:
    busy = ProcessEntry(pid=40, told_pids=(1,), kind=ProcessKind.RANK, is_busy=True)

    reply = ask_json(body_of(), [busy])

    assert reply["activityProfilersBusy"] == 1
    assert reply["activityProfilersTriggered"] == []
    assert reply["processesMatched"] == [1], "Kineto names its file by the pid that it sees"
    assert reply["notes"] == ["pid 1: busy"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"fn":"setKinetOnDemandRequest"}', "failed"),
        (b'{"fn":"setKinetOnDemandRequest","config":""}', "failed"),
        (b'{"fn":"setKinetOnDemandRequest","pids":[]}', "failed"),
        (body_of('"x"'), "failed with exception = "),
        (body_of().replace(b'"job_id": 0', b'"job_id": "1"'), "failed with exception = "),
        (body_of().replace(b'"A=1"', b"7"), "failed with exception = "),
    ],
)
def test_bad_request_still_has_the_key_that_clients_need(body: bytes, status: str) -> None:
    reply = ask_json(body, JOB)

    assert reply["processesMatched"] == []
    assert reply["status"].startswith(status)


def test_configuration_that_is_refused_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object, config: str, request: TraceRequest) -> None:
        raise UsageError("a line is not KEY=VALUE", hint="see the guide")

    monkeypatch.setattr("tests.agent.rpc.parts.StepTracer.start_raw", refuse)

    reply = ask_json(body_of(), JOB)

    assert reply == {
        "processesMatched": [],
        "status": "failed with exception = a line is not KEY=VALUE; see the guide",
    }


def test_client_is_told_what_becomes_of_its_configuration() -> None:
    config = "PROFILE_START_TIME=1700000000000\nPROFILE_MEMORY=true\nPROFILE_WITH_STACK=true"

    notes = ask_json(body_of(config=config), JOB)["notes"]

    assert [note.split(" ")[0] for note in notes] == ["PROFILE_MEMORY", "PROFILE_START_TIME"]
    assert "notes" not in ask_json(body_of(config=config), [])
    ahead = "PROFILE_START_TIME=9999999999999"
    assert "notes" not in ask_json(body_of(config=ahead), JOB)


def test_client_is_told_what_torch_leaves_out_of_such_a_trace() -> None:
    asked = ("PROFILE_PROFILE_MEMORY", "PROFILE_WITH_FLOPS", "PROFILE_WITH_MODULES")
    config = "".join(f"{name}=true\n" for name in asked)

    notes = ask_json(body_of(config=config), JOB)["notes"]
    assert tuple(note.split(": ")[0] for note in notes) == asked
    notes = ask_json(body_of(config=f"{config}PROFILE_WITH_STACK=true"), JOB)["notes"]
    assert tuple(note.split(": ")[0] for note in notes) == asked[:2]
    off = config.replace("true", "false")
    assert "notes" not in ask_json(body_of(config=off), JOB)
