"""What platform teams copy fits the command: units, images and manifests name only what exists."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import click
import pytest
from tests.agent.rpc.parts import make_certificate

from whystuck.agent.config import AgentConfig
from whystuck.agent.config_file import NEEDS_RESTART, parse_config
from whystuck.agent.metrics.sinks.prometheus import PrometheusSink
from whystuck.agent.rpc.auth import read_token
from whystuck.agent.serving import make_auth
from whystuck.cli.agent.command import SETTINGS, agent

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "packaging/systemd/whystuck-agent@.service"
USER_UNIT = ROOT / "packaging/systemd/whystuck-agent.service"
DROP_IN = ROOT / "packaging/systemd/whystuck-agent@root.service.d/all-users.conf"
PROGRAM = re.compile(r"=\S*/bin/whystuck\b")
ALL_USERS_CAPABILITIES = {
    "SYS_PTRACE",
    "SETUID",
    "SETGID",
    "KILL",
    "CHOWN",
    "FOWNER",
    "DAC_OVERRIDE",
}
DOCKERFILE = ROOT / "packaging/docker/Dockerfile"
MANIFEST = ROOT / "packaging/kubernetes/daemonset.yaml"
GUIDE = ROOT / "docs/guides/agent.md"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def parse_options(words: list[str]) -> dict[str, Any]:
    """What the command makes of a command line; click's error when it does not know an option."""
    return agent.make_context("agent", list(words)).params


def unit_lines(unit: Path) -> dict[str, str]:
    lines = [one.partition("=") for one in unit.read_text().splitlines() if one[:1].isupper()]
    return {key: value for key, _, value in lines}


# ------------------------------------------------------------------------------------- systemd


@pytest.mark.parametrize("unit", [UNIT, USER_UNIT])
def test_unit_starts_a_command_that_exists(unit: Path) -> None:
    program, command, *words = shlex.split(unit_lines(unit)["ExecStart"])

    assert (Path(program).name, command) == ("whystuck", "agent")
    assert parse_options(words)["config_file"] == "%E/whystuck/agent.toml"


def test_drop_in_changes_only_whom_the_agent_serves() -> None:
    assert unit_lines(DROP_IN)["ExecStart"] == unit_lines(UNIT)["ExecStart"] + " --all-users"
    assert parse_options(shlex.split(unit_lines(DROP_IN)["ExecStart"])[2:])["all_users"]
    # The list of an ExecStart is emptied first, or the unit would have two.
    assert DROP_IN.read_text().count("ExecStart=\n") == 1


@pytest.mark.parametrize("unit", [UNIT, USER_UNIT])
def test_unit_waits_longer_than_the_agent(unit: Path) -> None:
    assert float(unit_lines(unit)["TimeoutStopSec"]) > AgentConfig().agent.stop_s + 10


@pytest.mark.parametrize("unit", [UNIT, USER_UNIT, DROP_IN])
def test_unit_leaves_what_jobs_and_agent_share(unit: Path) -> None:
    assert not unit_lines(unit).keys() & {"PrivateTmp", "PrivateIPC", "ProtectProc"}


def test_unit_of_the_system_is_not_that_of_root_and_may_do_little() -> None:
    lines = unit_lines(UNIT)

    assert lines["User"] == "%i"
    assert (lines["CapabilityBoundingSet"], lines["AmbientCapabilities"]) == ("", "")
    assert (lines["ProtectSystem"], lines["ProtectHome"]) == ("strict", "read-only")
    assert lines["DevicePolicy"] == "closed"


@pytest.mark.parametrize("unit", [UNIT, USER_UNIT])
def test_what_a_unit_makes_is_private_and_it_gains_nothing(unit: Path) -> None:
    lines = unit_lines(unit)

    assert lines["UMask"] == "0077"
    assert lines["NoNewPrivileges"] == lines["RestrictSUIDSGID"] == "yes"
    assert "openat2" in unit.read_text().split("SystemCallFilter=", 1)[1]


