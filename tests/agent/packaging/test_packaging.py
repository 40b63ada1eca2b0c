"""What platform teams copy fits the command: units, images and manifests name only what exists."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest

from whystuck.agent.config import NEEDS_RESTART, AgentConfig, parse_config
from whystuck.cli.agent import SETTINGS, agent

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "packaging/systemd/whystuck-agent.service"
DOCKERFILE = ROOT / "packaging/docker/Dockerfile"
MANIFEST = ROOT / "packaging/kubernetes/daemonset.yaml"
GUIDE = ROOT / "docs/guides/agent.md"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def parse_options(words: list[str]) -> dict[str, Any]:
    """What the command makes of a command line; click's error when it does not know an option."""
    return agent.make_context("agent", words).params


def unit_lines() -> dict[str, str]:
    lines = [one.partition("=") for one in UNIT.read_text().splitlines() if one[:1].isupper()]
    return {key: value for key, _, value in lines}


# ------------------------------------------------------------------------------------- systemd


def test_unit_starts_a_command_that_exists() -> None:
    program, command, *words = shlex.split(unit_lines()["ExecStart"])

    assert (Path(program).name, command) == ("whystuck", "agent")
    assert parse_options(words)["config_file"] == "%E/whystuck/agent.toml"


def test_unit_waits_longer_than_the_agent() -> None:
    assert float(unit_lines()["TimeoutStopSec"]) > AgentConfig().agent.stop_s + 10


def test_unit_leaves_what_jobs_and_agent_share() -> None:
    assert not unit_lines().keys() & {"PrivateTmp", "PrivateIPC", "ProtectProc", "ProtectHome"}


def test_unit_passes_systemd(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if not analyze:
        pytest.skip("no systemd-analyze on this machine")
    unit = tmp_path / UNIT.name
    # Only a program that exists passes.
    unit.write_text(UNIT.read_text().replace("/opt/whystuck/bin/whystuck", sys.executable))

    done = subprocess.run(
        [analyze, "verify", str(unit)], check=False, capture_output=True, text=True
    )

    assert (done.returncode, done.stderr) == (0, "")


# -------------------------------------------------------------------------------------- Docker


def dockerfile_array(instruction: str) -> list[str]:
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    [found] = re.findall(rf"^{instruction} .*?(\[.*\])$", text, flags=re.MULTILINE)
    words = json.loads(found)
    assert isinstance(words, list)
    return words


def test_image_starts_an_agent() -> None:
    words = [*dockerfile_array("ENTRYPOINT"), *dockerfile_array("CMD")]

    assert words[:2] == ["whystuck", "agent"]
    assert parse_options(words[2:])["metrics_port"] == 9602
    assert "EXPOSE 9602" in DOCKERFILE.read_text()


def test_image_is_asked_for_its_health_by_a_command_that_exists() -> None:
    words = dockerfile_array("HEALTHCHECK")

    assert words[:2] == ["whystuck", "agent"]
    assert parse_options(words[2:])["status"]


def test_image_installs_extras_that_exist() -> None:
    [extras] = re.findall(r'WHYSTUCK="whystuck\[(.*)\]"', DOCKERFILE.read_text())

    assert set(extras.split(",")) <= EXTRAS.keys()


# ---------------------------------------------------------------------------------- Kubernetes


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    return {one["kind"]: one for one in yaml.safe_load_all(MANIFEST.read_text())}


@pytest.fixture(scope="module")
def pod(manifest: dict[str, Any]) -> dict[str, Any]:
    spec = manifest["DaemonSet"]["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def test_settings_of_the_manifest_are_read(manifest: dict[str, Any]) -> None:
    config = parse_config(manifest["ConfigMap"]["data"]["agent.toml"].encode(), "agent.toml")

    assert config.agent.folder == "/run/whystuck"
    assert config.metrics.prometheus.port == 9602


def test_containers_start_commands_that_exist(pod: dict[str, Any]) -> None:
    [container] = pod["containers"]

    assert parse_options(container["args"])["config_file"] == "/etc/whystuck/agent.toml"
    probe = container["livenessProbe"]["exec"]["command"]
    assert probe[:2] == ["whystuck", "agent"]
    assert parse_options(probe[2:])["status"]


def test_manifest_is_whole(manifest: dict[str, Any], pod: dict[str, Any]) -> None:
    volumes = {one["name"] for one in pod["volumes"]}
    for container in [*pod["initContainers"], *pod["containers"]]:
        assert {one["name"] for one in container["volumeMounts"]} <= volumes
        assert container["resources"]["limits"]["memory"]
    labels = manifest["DaemonSet"]["spec"]["template"]["metadata"]["labels"]
    assert manifest["DaemonSet"]["spec"]["selector"]["matchLabels"] == labels
    ports = {one["name"] for one in pod["containers"][0]["ports"]}
    assert pod["containers"][0]["readinessProbe"]["tcpSocket"]["port"] in ports
    assert pod["hostPID"]


# -------------------------------------------------------------------------------------- guide


def test_all_options_are_in_the_guide() -> None:
    guide = GUIDE.read_text()
    names = [one.opts[0] for one in agent.params if isinstance(one, click.Option)]

    assert [one for one in names if f"`{one}`" not in guide and f"`{one} " not in guide] == []


def test_options_are_settings_that_exist() -> None:
    params = {one.name for one in agent.params}
    for name, key in SETTINGS.items():
        assert name in params
        value: object = AgentConfig()
        for part in key.split("."):
            value = getattr(value, part)


def test_settings_that_need_a_restart_are_in_the_guide() -> None:
    guide = GUIDE.read_text()

    assert [
        one for one in NEEDS_RESTART if f"`{one}`" not in guide and f"`[{one}]`" not in guide
    ] == []
