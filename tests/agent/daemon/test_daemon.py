"""The life of an agent: start, reload, end, and what else can happen to it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agent.daemon.agents import (
    RunningAgent,
    running_agent,
    short_folder,
    wait_until,
)

from whystuck.agent.agent_list import list_agents
from whystuck.agent.lifeline import OWNER_FILE
from whystuck.cli import main
from whystuck.evidence.agent import AGENT_FILE, FABRIC_SOCKET, RPC_SOCKET, AgentRecord


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:
        yield made / "a"


def listed(folder: Path) -> list[AgentRecord]:
    """What others find of the agent of a folder."""
    return [one for one in list_agents() if one.folder == str(folder)]


def test_agent_starts_is_found_and_ends_without_a_trace(folder: Path) -> None:
    with running_agent(folder, "--port", "0", "--node", "n7") as agent:
        wait_until(lambda: listed(folder), "the agent in the list")
        [record] = listed(folder)
        assert (record.pid, record.node, record.port) == (agent.process.pid, "n7", 0)
        assert (folder / FABRIC_SOCKET).is_socket()
        assert (folder / RPC_SOCKET).is_socket()

        assert agent.stop() == 0

    assert "ends: SIGTERM came" in agent.log
    assert not listed(folder)
    left = {one.name for one in folder.iterdir()}
    assert not left & {AGENT_FILE, FABRIC_SOCKET, RPC_SOCKET}


def test_second_agent_on_a_folder_says_who_serves_it(folder: Path) -> None:
    with running_agent(folder, "--port", "0") as first:
        second = RunningAgent(folder, "--port", "0")

        assert second.wait_for_end() == 2
        assert f"the agent with pid {first.process.pid} serves {folder} already" in second.log
        assert "hint:" in second.log
        assert first.process.poll() is None
        assert first.stop(signal.SIGINT) == 0


def test_folder_that_others_use_is_refused_and_left_alone(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o1777)
    (folder / "of-others").touch()
    agent = RunningAgent(folder, "--port", "0")

    assert agent.wait_for_end() == 2
    assert f"the folder {folder} is used by others" in agent.log
    assert "hint:" in agent.log
    assert folder.stat().st_mode & 0o7777 == 0o1777
    assert [one.name for one in folder.iterdir()] == ["of-others"]


def test_log_may_lie_in_the_folder(folder: Path) -> None:
    log = folder / "agent.log"
    for _ in range(2):
        with running_agent(folder, "--port", "0", "--log-file", str(log)) as agent:
            assert agent.stop() == 0
    assert folder.stat().st_mode & 0o7777 == 0o700


def test_killed_agent_is_followed_by_another(folder: Path) -> None:
    with running_agent(folder, "--port", "0") as first:
        first.process.kill()
        assert first.wait_for_end() == -signal.SIGKILL
        assert (folder / FABRIC_SOCKET).is_socket()

    with running_agent(folder, "--port", "0") as second:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            client.connect(str(folder / FABRIC_SOCKET))
        assert second.stop() == 0


def taken_port() -> socket.socket:
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    return taken


def test_port_that_is_taken_ends_the_agent_that_asked_for_it(folder: Path) -> None:
    with taken_port() as taken:
        agent = RunningAgent(folder, "--port", str(taken.getsockname()[1]))

        assert agent.wait_for_end() == 2

    assert "something listens there already" in agent.log
    assert "hint:" in agent.log
    assert not list(folder.glob("[dr]*"))


def test_port_of_metrics_that_is_taken_ends_the_agent_that_asked_for_it(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        agent = RunningAgent(folder, "--port", "0", "--metrics-port", str(port))

        assert agent.wait_for_end() == 2
    assert f"error: metrics cannot be served at 127.0.0.1 port {port}" in agent.log
    assert "hint: choose another port" in agent.log


def test_file_of_metrics_that_cannot_be_made_ends_the_agent_that_asked_for_it(
    folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "nowhere" / "x"
    agent = RunningAgent(folder, "--port", "0", "--json-lines", str(file))

    assert agent.wait_for_end() == 2
    assert f"error: {file} cannot be written: No such file or directory\nhint: " in agent.log


def test_folder_for_traces_that_cannot_be_used_is_told_at_the_start(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('[traces]\noutput = "/proc/x"\n')
    with running_agent(folder, "--port", "0", "--config", str(file)) as agent:
        agent.wait_for_log("traces.output: traces cannot be put into /proc/x: nothing can be made")
        assert main(["agent", "--status", "--folder", str(folder)]) == 0
        assert "missing: traces.output: traces cannot be put" in capsys.readouterr().out
        assert agent.stop() == 0
    assert agent.log.count("hint: give a folder") == 1


def test_folder_for_traces_that_can_be_used_is_not_made_before_there_is_one(
    folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(f'[traces]\noutput = "{tmp_path}/there"\n')
    with running_agent(folder, "--port", "0", "--config", str(file)) as agent:
        assert agent.stop() == 0
    assert "traces.output" not in agent.log
    assert [one.name for one in tmp_path.iterdir()] == ["agent.toml"]


def test_port_that_is_taken_costs_only_itself_where_nobody_asked(folder: Path) -> None:
    config = folder.parent / "agent.toml"
    with taken_port() as taken:
        config.write_text(f"[rpc]\nport = {taken.getsockname()[1]}")
        with running_agent(folder, "--config", str(config)) as agent:
            assert "something listens there already" in agent.log
            assert agent.record.port == 0
            assert agent.stop() == 0


def test_reload_changes_what_it_can_and_tells_the_rest(folder: Path) -> None:
    config = folder.parent / "agent.toml"
    config.write_text("[rpc]\nport = 0")
    log = folder.parent / "agent.log"
    with running_agent(folder, "--config", str(config), "--log-file", str(log)) as agent:
        config.write_text('[rpc]\nport = 0\n[metrics]\nevery_s = 3\n[agent]\nnode = "other"')
        log.rename(folder.parent / "rotated.log")
        agent.process.send_signal(signal.SIGHUP)
        told = "changed: metrics.every_s; only a restart changes: agent.node"
        wait_until(lambda: log.exists() and told in log.read_text(), "the new log")

        config.write_text("[rpc]\nprot = 0")
        agent.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "`rpc.prot` is no setting" in log.read_text(), "the error")
        assert "did you mean `port`?" in log.read_text()

        assert agent.stop() == 0


def test_folder_that_is_removed_is_made_anew(folder: Path) -> None:
    with running_agent(folder, "--port", "0") as agent:
        shutil.rmtree(folder)

        agent.wait_for_start()
        wait_until((folder / RPC_SOCKET).is_socket, "the socket of commands")
        wait_until((folder / FABRIC_SOCKET).is_socket, "the socket of jobs")
        assert agent.stop() == 0


def test_agent_of_a_job_ends_with_its_supervisor(folder: Path) -> None:
    job_dir = folder.parent
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as supervisor:
        (job_dir / OWNER_FILE).write_text(str(supervisor.pid))
        with running_agent(job_dir / "k", "--job-dir", str(job_dir)) as agent:
            assert agent.record.job_dir == str(job_dir)
            assert agent.record.port == 0
            supervisor.kill()

            assert agent.wait_for_end() == 0

    assert "ends: its supervisor has ended" in agent.log
    assert not (job_dir / "k" / FABRIC_SOCKET).exists()


def test_long_folder_is_refused(tmp_path: Path) -> None:
    agent = RunningAgent(tmp_path / ("x" * 60), "--port", "0")

    assert agent.wait_for_end() == 2
    assert "Kineto takes at most 54" in agent.log


def test_service_manager_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.parent.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(folder.parent / "notify"))
        manager.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(folder.parent / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "1000000")
        with running_agent(folder, "--port", "0") as agent:
            assert manager.recv(1000).startswith(b"READY=1")
            assert [manager.recv(1000) for _ in range(2)] == [b"WATCHDOG=1"] * 2
            assert agent.stop() == 0
        rest = []
        while b"STOPPING=1" not in rest:
            rest.append(manager.recv(1000))


def test_memory_of_an_idle_agent(folder: Path) -> None:
    with running_agent(folder, "--port", "0") as agent:
        status = Path(f"/proc/{agent.process.pid}/status").read_text()
        [rss] = [line for line in status.splitlines() if line.startswith("VmRSS")]
        maps = Path(f"/proc/{agent.process.pid}/maps").read_text()

        assert int(rss.split()[1]) < 60 << 10
        assert os.sep + "numpy" not in maps
