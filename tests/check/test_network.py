"""Names, interfaces and InfiniBand: good ones pass, injected faults are named."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.check.checking import find, run_check, write_tree

from whystuck.check.network import dns
from whystuck.check.network.dns import Dns
from whystuck.check.network.fabric import Fabric
from whystuck.check.network.nic import Nic
from whystuck.evidence.finding import Severity
from whystuck.evidence.nodes.checks import Outcome

SILENT = "127.0.0.203"
ROOT = Path(__file__).parents[2]


# ------------------------------------------------------------------------------------------- dns


def make_resolv(root: Path, *servers: str) -> Path:
    text = "".join(f"nameserver {server}\n" for server in servers)
    return write_tree(root, {"etc/resolv.conf": text})


@contextmanager
def name_server(address: str, *, answers: bool) -> Iterator[None]:
    """Something that listens for names, on a port of our own."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, 0))
    server.settimeout(0.05)
    is_over = threading.Event()

    def serve() -> None:
        while not is_over.is_set():
            try:
                data, who = server.recvfrom(4096)
            except OSError:
                continue
            if answers:
                server.sendto(data[:2] + b"\x81\x85" + data[4:], who)

    thread = threading.Thread(target=serve)
    thread.start()
    before, dns._PORT = dns._PORT, server.getsockname()[1]
    try:
        yield
    finally:
        dns._PORT = before
        is_over.set()
        thread.join()
        server.close()


def test_a_name_server_that_answers_passes(tmp_path: Path) -> None:
    with name_server("127.0.0.1", answers=True):
        (result,) = run_check(Dns(), root=make_resolv(tmp_path, "127.0.0.1"))

    assert [one for one in result.problems if one.subject == "name servers"] == []
    assert result.figures["server_0_ms"] > 0


def test_a_name_server_that_does_not_answer_is_told(tmp_path: Path) -> None:
    with name_server(SILENT, answers=False):
        (result,) = run_check(Dns(), root=make_resolv(tmp_path, SILENT))

    (problem,) = (one for one in result.problems if one.subject == "name servers")
    assert (problem.code, problem.severity) == ("N407", "warning")
    assert problem.text == f"no name server answers within 1.5 s: {SILENT}"
    assert "/etc/resolv.conf" in problem.remedies[0]


def test_a_second_name_server_that_is_dead_is_a_note(tmp_path: Path) -> None:
    with name_server("127.0.0.1", answers=True):
        (result,) = run_check(Dns(), root=make_resolv(tmp_path, "127.0.0.1", "127.0.0.204"))

    (problem,) = (one for one in result.problems if one.subject == "name servers")
    assert problem.severity == "note"


def test_a_master_that_is_unknown_is_an_error(tmp_path: Path) -> None:
    environment = {"MASTER_ADDR": "node-0.invalid"}
    (result,) = run_check(Dns(), root=make_resolv(tmp_path), environment=environment)

    (problem,) = (one for one in result.problems if one.subject == "node-0.invalid")
    assert problem.severity == "error"
    assert problem.text.startswith("MASTER_ADDR, node-0.invalid, cannot be looked up: ")


# In namespaces of its own: a resolv.conf with a server at the end of a link where nobody is.
DEAD_NAMES = """
set -e
mount --make-rprivate /
ip link set lo up
ip link add dead type veth peer name end
ip addr add 192.0.2.1/24 dev dead
ip link set dead up
ip link set end up
ip neigh add 192.0.2.53 lladdr 02:00:00:00:00:01 dev dead
printf 'nameserver 192.0.2.53\\n' > "$1/resolv.conf"
printf '127.0.0.1 localhost\\n' > "$1/hosts"
mount --bind "$1/resolv.conf" /etc/resolv.conf
mount --bind "$1/hosts" /etc/hosts
shift
exec "$@"
"""


