"""Evidence of any kind from standard input."""

from __future__ import annotations

import json
import signal
import subprocess
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
from tests.agent.daemon.agents import wait_until
from tests.launch.running import WHYSTUCK, clean_environment
from tests.parse.ops.nccl_logs import make_log, make_op
from tests.parse.ras_answers import make_json, make_late_text

from whystuck.cli import remote_paths

PROTOCOL = b"SERVER PROTOCOL 2\r\nOK\r\n"


def pipe(command: str, data: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*WHYSTUCK, command, "-", "--format", "json"],
        input=data,
        capture_output=True,
        env=clean_environment(),
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("diagnose", PROTOCOL + make_late_text()),
        ("diagnose", make_json([41, 40, 41, 41])),
        ("logs", make_late_text()),
    ],
    ids=["text", "json", "logs"],
)
def test_answer_of_ras_gives_its_verdict(command: str, answer: bytes) -> None:
    report = json.loads(pipe(command, answer).stdout)

    assert [one["code"] for one in report["findings"]] == ["H101"]
    assert report["findings"][0]["culprits"]["ranks"] == [1]
    assert report["verdict"] == "inconclusive"


def test_log_of_nccls_inspector_gives_its_table() -> None:
    report = json.loads(pipe("diagnose", make_log(make_op())).stdout)

    assert [one["op"] for one in report["communication"]["rows"]] == ["all_reduce"]


@pytest.mark.parametrize("command", ["diagnose", "logs"])
def test_nothing_is_a_usage_error(command: str) -> None:
    done = pipe(command, b"")

    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[0] == "error: standard input is empty"
    assert f"whystuck {command} -" in done.stderr.decode()


def test_what_no_reader_knows_is_a_usage_error() -> None:
    assert pipe("diagnose", b"\0\1\2" * 9999).returncode == 2


def test_more_than_the_bound_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_paths, "MAX_STDIN_BYTES", 3 << 20)
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(b"x\n" * (4 << 20))))

    with remote_paths.with_stdin(["-", "b"], "logs") as ((kept, other), gaps):
        assert Path(kept).stat().st_size == 3 << 20
    assert (other, [gap.what for gap in gaps]) == ("b", ["standard input"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_that_ends_the_command_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    one = subprocess.Popen(
        ["env", f"--default-signal={number.name[3:]}", *WHYSTUCK, "logs", "-"],
        stdin=subprocess.PIPE,
        env=clean_environment() | {"TMPDIR": str(tmp_path)},
    )
    try:
        assert one.stdin is not None
        one.stdin.write(b"x\n" * (2 << 20))
        one.stdin.flush()
        wait_until(lambda: any(tmp_path.glob("*/stdin")), "standard input is kept")
        one.send_signal(number)

        assert one.wait(60) == -number
        assert list(tmp_path.iterdir()) == []
    finally:
        one.kill()
        one.communicate()
