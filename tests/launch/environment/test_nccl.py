"""NCCL's own lines go to files of bounded size; an interface or plugin must be there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.launch.running import run_whystuck

from whystuck.collect.node.interfaces import Interface, collect_interfaces, try_loading
from whystuck.evidence.errors import UsageError
from whystuck.launch.environment.nccl import (
    NcclOptions,
    find_unknown_subsystem,
    list_plugin_files,
    match_interfaces,
    nccl_environment,
)
from whystuck.launch.environment.nccl_check import (
    check_nccl_options,
    find_gloo_problem,
    find_interface_problem,
    list_usable,
    list_warnings,
)
from whystuck.launch.incidents import nccl_logs
from whystuck.launch.incidents.folder import EvidenceFolder
from whystuck.launch.incidents.nccl_logs import NcclLogs

SHOW = (
    "import json, os;"
    "print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('NCCL_')}))"
)
# Writes its file as NCCL does: the name from the pattern, one line at a time.
WRITE = """
import os, socket, sys
host, pid = socket.gethostname().split(".")[0], os.getpid()
name = os.environ["NCCL_DEBUG_FILE"].replace("%h", host).replace("%p", str(pid)).replace("%%", "%")
with open(name, "w", buffering=1) as file:
    file.write(f"{host}:{pid}:{pid} [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\\n")
