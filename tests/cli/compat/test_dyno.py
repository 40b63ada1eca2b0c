"""``dyno`` sends and prints what dynolog's client does."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.agent.rpc.parts import running

from whystuck.agent.rpc.frames import pack_frame
from whystuck.cli.compat.dyno import main
from whystuck.evidence.agent import ProcessEntry, ProcessKind

RANKS = [
    ProcessEntry(pid=pid, told_pids=(pid, 9), kind=ProcessKind.RANK, rank=pid - 11)
    for pid in (11, 12)
]
DEFAULT = (
    '\n{\n    "fn": "setKinetOnDemandRequest",\n    "config": "ACTIVITIES_LOG_FILE=/tmp/t.json\\n'
    "PROFILE_START_TIME=0\\nACTIVITIES_DURATION_MSECS=500\\nPROFILE_REPORT_INPUT_SHAPES=false\\n"
    'PROFILE_WITH_STACK=false\\nPROFILE_WITH_FLOPS=false\\nPROFILE_WITH_MODULES=false",\n'
    '    "job_id": 0,\n    "pids": [0],\n    "process_limit": 3\n}'
)
ITERATIONS = (
    '\n{\n    "fn": "setKinetOnDemandRequest",\n    "config": "ACTIVITIES_LOG_FILE=/tmp/t.json\\n'
    "PROFILE_START_ITERATION=0\\nPROFILE_START_ITERATION_ROUNDUP=100\\nACTIVITIES_ITERATIONS=10\\n"
    "PROFILE_REPORT_INPUT_SHAPES=true\\nPROFILE_WITH_STACK=true\\nPROFILE_WITH_FLOPS=false\\n"
    'PROFILE_WITH_MODULES=false",\n    "job_id": 1234,\n    "pids": [11,12],\n'
    '    "process_limit": 8\n}'
)


@contextmanager
def answering(reply: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """A server that keeps what it gets, and answers the same to everybody."""
    got: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(60)
                data = connection.recv(1 << 20)
                while len(data) < 4 + int.from_bytes(data[:4], sys.byteorder):
                    data += connection.recv(1 << 20)
                got.append(data)
                connection.sendall(reply)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], got
        thread.join(60)


@contextmanager
def agent(entries: list[ProcessEntry]) -> Iterator[int]:
    """An agent with real sockets in another thread."""
    ready: list[int] = []
    loop = asyncio.new_event_loop()
    begun, end = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with running(entries) as one:
            ready.append(one.port)
            begun.set()
            await end.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert begun.wait(60)
    yield ready[0]
    loop.call_soon_threadsafe(end.set)
    thread.join(60)
    loop.close()


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (["status"], '{"fn":"getStatus"}'),
        (["version"], '{"fn":"getVersion"}'),
        (
            ["dcgm-pause", "--duration-s", "60"],
            '\n{\n    "fn": "dcgmProfPause",\n    "duration_s": 60\n}',
        ),
        (["dcgm-resume"], '{"fn":"dcgmProfResume"}'),
        (["gputrace", "--log-file", "/tmp/t.json"], DEFAULT),
        (
            [
                "gputrace",
                "--job-id",
                "1234",
                "--pids",
                "11,12",
                "--iterations",
                "10",
                "--log-file",
                "/tmp/t.json",
                "--profile-start-iteration-roundup",
                "100",
                "--process-limit",
                "8",
                "--record-shapes",
                "--with-stacks",
            ],
            ITERATIONS,
        ),
    ],
)
def test_request_has_the_very_bytes(arguments: list[str], body: str) -> None:
    with answering(pack_frame(b'{"processesMatched":[]}')) as (port, got):
        assert main(["--hostname", "127.0.0.1", "--port", str(port), *arguments]) == 0

    assert got == [pack_frame(body.encode())]


def test_output_is_that_of_dynolog(capfd: pytest.CaptureFixture[str]) -> None:
    with agent(RANKS) as port:
        code = main(["--port", str(port), "gputrace", "--log-file", "/tmp/t.json"])

    reply = (
        '{"activityProfilersBusy":0,"activityProfilersTriggered":[11,12],"eventProfilersBusy":0,'
        '"eventProfilersTriggered":[],"processesMatched":[11,12]}'
    )
    assert code == 0
    assert capfd.readouterr().out == (
        "Kineto config = \nACTIVITIES_LOG_FILE=/tmp/t.json\nPROFILE_START_TIME=0\n"
        "ACTIVITIES_DURATION_MSECS=500\nPROFILE_REPORT_INPUT_SHAPES=false\n"
        "PROFILE_WITH_STACK=false\nPROFILE_WITH_FLOPS=false\nPROFILE_WITH_MODULES=false\n"
        f"response length = {len(reply)}\nresponse = {reply}\n\n"
        "Matched 2 processes\nTrace output files will be written to:\n"
        "    /tmp/t_11.json\n    /tmp/t_12.json\n"
    )


@pytest.mark.parametrize(("more", "code"), [([], 0), (["--fail-on-no-process"], 1)])
def test_nothing_matched_is_said_in_the_words_that_scripts_look_for(
    capfd: pytest.CaptureFixture[str], more: list[str], code: int
) -> None:
    with agent([]) as port:
        assert main(["--port", str(port), "gputrace", "--log-file", "/tmp/t.json", *more]) == code

    out = capfd.readouterr().out
    assert out.endswith("No processes were matched, please check --job-id or --pids flags\n")
    assert '"processesMatched":[]' in out


@pytest.mark.parametrize(
    ("arguments", "reply"),
    [
        (["status"], '{"status":1}'),
        (["version"], '{"version":"0.6.0"}'),
        (["dcgm-pause"], '{"status":false}'),
        (["dcgm-resume"], '{"status":false}'),
    ],
)
def test_short_calls_print_their_reply(
    capfd: pytest.CaptureFixture[str], arguments: list[str], reply: str
) -> None:
    with agent([]) as port:
        assert main(["--port", str(port), *arguments]) == 0

    assert capfd.readouterr().out == f"response length = {len(reply)}\nresponse = {reply}\n"


def test_log_file_with_a_quote_is_still_json() -> None:
    with answering(pack_frame(b'{"processesMatched":[]}')) as (port, got):
        main(["--port", str(port), "gputrace", "--log-file", '/tmp/"q"\\.json'])

    config = json.loads(got[0][4:])["config"]
    assert config.startswith('ACTIVITIES_LOG_FILE=/tmp/"q"\\.json\n')


def test_memory_snapshot_that_spins_is_not_asked_for() -> None:
    with answering(pack_frame(b'{"processesMatched":[]}')) as (port, got):
        main(["--port", str(port), "gputrace", "--log-file", "/tmp/t.json", "--profile-memory"])

    lines = json.loads(got[0][4:])["config"].split("\n")
    assert "PROFILE_PROFILE_MEMORY=true" in lines
    assert not [line for line in lines if line.startswith("PROFILE_MEMORY")]


def test_no_server_is_the_code_of_a_panic(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    assert main(["--port", str(port), "status"]) == 101
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "Couldn't connect to the server..." in captured.err
    assert "hint: " in captured.err


@pytest.mark.parametrize("reply", [b"", pack_frame(b"x" * 10)[:9], b"\xff" * 4])
def test_no_reply_is_the_code_of_a_panic(capfd: pytest.CaptureFixture[str], reply: bytes) -> None:
    with answering(reply) as (port, _):
        assert main(["--port", str(port), "gputrace", "--log-file", "/tmp/t.json"]) == 101

    captured = capfd.readouterr()
    assert captured.out.startswith("Kineto config = \n")
    assert "Unable to decode output bytes" in captured.err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["gputrace"], 2),
        (["gputrace", "--log-file", "f", "--pids", "1;2"], 2),
        (["gputrace", "--log-file", "f", "--job-id", "-1"], 2),
        (["--port", "70000", "status"], 2),
        (["nonsense"], 2),
        (["gputrace", "--log-file", "f", "--iterations", "3", "--profile-memory"], 101),
    ],
)
def test_wrong_usage_has_the_code_of_dynolog(arguments: list[str], code: int) -> None:
    assert main(arguments) == code


@pytest.mark.parametrize("arguments", [[], ["--port", "1779"]])
def test_without_a_command_there_is_help_in_its_lines(
    capfd: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(arguments) == 2

    captured = capfd.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert lines[0] == "Usage: dyno [OPTIONS] [COMMAND] [ARGS]..."
    assert "  gputrace     Trace a PyTorch job." in lines


def test_token_is_sent_along(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("0123456789abcdef")
    path.chmod(0o600)
    with answering(pack_frame(b'{"processesMatched":[]}')) as (port, got):
        common = ["--port", str(port), "--token-file", str(path)]
        assert main([*common, "gputrace", "--log-file", "/tmp/t.json"]) == 0

    sent = json.loads(got[0][4:])
    assert sent["token"] == "0123456789abcdef"
    assert sent["fn"] == "setKinetOnDemandRequest"


def test_scripts_are_installed_beside_python() -> None:
    folder = Path(sys.executable).parent
    for name in ("dyno", "dynolog"):
        shown = subprocess.run(
            [folder / name, "--help"], capture_output=True, check=True, text=True
        )
        assert shown.stdout.lower().startswith("usage: ")
