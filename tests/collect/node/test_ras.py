"""NCCL's RAS is asked over TCP: real processes listen as ranks do, or as something else."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.diagnose.dumps import SCHEDULED, Dumps
from tests.parse.ras_answers import make_json, make_late_text

from whystuck.collect.node.ras import WHAT, collect_ras
from whystuck.collect.processes.target import Target
from whystuck.collect.scene import Scene, ScenePlan
from whystuck.pipeline import diagnose_paths

SERVER = Path(__file__).with_name("ras_server.py")
PLAN = ScenePlan(samples=1, interval_s=0.0, beside=(collect_ras,))
LATE = make_json([41, 40, 41, 41])
Serve = Callable[..., Target]


@pytest.fixture
def port() -> Iterator[int]:
    """Keep a port that only processes of this test get."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


@pytest.fixture
def serve(tmp_path: Path, port: int) -> Iterator[Serve]:
    """Start processes that listen as ranks do; each has a session of its own, with its children."""
    started: list[subprocess.Popen[bytes]] = []

    def start(mode: str, data: bytes = LATE, rank: int = 0, **environment: str) -> Target:
        path = tmp_path / f"answer-{len(started)}"
        path.write_bytes(data)
        values = {"NCCL_RAS_ADDR": f"127.0.0.1:{port}", "WORLD_SIZE": "4", "RANK": str(rank)}
        process = subprocess.Popen(
            [sys.executable, str(SERVER), mode, str(path)],
            env=os.environ | values | environment,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return Target(rank, process.pid, "n0")

    yield start
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize(
    ("mode", "data", "name"), [("json", LATE, "ras.json"), ("text", make_late_text(), "ras.txt")]
)
def test_answer_of_each_version_is_kept_as_it_came(
    mode: str, data: bytes, name: str, serve: Serve, tmp_path: Path
) -> None:
    assert collect_ras([serve(mode, data)], tmp_path / "000") == []
    assert (tmp_path / "000/n0" / name).read_bytes() == data


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("drip", "not complete after 1 s"),
        ("silent", "not complete after 1 s"),
        ("garbage", "does not speak its protocol"),
        ("endless", "more than 8 MiB"),
        ("closes", "without an answer"),
        ("stranger", "processes of other jobs"),
    ],
)
def test_broken_answers_are_gaps_in_time(
    mode: str, reason: str, serve: Serve, tmp_path: Path
) -> None:
    target = serve(mode)
    limit_s = 60.0 if mode in {"endless", "stranger", "garbage", "closes"} else 1.0
    (gap,) = collect_ras([target], tmp_path / "000", limit_s)

    assert (gap.rank, gap.what) == (None, WHAT)
    assert reason in gap.reason
    assert not list(tmp_path.glob("000/n0/ras.*"))


def test_rank_of_this_job_is_found_among_those_of_another(serve: Serve, tmp_path: Path) -> None:
    serve("text", make_late_text(999))
    target = serve("json")
    gaps = collect_ras([target], tmp_path / "000", 60.0)

    # The kernel chooses who answers; after so many tries it has chosen both.
    assert gaps == []
    assert (tmp_path / "000/n0/ras.json").read_bytes() == LATE


def test_job_without_ras_is_not_asked(serve: Serve, port: int, tmp_path: Path) -> None:
    code = "print('ready', flush=True); import time; time.sleep(3600)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        serve("json")  # of another job
        assert collect_ras([Target(0, process.pid, "n0")], tmp_path / "000") == []
    finally:
        process.kill()
        process.communicate()
    switched_off = serve("json", NCCL_RAS_ENABLE="0")

    assert collect_ras([switched_off], tmp_path / "000") == []
    assert collect_ras([Target(0, process.pid, "n0")], tmp_path / "000") == []
    assert not (tmp_path / "000").exists()


def test_one_node_of_many_asks(serve: Serve, tmp_path: Path) -> None:
    late = serve("json", rank=8, WORLD_SIZE="64")
    first = serve("json", rank=0, WORLD_SIZE="64")

    assert collect_ras([late], tmp_path / "000") == []
    assert not (tmp_path / "000").exists()
    assert collect_ras([late, first], tmp_path / "000", 60.0) == []
    assert (tmp_path / "000/n0/ras.json").exists()


def test_verdict_of_a_stall_cites_the_answer(serve: Serve, tmp_path: Path) -> None:
    incident = tmp_path / "000"
    target = serve("json")
    Scene(incident, [target]).take(PLAN)
    record = {"kind": "stall", "world_size": 4, "stalled_s": 30, "limit_s": 20}
    (incident / "incident.json").write_text(json.dumps(record))
    dumps = Dumps().op(range(4), "all_reduce", times=40)
    dumps.op([0, 2, 3], "all_reduce", state=SCHEDULED).write(incident)
    report = diagnose_paths([incident])
    finding = report.findings[0]
    (cited,) = [one for one in finding.because if one.text.startswith("NCCL RAS: ")]

    assert (finding.code, finding.culprits.ranks) == ("H101", [1])
    assert cited.artifact == "n0/ras.json"
    assert cited.text.startswith("NCCL RAS: rank 1 issued 40 AllReduce of communicator 0x")
    assert cited.text.endswith(", 3 others 41")
    assert "NCCL RAS" in report.coverage.sources