def test_all_users_take_the_capabilities_that_are_told_of() -> None:
    found = re.findall(r"\bCAP_(\w+)", DROP_IN.read_text())

    assert set(found) == ALL_USERS_CAPABILITIES
    # With these it could be all of root.
    assert not ALL_USERS_CAPABILITIES & {"SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO", "BPF", "NET_ADMIN"}
    comments = [line for line in DROP_IN.read_text().splitlines() if line.startswith("# ")]
    for name in ALL_USERS_CAPABILITIES:
        assert name in "\n".join(comments)
        assert name in MANIFEST.read_text(), "the manifest names the same"


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """The root of a system with our units, and no others; skips where there is no systemd."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze on this machine; Debian's package `systemd` has it")
    folder = tmp_path / "etc/systemd/system"
    shutil.copytree(UNIT.parent, folder)
    (tmp_path / "usr/lib/systemd/system").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "template"),
    [
        ("whystuck-agent@alice.service", UNIT),
        ("whystuck-agent@root.service", UNIT),
        ("whystuck-agent.service", USER_UNIT),
    ],
    ids=["system", "all users", "user"],
)
def test_unit_passes_systemd(
    tmp_path: Path, system: Path, name: str, template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = system / "etc/systemd/system"
    # Only a program that exists passes.
    for path in [*folder.glob("*.service"), *folder.glob("*.d/*.conf")]:
        path.write_text(PROGRAM.sub(f"={sys.executable}", path.read_text()))
    unit = folder / name
    unit.write_text((folder / template.name).read_text())
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    command = ["systemd-analyze", *(["--user"] if template is USER_UNIT else []), "verify"]

    done = subprocess.run([*command, str(unit)], check=False, capture_output=True, text=True)

    # A key that it does not know is told of, and no error.
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("instance", "limit"), [("alice", 2.8), ("root", 4.0)])
def test_exposure_that_systemd_tells_is_low(system: Path, instance: str, limit: float) -> None:
    command = ["systemd-analyze", "security", "--offline=true", f"--root={system}", "--no-pager"]

    done = subprocess.run(
        [*command, f"whystuck-agent@{instance}.service"], check=True, capture_output=True, text=True
    )

    [exposure] = re.findall(r"Overall exposure level for .*?: ([0-9.]+)", done.stdout)
    assert float(exposure) <= limit


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


def test_image_begins_with_bytes_that_are_named_and_has_no_root() -> None:
    lines = DOCKERFILE.read_text().splitlines()

    assert [line for line in lines if line.startswith("FROM")] == ["FROM ${BASE}"]
    assert "ARG BASE" in lines, "there is no default, which would be a tag"
    [user] = [line.split()[1] for line in lines if line.startswith("USER")]
    assert all(int(number) > 0 for number in user.split(":"))


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

    assert config.agent.folder == "/run/whystuck/1000"
    assert config.metrics.prometheus.port == 9602


def test_no_manifest_listens_at_all_addresses(pod: dict[str, Any]) -> None:
    for path in (ROOT / "packaging").rglob("*"):
        if path.is_file():
            assert not re.search(r"0\.0\.0\.0|\[::\]|\"::\"", path.read_text()), path
    [container] = pod["containers"]
    [found] = [one for one in container["env"] if one["name"] == "POD_IP"]
    assert found["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    assert parse_options(container["args"])["metrics_host"] == "$(POD_IP)"


def test_containers_may_do_nothing_more_than_run(pod: dict[str, Any]) -> None:
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    for container in [*pod["initContainers"], *pod["containers"]]:
        allowed = container["securityContext"]
        assert allowed["capabilities"] == {"drop": ["ALL"]}
        assert allowed["readOnlyRootFilesystem"]
        assert allowed["allowPrivilegeEscalation"] is False
        # The base of the folder is root's; all else belongs to the user.
        assert allowed.get("runAsUser", 1000) == (0 if container["name"] == "folder" else 1000)
        assert container["image"] == "${IMAGE}", "the digest is given where it is applied"


def test_endpoint_of_the_manifest_asks_for_its_token_by_tls(
    manifest: dict[str, Any], tmp_path: Path
) -> None:
    cert = make_certificate(tmp_path, "tls", "whystuck-agent")
    cert.rename(tmp_path / "tls.crt")
    (tmp_path / "token").write_text("0123456789abcdef\n")
    (tmp_path / "token").chmod(0o400)
    text = manifest["ConfigMap"]["data"]["agent.toml"].replace("/run/token", str(tmp_path))
    config = parse_config(text.encode(), "agent.toml").metrics.prometheus

    sink = PrometheusSink("n", 0, address="127.0.0.1", auth=make_auth(config))

    trusting = ssl.create_default_context(cafile=str(tmp_path / "tls.crt"))
    url = f"https://127.0.0.1:{sink.port}/metrics"
    request = urllib.request.Request(url, headers={"Authorization": "Bearer 0123456789abcdef"})
    with urllib.request.urlopen(request, context=trusting) as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(url, context=trusting)
    sink.close()


def test_init_containers_leave_what_the_agent_takes(pod: dict[str, Any], tmp_path: Path) -> None:
    # GIVEN secrets as the kubelet lays them down: links to files in a folder that is another link
    secret, token, data = (tmp_path / name for name in ("secret", "token", "secret/..1"))
    for folder in (secret, token, data):
        folder.mkdir()
    for name in ("token", "tls.crt", "tls.key"):
        (data / name).write_text("0123456789abcdef\n")
        (secret / name).symlink_to(f"..data/{name}")
    (secret / "..data").symlink_to("..1")
    folder, copy = (one["command"] for one in pod["initContainers"])

    subprocess.run([*folder[:2], str(tmp_path)], check=True)
    script = copy[2].replace("/run/secret", str(secret)).replace("/run/token", str(token))
    subprocess.run([*copy[:2], script], check=True)

    assert tmp_path.stat().st_mode & 0o7777 == 0o1777
    assert read_token(token / "token") == "0123456789abcdef"
    assert sorted(path.name for path in token.iterdir()) == ["tls.crt", "tls.key", "token"]


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