print("said nothing of it")
sys.exit(int(sys.argv[1]))
"""
NAMES = ["docker0", "eth0", "eth01", "ib0", "lo"]
UP = Interface("eth0", is_up=True, addresses=("10.0.0.1",))
DOWN = Interface("eth1", is_up=False, addresses=("10.0.0.2",))
BARE = Interface("ib0", is_up=True, addresses=())


@pytest.mark.parametrize(
    ("value", "chosen"),
    [
        ("eth", ["eth0", "eth01"]),
        ("eth0", ["eth0", "eth01"]),
        ("=eth0", ["eth0"]),
        ("=eth0,ib0", ["eth0", "ib0"]),
        ("^docker,lo", ["eth0", "eth01", "ib0"]),
        ("^=eth0", ["docker0", "eth01", "ib0", "lo"]),
        ("ib0:4000,lo", ["ib0", "lo"]),
        ("en", []),
        (",", []),
    ],
)
def test_interfaces_are_chosen_as_nccl_chooses(value: str, chosen: list[str]) -> None:
    assert match_interfaces(value, NAMES) == chosen


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("eth", ""),
        ("=eth1", "`eth1` is down"),
        ("ib", "`ib0` has no IP address"),
        ("en", "no network interface of this node fits `en`"),
        ("^eth,ib", "no network interface of this node fits `^eth,ib`"),
    ],
)
def test_interface_that_cannot_be_used_is_told(value: str, problem: str) -> None:
    assert find_interface_problem(value, [UP, DOWN, BARE]) == problem


def test_gloo_wants_whole_names_that_are_all_there() -> None:
    found = [UP, DOWN, BARE]

    assert find_gloo_problem("eth0", found) == ""
    assert find_gloo_problem("eth", found) == "this node has no network interface `eth`"
    assert find_gloo_problem("eth0,eth1", found) == "`eth1` is down"


def test_nothing_is_wrong_where_the_system_does_not_tell() -> None:
    assert find_interface_problem("eth", []) == find_gloo_problem("eth", []) == ""


def test_interfaces_of_this_machine_are_found() -> None:
    loopback = [one for one in collect_interfaces() if "127.0.0.1" in one.addresses]

    assert loopback
    assert loopback[0].is_usable
    assert f"{loopback[0].name} (127.0.0.1)" in list_usable(loopback)


@pytest.mark.parametrize(
    ("value", "files"),
    [
        ("none", []),
        ("NONE", []),
        ("aws-ofi", ["aws-ofi", "libnccl-net-aws-ofi.so"]),
        ("/opt/libx.so", ["/opt/libx.so"]),
        ("libnccl-net-x.so", ["libnccl-net-x.so"]),
        ("a,b", ["a", "libnccl-net-a.so", "b", "libnccl-net-b.so"]),
        ("STATIC_PLUGIN", []),
    ],
)
def test_plugin_is_looked_for_under_the_names_that_nccl_tries(value: str, files: list[str]) -> None:
    assert list_plugin_files(value) == files


def test_library_is_loaded_when_it_can_be() -> None:
    assert try_loading(["libno-such-thing.so", "libc.so.6"]) is None
    assert "libno-such-thing.so" in (try_loading(["libno-such-thing.so"]) or "")


def test_option_that_names_nothing_is_a_usage_error_with_a_hint() -> None:
    with pytest.raises(UsageError, match="fits `nosuch`") as interface:
        check_nccl_options(NcclOptions(socket_ifname="nosuch"))
    with pytest.raises(UsageError, match="single letter"):
        check_nccl_options(NcclOptions(socket_ifname="l"))
    with pytest.raises(UsageError, match="no plugin `nosuch` can be loaded") as plugin:
        check_nccl_options(NcclOptions(net_plugin="nosuch"))

    assert "up here: " in interface.value.hint
    assert "`none`" in plugin.value.hint
    check_nccl_options(NcclOptions(net_plugin="none"))


def test_variable_that_names_nothing_is_a_warning_unless_an_option_replaces_it() -> None:
    environment = {
        "NCCL_SOCKET_IFNAME": "nosuch",
        "GLOO_SOCKET_IFNAME": "other",
        "NCCL_NET_PLUGIN": "absent",
    }

    assert [text.partition(":")[0] for text in list_warnings(environment, NcclOptions())] == [
        "NCCL_SOCKET_IFNAME=nosuch", "GLOO_SOCKET_IFNAME=other", "NCCL_NET_PLUGIN=absent",
    ]  # fmt: skip
    asked = NcclOptions(socket_ifname="lo", net_plugin="none")
    assert len(list(list_warnings(environment, asked))) == 1
    assert list(list_warnings({"NCCL_SOCKET_IFNAME": "x"}, NcclOptions())) == []


def test_nothing_is_set_that_was_not_asked_for(tmp_path: Path) -> None:
    made = nccl_environment(NcclOptions(), {"NCCL_DEBUG": "WARN"}, tmp_path)

    assert (made.variables, made.replaced) == ({}, ())


def test_what_is_asked_for_replaces_what_is_set(tmp_path: Path) -> None:
    environment = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "COLL", "NCCL_DEBUG_FILE": "/tmp/x"}
    made = nccl_environment(NcclOptions(debug=""), environment, Path("/a%b"))

    assert made.variables == {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/a%%b/%h.%p.txt"}
    assert made.replaced == ("NCCL_DEBUG", "NCCL_DEBUG_FILE")


def test_trace_is_more_than_info_and_stays(tmp_path: Path) -> None:
    made = nccl_environment(NcclOptions(debug="NET"), {"NCCL_DEBUG": "TRACE"}, tmp_path)

    assert made.variables["NCCL_DEBUG"] == "TRACE"
    assert made.variables["NCCL_DEBUG_SUBSYS"] == "NET"
    assert made.replaced == ()


def test_names_of_subsystems_are_checked() -> None:
    assert find_unknown_subsystem("INIT,net") == ""
    assert find_unknown_subsystem("^COLL") == ""
    assert find_unknown_subsystem("INIT,torchrun") == "torchrun"


def run(tmp_path: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return run_whystuck("run", "--evidence", "ev", *options, cwd=tmp_path, environment=environment)


def test_job_gets_the_variables_and_a_folder_to_write_to(tmp_path: Path) -> None:
    done = run(
        tmp_path, "--nccl-debug", "--nccl-net-plugin", "none", "--", sys.executable, "-c", SHOW
    )

    shown = json.loads(done.stdout)
    assert shown["NCCL_DEBUG"] == "INFO"
    assert shown["NCCL_NET_PLUGIN"] == "none"
    assert Path(shown["NCCL_DEBUG_FILE"]).parent.parent == next(tmp_path.glob("ev/rounds/0/*"))
    assert done.stderr == b""
    assert list(tmp_path.glob("ev/rounds/0/*/nccl")) == []


def test_job_is_left_alone_when_nothing_is_asked(tmp_path: Path) -> None:
    done = run(tmp_path, "--", sys.executable, "-c", SHOW, NCCL_DEBUG="WARN")

    assert json.loads(done.stdout) == {"NCCL_DEBUG": "WARN"}
    assert done.stderr == b""


def test_variable_that_gives_way_and_one_that_is_wrong_are_told(tmp_path: Path) -> None:
    done = run(
        tmp_path, "--nccl-debug", "INIT", "--", sys.executable, "-c", SHOW,
        NCCL_DEBUG="WARN", NCCL_SOCKET_IFNAME="nosuch",
    )  # fmt: skip

    assert done.returncode == 0
    assert json.loads(done.stdout)["NCCL_SOCKET_IFNAME"] == "nosuch"
    first, second = done.stderr.decode().splitlines()
    assert first == "whystuck: `NCCL_DEBUG` of the environment gives way to the option"
    assert second.startswith("whystuck: warning: NCCL_SOCKET_IFNAME=nosuch: no network interface")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nccl-debug", "true"], "error: `true` is no part of NCCL"),
        (["--nccl-socket-ifname", "nosuch"], "error: `--nccl-socket-ifname`: no network"),
        (["--nccl-net-plugin", "nosuch"], "error: `--nccl-net-plugin`: no plugin `nosuch`"),
    ],
)
def test_wrong_option_ends_with_2_before_anything_starts(
    tmp_path: Path, options: list[str], message: str
) -> None:
    done = run(tmp_path, *options, "--", "touch", "started")

    assert done.returncode == 2
    assert done.stderr.decode().startswith(message)
    assert "\nhint: " in done.stderr.decode()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [0, 1])
def test_lines_of_a_rank_go_to_its_folder_and_never_to_the_console(
    tmp_path: Path, code: int
) -> None:
    done = run(
        tmp_path, "--nccl-debug", "--", sys.executable, "-c", WRITE, str(code),
        RANK="3", LOCAL_RANK="0", WORLD_SIZE="4",
    )  # fmt: skip

    assert done.returncode == code
    assert done.stdout == b"said nothing of it\n"
    (kept,) = tmp_path.glob("ev/rounds/0/*/rank-3/nccl.txt")
    assert "NCCL INFO Bootstrap" in kept.read_text()
    assert list(tmp_path.glob("ev/rounds/0/*/nccl")) == []
    in_incidents = list(tmp_path.glob("ev/incidents/*/*/rank-3/nccl.txt"))
    assert [path.read_text() for path in in_incidents] == [kept.read_text()] * code


def make_logs(tmp_path: Path, said: list[str]) -> NcclLogs:
    evidence = EvidenceFolder(tmp_path / "ev", "n1")
    return NcclLogs(evidence, NcclOptions(debug=""), {}, said.append)


def test_file_that_grows_loses_its_middle_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl_logs, "MAX_FILE_BYTES", 2 << 20)
    monkeypatch.setattr(nccl_logs, "_HEAD_BYTES", 256 << 10)
    monkeypatch.setattr(nccl_logs, "_TAIL_BYTES", 512 << 10)
    said: list[str] = []
    logs = make_logs(tmp_path, said)
    path = tmp_path / "ev/rounds/0/n1/nccl/host.41.txt"
    with path.open("w") as file:
        for number in range(60_000):
            file.write(f"host:41:41 [0] NCCL INFO line {number} {'x' * 40}\n")
        file.flush()
        before = path.stat().st_blocks
        logs.bound()
        logs.bound()
        file.write("host:41:41 [0] NCCL INFO the last line\n")
    assert len(said) == 1
    if "its middle is dropped" in said[0]:  # not every file system can
        assert path.stat().st_blocks * 2 < before
    logs.close({41: (2, 0)})

    kept = (tmp_path / "ev/rounds/0/n1/rank-2/nccl.txt").read_bytes()
    assert kept.startswith(b"host:41:41 [0] NCCL INFO line 0 ")
    assert kept.endswith(b"the last line\n")
    assert b"bytes are left out here" in kept
    assert b"\0" not in kept
    assert len(kept) < 1 << 20


def test_lines_of_earlier_attempts_and_of_strangers_are_kept_apart(tmp_path: Path) -> None:
    logs = make_logs(tmp_path, [])
    folder = tmp_path / "ev/rounds/0/n1/nccl"
    for pid in (10, 20, 30):
        (folder / f"host.{pid}.txt").write_text(f"host:{pid}:{pid} [0] NCCL INFO x\n")
    ranks = {10: (0, 0), 20: (0, 1)}
    logs.keep(tmp_path / "incident", {20: 0}, ranks)
    logs.keep(tmp_path / "before", {10: 0}, ranks)
    logs.close(ranks)

    round_dir = folder.parent
    names = sorted(str(path.relative_to(round_dir)) for path in round_dir.rglob("*.txt"))
    assert names == ["nccl/host.30.txt", "rank-0/nccl-attempt-0.txt", "rank-0/nccl.txt"]
    incident = tmp_path / "incident/n1"
    taken = sorted(str(path.relative_to(incident)) for path in incident.rglob("*.txt"))
    assert taken == ["nccl/host.30.txt", "rank-0/nccl.txt"]
    assert "host:20" in (incident / "rank-0/nccl.txt").read_text()
    assert "host:10" in (tmp_path / "before/n1/rank-0/nccl.txt").read_text()


def test_options_count_too_where_the_probe_is_switched_off(tmp_path: Path) -> None:
    done = run(
        tmp_path, "--nccl-net-plugin", "none", "--", sys.executable, "-c", SHOW,
        WHYSTUCK_DISABLE="1",
    )  # fmt: skip

    assert json.loads(done.stdout) == {"NCCL_NET_PLUGIN": "none"}
