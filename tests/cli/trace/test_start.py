"""``whystuck trace start``, ``list`` and ``cancel`` against agents with real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.agent.rpc.parts import Agent, make_certificate

from whystuck.agent.rpc.auth import RpcAuth, make_server_tls
from whystuck.cli import main
from whystuck.cli.trace.order import parse_start, read_ranks
from whystuck.evidence.agent import (
    RPC_SOCKET,
    AgentRecord,
    ProcessEntry,
    ProcessKind,
    TraceProgress,
    TraceRequest,
    TraceState,
)
from whystuck.evidence.errors import UsageError

RANKS = [
    ProcessEntry(pid=11 + rank, kind=ProcessKind.RANK, rank=rank, job="j1", node="n", steps=7)
    for rank in range(2)
]
OTHER = ProcessEntry(pid=99, kind=ProcessKind.RANK, rank=0, job="j2", node="n")


class Place:
    """An agent in a thread of its own, with a socket file and a TCP port."""

    def __init__(self, folder: Path, entries: Sequence[ProcessEntry]) -> None:
        self.folder = folder
        folder.mkdir()
        self.agent = Agent(entries)
        self.states = {one.pid: TraceState.WRITTEN for one in entries}
        self._loop = asyncio.new_event_loop()
        self._begun = threading.Event()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        assert self._begun.wait(60)

    def _serve(self) -> None:
        async def work() -> None:
            await self.agent.server.listen_unix(self.folder / RPC_SOCKET)
            self.agent.port = await self.agent.server.listen_tcp(0)
            self._begun.set()
            await self._end.wait()
            await self.agent.server.close()

        self._loop.run_until_complete(work())
        self._loop.close()

    def listen(self, address: str, auth: RpcAuth) -> int:
        work = self.agent.server.listen_tcp(0, address, auth)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(60)

    def record(self) -> AgentRecord:
        return AgentRecord(pid=self.agent.port, node="n", folder=str(self.folder))


@contextmanager
def agents(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *lists: Sequence[ProcessEntry]
) -> Iterator[list[Place]]:
    """Agents that are the only ones of this machine, whose traces end at once."""

    def start(tracer: Any, request: TraceRequest) -> list[TraceProgress]:
        tracer.requests.append(request)
        place = next(one for one in places if one.agent.tracer is tracer)
        found = []
        for one in tracer.registry.match(request):
            state = place.states[one.pid]
            file = ""
            if state == TraceState.WRITTEN:
                path = Path(request.output) / f"rank{one.rank}.json"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("{}")
                file = str(path)
            found.append(
                TraceProgress(
                    request_id=request.id,
                    pid=one.pid,
                    rank=one.rank,
                    node="n",
                    state=state,
                    reason="" if state == TraceState.WRITTEN else "it is so",
                    file=file,
                    file_bytes=2 if file else 0,
                )
            )
        tracer.traces[request.id] = found
        return found

    monkeypatch.setattr("tests.agent.rpc.parts.StepTracer.start", start)
    monkeypatch.setattr(
        "whystuck.agent.agent_list.list_agents", lambda: [one.record() for one in places]
    )
    places: list[Place] = []
    places += [Place(tmp_path / f"a{number}", one) for number, one in enumerate(lists)]
    yield places
    for one in places:
        one.close()


def test_traces_are_written_where_they_are_wanted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with agents(monkeypatch, tmp_path, RANKS) as [place]:
        more = ["--iterations", "3", "--shapes", "--modules", "--roundup", "5"]
        assert main(["trace", "start", "--wait", "-o", str(out), *more]) == 0

    request = place.agent.tracer.requests[0]
    assert (request.iterations, request.roundup, request.output) == (3, 5, str(out))
    assert (request.shapes, request.modules, request.stacks) == (True, True, True)
    captured = capfd.readouterr().out.splitlines()
    assert captured[-1] == f"whystuck trace analyze {out}"
    assert captured[-2] == f"2 of 2 traces written to {out}"
    assert f"rank 1 (pid 12, n): written: {out / 'rank1.json'} (0.0 kB)" in captured
    assert captured[0].endswith("rank 0 (pid 11, n)  written")


def test_what_torch_leaves_out_is_told_and_what_options_need_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with agents(monkeypatch, tmp_path, RANKS) as [place]:
        out = ["--wait", "-o", str(tmp_path / "out")]
        assert main(["trace", "start", "--memory", "--flops", *out]) == 0
        captured = capfd.readouterr()
        assert main(["trace", "start", "--stacks", "--shapes", *out]) == 0

    request = place.agent.tracer.requests[0]
    assert (request.memory, request.flops, request.shapes, request.stacks) == (
        *(True, True, True),
        False,
    )
    assert "note: torch puts no allocations into a trace on demand: " in captured.err
    assert "note: torch writes no counts of floating-point operations" in captured.err
    assert "note: " not in captured.out + capfd.readouterr().err


def test_trace_that_is_not_written_is_an_exit_code_and_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with agents(monkeypatch, tmp_path, RANKS) as [place]:
        place.states[12] = TraceState.REFUSED
        assert main(["trace", "start", "--wait", "-o", str(tmp_path / "out")]) == 1
        assert main(["trace", "start", "-o", str(tmp_path / "out")]) == 1

    assert "rank 1 (pid 12, n): refused: it is so" in capfd.readouterr().out


def test_nothing_matched_is_code_3(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with agents(monkeypatch, tmp_path, RANKS):
        assert main(["trace", "start", "--ranks", "7-9", "--wait", "-o", str(out)]) == 3

    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("job j1\nerror: no process matched\n"), "and no id"
    assert not out.exists()


def test_no_agent_is_code_3(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with agents(monkeypatch, tmp_path):
        for command in ("start", "list"):
            assert main(["trace", command]) == 3
    assert "no agent of this user" in capfd.readouterr().err


@pytest.mark.parametrize("more", [[], ["--wait"]])
@pytest.mark.parametrize("lists", [[[*RANKS, OTHER]], [RANKS, [OTHER]]])
def test_several_jobs_are_wrong_usage_and_told_once(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    lists: list[list[ProcessEntry]],
    more: list[str],
) -> None:
    with agents(monkeypatch, tmp_path, *lists):
        assert main(["trace", "start", *more, "-o", str(tmp_path / "out")]) == 2

    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "error: 2 jobs run here: j1, j2\nhint: choose one with --job, or its processes with --pid\n"
    )


def test_node_with_several_jobs_is_told_beside_those_that_are_traced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "whystuck.agent.rpc.own_calls.node_folder", lambda name: str(tmp_path / name)
    )
    with agents(monkeypatch, tmp_path, RANKS, [*RANKS, OTHER]) as [one, two]:
        nodes = f"127.0.0.1:{one.agent.port},127.0.0.1:{two.agent.port}"
        assert main(["trace", "start", "--nodes", nodes, "-o", str(tmp_path / "out")]) == 1

    out = capfd.readouterr().out
    assert f"node 127.0.0.1:{two.agent.port}  2 jobs run here: j1, j2" in out
    assert f"rank 1 (pid 12, 127.0.0.1:{one.agent.port})  written" in out


def test_nodes_that_are_all_dead_leave_no_count_of_traces(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with agents(monkeypatch, tmp_path, RANKS), socket.create_server(("127.0.0.1", 0)) as gone:
        dead = f"127.0.0.1:{gone.getsockname()[1]}"
        gone.close()
        start = ["trace", "start", "--nodes", dead, "--wait", "-o", str(tmp_path / "out")]
        assert main(start) == 1

    captured = capfd.readouterr()
    assert f"node {dead}: {dead} cannot be reached" in captured.out
    assert "0 of 0" not in captured.out
    assert captured.err == ""


@pytest.mark.parametrize("lists", [[[*RANKS, OTHER]], [RANKS, [OTHER]]])
def test_several_jobs_are_not_all_traced_by_accident(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    lists: list[list[ProcessEntry]],
) -> None:
    out = str(tmp_path / "out")
    with agents(monkeypatch, tmp_path, *lists) as places:
        assert main(["trace", "start", "--wait", "-o", out]) == 2
        assert not [one for place in places for one in place.agent.tracer.requests]
        assert main(["trace", "start", "--pid", "11", "--wait", "-o", out]) == 0
        assert main(["trace", "start", "--job", "j2", "--wait", "-o", out]) == 0
        assert {one.job for place in places for one in place.agent.tracer.requests} == {"", "j2"}
    assert "2 jobs run here: j1, j2" in "".join(capfd.readouterr())


def test_agent_is_a_job_by_its_pid(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with agents(monkeypatch, tmp_path, RANKS, [OTHER]) as [one, two]:
        job = str(two.agent.port)
        assert main(["trace", "start", "--job", job, "--wait", "-o", str(tmp_path / "out")]) == 0
        assert not one.agent.tracer.requests
        assert two.agent.tracer.requests[0].job == ""


def test_json_has_all_that_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with agents(monkeypatch, tmp_path, RANKS):
        out = str(tmp_path / "out")
        assert main(["trace", "start", "--wait", "--format", "json", "-o", out]) == 0

    captured = capfd.readouterr()
    found = json.loads(captured.out)
    assert found["output"] == out
    assert [one["state"] for one in found["nodes"][0]["traces"]] == ["written", "written"]
    assert "rank 0 (pid 11, n)  written" in captured.err


def test_files_of_other_nodes_are_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with agents(monkeypatch, tmp_path, RANKS) as [place]:
        node = f"127.0.0.1:{place.agent.port}"
        assert main(["trace", "start", "--nodes", node, "--wait", "-o", str(out)]) == 0
        there = Path(place.agent.tracer.requests[0].output)

    assert sorted(one.name for one in out.iterdir()) == ["rank0.json", "rank1.json"]
    assert not there.exists(), "what was fetched is removed there"
    lines = capfd.readouterr().out.splitlines()
    assert f"rank 0 (pid 11, {node}): written: {out / 'rank0.json'} (0.0 kB)" in lines


def test_dead_node_is_told_and_the_others_are_traced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with agents(monkeypatch, tmp_path, RANKS) as [place]:
        with socket.create_server(("127.0.0.1", 0)) as gone:
            dead = f"127.0.0.1:{gone.getsockname()[1]}"
        nodes = f"127.0.0.1:{place.agent.port},{dead}"
        out = tmp_path / "out"
        assert main(["trace", "start", "--nodes", nodes, "--wait", "-o", str(out)]) == 1
        assert place.agent.tracer.requests[0].start_time_ms > time.time() * 1000

    text = capfd.readouterr().out
    assert f"node {dead}: {dead} cannot be reached" in text
    assert f"2 of 2 traces written to {out}" in text


def test_list_shows_processes_of_all_agents(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with agents(monkeypatch, tmp_path, RANKS, [OTHER]):
        assert main(["trace", "list"]) == 0
        text = capfd.readouterr().out
        assert main(["trace", "list", "--format", "json"]) == 0
        found = json.loads(capfd.readouterr().out)

    assert [line.split()[:6] for line in text.splitlines()[1:]] == [
        ["0", "11", "n", "rank", "7", "j1"],
        ["1", "12", "n", "rank", "7", "j1"],
        ["0", "99", "n", "rank", "-", "j2"],
    ]
    assert [len(one["processes"]) for one in found["nodes"]] == [2, 1]


def test_cancel_finds_the_agent_that_knows_the_trace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with agents(monkeypatch, tmp_path, RANKS, [OTHER]) as [one, _]:
        one.states = dict.fromkeys(one.states, TraceState.PENDING)
        out = str(tmp_path / "out")
        job = str(one.agent.port)
        assert main(["trace", "start", "--job", job, "--format", "json", "-o", out]) == 0
        name = json.loads(capfd.readouterr().out)["id"]
        assert main(["trace", "cancel", name]) == 0
        assert "cancelled" in capfd.readouterr().out
        assert main(["trace", "cancel", "nonsense"]) == 3
    assert "no agent knows" in capfd.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--iterations", "3", "--duration", "1"],
        ["--iterations", "3", "--start-at", "+5"],
        ["--roundup", "5"],
        ["--pid", "-1"],
        ["--ranks", "a"],
        ["--ranks", "3-1"],
        ["--ranks", "0-999999"],
        ["--start-at", "yesterday"],
        ["--start-at", "5"],
        ["--nodes", ","],
        ["--token-file", "/nonexistent"],
        ["--tls-cert", "/nonexistent"],
        ["--nodes", "a", "--token-file", "/nonexistent"],
        ["-o", "memory://x"],
        ["-o", "Memory://x", "--wait"],
    ],
)
def test_wrong_usage_is_code_2(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    with agents(monkeypatch, tmp_path, RANKS):
        assert main(["trace", "start", *arguments]) == 2
    assert "hint: " in capfd.readouterr().err


@pytest.mark.parametrize("name", ["file", "file/x/y", "link", "/proc/x", "file://file"])
def test_output_that_can_be_no_folder_is_refused_before_the_job_is_traced(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    name: str,
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    output = f"file://{tmp_path}/file" if name == "file://file" else str(tmp_path / name)
    with agents(monkeypatch, tmp_path, RANKS) as [place]:
        before = {one.name for one in tmp_path.iterdir()}
        assert main(["trace", "start", "-o", output]) == 2
    assert not place.agent.tracer.requests
    error = capfd.readouterr().err
    assert "error: traces cannot be put into " in error
    assert "hint: " in error
    assert {one.name for one in tmp_path.iterdir()} == before


def test_output_of_other_nodes_is_not_looked_at_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(
        "whystuck.agent.rpc.own_calls.node_folder", lambda name: str(tmp_path / name)
    )
    with agents(monkeypatch, tmp_path, RANKS) as [place]:
        node = f"127.0.0.1:{place.agent.port}"
        start = ["trace", "start", "--nodes", node, "-o", str(tmp_path / "file")]
        assert main(start) == 0
        assert main([*start, "--wait"]) == 2
    assert len(place.agent.tracer.requests) == 1


def test_start_is_read_in_its_forms() -> None:
    now_s = 1_800_000_000.0

    assert parse_start(None, now_s) == 0
    assert parse_start("+1.5", now_s) == 1_800_000_001_500
    assert parse_start("1800000060", now_s) == 1_800_000_060_000
    assert parse_start("2027-01-15T08:00:30Z", now_s) == 1_800_000_030_000
    for text in ("1799999999", "+inf", "+nan", "nan", "2020-01-01", "+9999999"):
        with pytest.raises(UsageError):
            parse_start(text, now_s)


def test_ranks_are_read_as_a_list() -> None:
    assert read_ranks("0, 3-5,4") == (0, 3, 4, 5)
    assert read_ranks(None) == ()


def test_time_to_begin_at_does_not_count_as_waiting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with agents(monkeypatch, tmp_path, RANKS) as [place]:
        more = ["--start-at", "+600", "--timeout", "5", "-o", str(tmp_path / "out")]
        assert main(["trace", "start", *more]) == 0

    assert place.agent.tracer.requests[0].stop_s > 600


@pytest.mark.parametrize(
    ("answer", "more", "code", "is_asked"),
    [
        ("n", [], 1, True),
        ("y", [], 0, True),
        ("", ["--yes"], 0, False),
        ("", ["--pid", "11"], 0, False),
    ],
)
def test_job_is_named_and_a_terminal_is_asked_about_it(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    answer: str,
    more: list[str],
    code: int,
    *,
    is_asked: bool,
) -> None:
    monkeypatch.setattr("sys.stdin", StringIO(f"{answer}\n"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    entry = msgspec.structs.replace(RANKS[0], command="python train.py")
    with agents(monkeypatch, tmp_path, [entry]) as [place]:
        out = ["--wait", "-o", str(tmp_path / "out")]
        assert main(["trace", "start", *out, *more]) == code

    told = capfd.readouterr().err
    assert ("job j1: python train.py" in told) == is_asked
    assert ("trace it?" in told) == is_asked
    assert len(place.agent.tracer.requests) == (code == 0)


def test_table_is_kept_up_to_date_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    hostile = ProcessEntry(pid=13, kind=ProcessKind.RANK, rank=2, job="j1", node="n")
    with agents(monkeypatch, tmp_path, [*RANKS, hostile]) as [place]:
        place.states[13] = TraceState.FAILED
        assert main(["trace", "start", "--wait", "-o", str(tmp_path / "out")]) == 1

    captured = capfd.readouterr()
    assert captured.out.splitlines()[0].startswith("rank 0 (pid 11, n): written: ")
    assert "rank 2 (pid 13, n): failed: it is so" in captured.out


def test_agents_behind_tls_are_asked_with_the_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cert = make_certificate(tmp_path)
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    token.chmod(0o600)
    auth = RpcAuth(token=token.read_text(), tls=make_server_tls(cert, cert.with_suffix(".key")))
    with agents(monkeypatch, tmp_path, RANKS) as [place]:
        port = place.listen("0.0.0.0", auth)
        secret = ["--token-file", str(token), "--tls-ca", str(cert)]
        assert main(["trace", "list", "--nodes", f"localhost:{port}", *secret]) == 0
        assert len(capfd.readouterr().out.splitlines()) == 3
        assert main(["trace", "list", "--nodes", f"localhost:{port}", *secret[2:]]) == 1
        assert "is the token right?" in capfd.readouterr().err