def in_namespaces(script: str, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command behind a script, with a network and mounts of its own; root only."""
    if os.geteuid():
        pytest.skip("namespaces need root")
    unshare = ["unshare", "--net", "--mount", "--uts", "sh", "-c", script, "sh", str(folder)]
    try:
        done = subprocess.run(
            [*unshare, *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            cwd=ROOT,
        )
    except FileNotFoundError:
        pytest.skip("no `unshare` on this machine")
    if "ip:" in done.stderr or "Operation not permitted" in done.stderr:
        pytest.skip(f"no namespace can be made here: {done.stderr.strip()}")
    return done


def test_names_behind_a_dead_server_are_told_and_hang_nobody(tmp_path: Path) -> None:
    done = in_namespaces(
        DEAD_NAMES, tmp_path, sys.executable, "-m", "whystuck", "check", "--only", "dns",
        "--format", "json",
    )  # fmt: skip

    assert '"code": "N407"' in done.stdout, done.stderr
    assert "192.0.2.53" in done.stdout
    assert done.returncode == 3


# ------------------------------------------------------------------------------------------- nic


def make_link(name: str, **changes: object) -> dict[str, str]:
    """An interface as /sys shows it: by itself, one that is well."""
    values = {
        "flags": "0x1003", "operstate": "up", "carrier": "1", "mtu": "9000", "speed": "100000",
        "statistics/rx_packets": "5000000", "statistics/tx_packets": "5000000",
        "statistics/rx_errors": "0", "carrier_down_count": "1",
    } | changes  # fmt: skip
    return {f"sys/class/net/{name}/{key}": f"{value}\n" for key, value in values.items()}


def test_the_interfaces_of_this_machine_can_be_read() -> None:
    (result,) = run_check(Nic())

    assert result.outcome is not Outcome.INCOMPLETE


def test_good_interfaces_pass(tmp_path: Path) -> None:
    root = write_tree(tmp_path, make_link("eth0") | make_link("eth1", operstate="down", carrier=0))
    (result,) = run_check(Nic(), root=root)

    assert result.outcome is Outcome.OK
    assert result.facts["eth0"] == "up, 100 Gbit/s, MTU 9000"


def test_an_interface_with_errors_is_told(tmp_path: Path) -> None:
    root = write_tree(tmp_path, make_link("eth0", **{"statistics/rx_errors": 4000}))
    finding = find(run_check(Nic(), root=root), "N409")

    assert finding.summary == "eth0 has 4000 errors in 10000000 packets"
    assert finding.because[0].text == "rx_errors 4000"


def test_a_route_over_a_link_that_is_down_is_told(tmp_path: Path) -> None:
    files = make_link("eth0", carrier=0, operstate="down")
    files["proc/net/route"] = "Iface\tDestination\tGateway\neth0\t00000000\t0102A8C0\n"
    finding = find(run_check(Nic(), root=write_tree(tmp_path, files)), "N408")

    assert finding.summary == "a route leads over eth0, which is without a link"
    assert finding.severity is Severity.WARNING


DOWN = """
set -e
shift
ip link add one type veth peer name two
ip addr add 192.0.2.1/24 dev one
ip link set one up
exec "$@"
"""


@pytest.mark.parametrize("mounts", ["", "mount -t sysfs sysfs /sys;"])
@pytest.mark.parametrize(
    ("breaks", "why"),
    [
        ("ip link set one down", "one has the address 192.0.2.1, and is switched off"),
        ("true", "a route leads over one, which is without a link"),
    ],
)
def test_an_interface_that_nothing_asks_for_is_told_when_it_went_down(
    tmp_path: Path, breaks: str, why: str, mounts: str
) -> None:
    # GIVEN a network whose only link goes down, and /sys of that network or of another one
    mounted = DOWN.replace("exec", f"{mounts} {breaks}; exec")
    done = in_namespaces(
        mounted, tmp_path, sys.executable, "-m", "whystuck", "check", "--only", "nic"
    )

    assert f"warning[N408]: {why}" in done.stdout, done.stdout
    assert done.returncode == 3


def test_a_link_without_address_is_told_where_none_is_left(tmp_path: Path) -> None:
    links = make_link("eth0", flags="0x1002", operstate="down", carrier="", carrier_up_count=1)
    spare = make_link("eth1", flags="0x1002", operstate="down", carrier="", carrier_up_count=0)
    finding = find(run_check(Nic(), root=write_tree(tmp_path, links | spare)), "N408")

    assert finding.summary == "no interface is up but the loopback: eth0 is switched off"


def test_a_bridge_for_containers_that_do_not_run_may_be_down(tmp_path: Path) -> None:
    files = make_link("eth0") | make_link("docker0", carrier=0, operstate="down")
    files["sys/class/net/docker0/bridge/ageing_time"] = "1\n"
    files["proc/net/route"] = "Iface\tDestination\tGateway\ndocker0\t000011AC\t00000000\n"
    (result,) = run_check(Nic(), root=write_tree(tmp_path, files))

    assert result.outcome is Outcome.OK


@pytest.mark.parametrize("variable", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"])
def test_an_interface_that_is_asked_for_and_down_is_an_error(tmp_path: Path, variable: str) -> None:
    # GIVEN a network whose only link has an end that is switched off
    mounted = f"{DOWN}".replace("exec", f"mount -t sysfs sysfs /sys; {variable}=one exec")
    done = in_namespaces(
        mounted, tmp_path, sys.executable, "-m", "whystuck", "check", "--only", "nic"
    )

    assert f"error[N408]: {variable}=one names no interface that is up: one is" in done.stdout
    assert "ip link set one up" in done.stdout
    assert done.returncode == 1


# ---------------------------------------------------------------------------------------- fabric


def make_port(card: str, **changes: object) -> dict[str, str]:
    """A port as /sys shows it: by itself, one that is well."""
    values = {
        "state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand", "counters/symbol_error": "0", "counters/link_downed": "0",
        "counters/port_rcv_errors": "0",
    } | changes  # fmt: skip
    place = f"sys/class/infiniband/{card}/ports/1"
    return {f"{place}/{key}": f"{value}\n" for key, value in values.items()}


def check_fabric(root: Path, **changes: object) -> list[object]:
    files = make_port("mlx5_0") | make_port("mlx5_1") | make_port("mlx5_2", **changes)
    return list(run_check(Fabric(), root=write_tree(root, files)))


def test_a_node_without_infiniband_is_skipped_and_says_so(tmp_path: Path) -> None:
    (result,) = run_check(Fabric(), root=tmp_path)

    assert result.outcome is Outcome.SKIPPED
    assert "no InfiniBand" in result.reason


def test_good_ports_pass(tmp_path: Path) -> None:
    (result,) = check_fabric(tmp_path)

    assert result.outcome is Outcome.OK  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("changes", "severity", "text"),
    [
        (
            {"state": "1: DOWN", "phys_state": "3: Disabled"},
            "warning",
            "is DOWN, its link Disabled",
        ),
        ({"state": "1: DOWN", "phys_state": "2: Polling"}, "error", "is DOWN, its link Polling"),
        ({"rate": "200 Gb/sec"}, "warning", "runs at 200 Gbit/s, others of this node at 400"),
        ({"counters/symbol_error": 70000}, "warning", "counts 70000 symbol_error, more than 1000"),
        ({"counters/link_downed": 12}, "warning", "counts 12 link_downed, more than 5"),
    ],
)
def test_a_bad_port_is_told(
    tmp_path: Path, changes: dict[str, object], severity: str, text: str
) -> None:
    finding = find(check_fabric(tmp_path, **changes), "N410")  # type: ignore[arg-type]

    assert finding.severity.value == severity
    assert finding.summary.startswith("port mlx5_2:1 ")
    assert text in finding.summary
