"""Flags of dynolog become settings of an agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from whystuck.agent.config import AgentConfig, Launch
from whystuck.agent.config_file import read_settings
from whystuck.cli.compat.dynolog import SWITCHES, main, make_options
from whystuck.cli.compat.gflags import parse_flags
from whystuck.evidence.errors import UsageError


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (
            ["--enable_ipc_monitor", "--port", "65406"],
            {"enable_ipc_monitor": "true", "port": "65406"},
        ),
        (["-port=1", "--port=2"], {"port": "2"}),
        (["--noenable_ipc_monitor"], {"enable_ipc_monitor": "false"}),
        (["--enable_ipc_monitor=F"], {"enable_ipc_monitor": "false"}),
        (["--unknown", "--port", "1"], {"unknown": "true", "port": "1"}),
        (["--unknown", "7"], {"unknown": "7"}),
        (["--offset", "-5"], {"offset": "-5"}),
        (["--a=b=c"], {"a": "b=c"}),
        (["--port=1", "--", "rest"], {"port": "1"}),
        ([], {}),
    ],
)
def test_flags_are_read_as_gflags_does(words: list[str], flags: dict[str, str]) -> None:
    assert parse_flags(words, SWITCHES) == flags


@pytest.mark.parametrize("words", [["port"], ["--enable_ipc_monitor=maybe"], ["-"], ["--flagfile"]])
def test_wrong_flags_are_clear_errors(words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse_flags(words, SWITCHES)
    assert caught.value.hint


def test_flagfile_has_one_flag_a_line(tmp_path: Path) -> None:
    path = tmp_path / "dynolog.gflags"
    path.write_text("# all nodes\n\n--enable_ipc_monitor\n  --port=1779\n--use_JSON\n")

    flags = parse_flags([f"--flagfile={path}", "--port=5"], SWITCHES)

    assert flags == {"enable_ipc_monitor": "true", "port": "5", "use_JSON": "true"}


def test_flagfile_that_cannot_be_read_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "loop"
    path.write_text(f"--flagfile={path}\n")
    with pytest.raises(UsageError, match="name each other"):
        parse_flags(["--flagfile", str(path)], SWITCHES)
    with pytest.raises(UsageError, match="cannot be read"):
        parse_flags(["--flagfile", str(tmp_path / "none")], SWITCHES)


def settings_of(*words: str, **environment: str) -> AgentConfig:
    options = make_options(parse_flags(words, SWITCHES), environment)
    return read_settings(Launch(options=options))


def test_settings_are_those_that_ray_asks_for() -> None:
    config = settings_of("--enable_ipc_monitor", "--port", "65406")

    assert config.fabric.enabled
    assert config.fabric.abstract
    assert config.rpc.port == 65406
    assert not config.metrics.sources.nvidia
    assert config.metrics.prometheus.port == 0


def test_settings_follow_the_flags() -> None:
    flags = ["--enable_gpu_monitor", "--enable_perf_monitor", "--use_prometheus"]
    numbers = ["--kernel_monitor_reporting_interval_s=5", "--dcgm_reporting_interval_s", "2"]
    config = settings_of(*flags, *numbers, "--prometheus_port=8081")

    assert not config.fabric.enabled, "dynolog serves jobs only when it is told to"
    assert config.metrics.sources.nvidia
    assert config.metrics.sources.perf
    assert (config.metrics.every_s, config.metrics.gpu_every_s) == (5, 2)
    assert config.metrics.prometheus.port == 8081
    assert config.rpc.port == 1778


def test_socket_folder_of_kineto_is_used_instead_of_abstract_names(tmp_path: Path) -> None:
    config = settings_of("--enable_ipc_monitor", KINETO_IPC_SOCKET_DIR=str(tmp_path))

    assert not config.fabric.abstract
    assert config.agent.folder == str(tmp_path)


def test_number_that_is_none_is_a_clear_error() -> None:
    with pytest.raises(UsageError, match="is no number"):
        settings_of("--port=x")


def test_help_and_version_are_printed(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert main(["--version"]) == 0
    assert "dynolog version 0.6.0" in capfd.readouterr().out


def test_wrong_flag_ends_before_anything_starts(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["port"]) == 2
    assert "hint: " in capfd.readouterr().err
