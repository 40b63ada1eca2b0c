"""The command line of the agent: its settings, and the status of those that run."""

from __future__ import annotations

import json
import os
import signal
import socket
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.agent.daemon.agents import running_agent, short_folder

from whystuck.agent.config import AgentConfig
from whystuck.agent.config_file import parse_config
from whystuck.cli import main
from whystuck.cli.agent import status


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:
        yield made / "a"


def test_print_config_gives_all_settings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WHYSTUCK_AGENT_DIR", raising=False)
    assert main(["agent", "--print-config"]) == 0

    printed = capsys.readouterr().out
    config = parse_config(printed.encode(), "printed")
    assert config.agent.folder == f"/tmp/whystuck-agent-{os.getuid()}"
    assert config.agent.node == socket.gethostname()
    unset = msgspec.structs.replace(config.agent, folder="", node="")
    assert msgspec.structs.replace(config, agent=unset) == AgentConfig()
    assert tomllib.loads(printed)["rpc"]["port"] == 1778


def test_print_config_shows_what_options_and_file_make(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "agent.toml"
    file.write_text("[rpc]\nport = 1\n[metrics.prometheus]\nport = 9")

    assert (
        main(["agent", "--config", str(file), "--port", "2", "--abstract", "--print-config"]) == 0
    )

    config = parse_config(capsys.readouterr().out.encode(), "printed")
    assert (config.rpc.port, config.metrics.prometheus.port) == (2, 9)
    assert config.fabric.abstract


def test_print_config_takes_the_folder_from_where_an_agent_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHYSTUCK_AGENT_DIR", str(tmp_path / "a"))
    assert main(["agent", "--print-config"]) == 0
    assert main(["agent", "--folder", "b/", "--node", "n7", "--print-config"]) == 0

    printed = capsys.readouterr().out
    assert f'folder = "{tmp_path}/a"\n' in printed
    assert f'folder = "{Path.cwd()}/b"\nnode = "n7"\n' in printed
    assert not (tmp_path / "a").exists()


def test_wrong_settings_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "agent.toml"
    file.write_text("[metrics]\nevry_s = 1")

    assert main(["agent", "--config", str(file), "--print-config"]) == 2

    error = capsys.readouterr().err
    assert "`metrics.evry_s` is no setting" in error
    assert "hint: did you mean `every_s`?" in error


def test_status_without_an_agent(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agent", "--status", "--folder", str(folder)]) == 3

    assert capsys.readouterr().out == "no agent of this user runs here\n"


def test_status_of_an_agent(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_agent(folder, "--port", "0", "--node", "n7") as agent:
        pid = agent.process.pid
        assert main(["agent", "--status", "--folder", str(folder)]) == 0
        text = capsys.readouterr().out
        assert main(["agent", "--status", "--folder", str(folder), "--format", "json"]) == 0
        [told] = json.loads(capsys.readouterr().out)

        assert f"on n7: pid {pid}, {folder}\n" in text
        assert "no process has asked for work yet" in text
        assert told["agent"]["pid"] == pid
        assert told["counts"]["fabric"]["polls"] == 0

        # An agent that is stopped holds its folder, and does not answer.
        monkeypatch.setattr(status, "_ANSWER_S", 0.2)
        agent.process.send_signal(signal.SIGSTOP)
        assert main(["agent", "--status", "--folder", str(folder)]) == 3
        assert "does not answer" in capsys.readouterr().out
        agent.process.send_signal(signal.SIGCONT)
        assert agent.stop() == 0
