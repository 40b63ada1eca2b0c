"""A job over two network namespaces, whose router stops forwarding in the middle."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.launch.running import run_whystuck

TRAIN = """\
import os, sys, time, torch, torch.distributed as dist

dist.init_process_group("gloo")
for step in range(10_000):
    values = torch.ones(1_000_000)
    dist.all_reduce(values)
    if dist.get_rank() == 0 and step == 20:
        open(os.environ["CUT"], "w").close()
"""
LAUNCH = """\
rank=0
for space in $LEFT $RIGHT; do
    for local in 0 1; do
        ip netns exec $space env RANK=$rank LOCAL_RANK=$local GLOO_SOCKET_IFNAME=link0 \\
            python train.py &
        rank=$((rank + 1))
    done
done
while [ ! -e "$CUT" ]; do sleep 0.05; done
ip netns exec $ROUTER sysctl -qw net.ipv4.ip_forward=0
wait
"""


@dataclass(frozen=True)
class Network:
    """Two hosts and a router between them."""

    left: str
    right: str
    router: str


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def network() -> Iterator[Network]:
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and iproute2")
    names = Network(*(f"ws{os.getpid()}{end}" for end in ("l", "r", "m")))
    made = []
    try:
        for name in (names.left, names.right, names.router):
            try:
                ip("netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no network namespace can be made: {error.stderr!r:.80}")
            made.append(name)
            ip("-n", name, "link", "set", "lo", "up")
        for number, host in enumerate((names.left, names.right), 1):
            port = f"port{number}"
            ends = ("link0", "netns", host, "type", "veth", "peer", "name", port)
            ip("link", "add", *ends, "netns", names.router)
            ip("-n", host, "addr", "add", f"10.77.{number}.2/24", "dev", "link0")
            ip("-n", names.router, "addr", "add", f"10.77.{number}.1/24", "dev", port)
            ip("-n", host, "link", "set", "link0", "up")
            ip("-n", names.router, "link", "set", port, "up")
            ip("-n", host, "route", "add", "default", "via", f"10.77.{number}.1")
        ip("netns", "exec", names.router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        yield names
    finally:
        for name in made:
            ip("netns", "del", name)


@pytest.mark.slow
def test_packets_that_are_dropped_are_a_stalled_transfer(network: Network, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "launch.sh").write_text(LAUNCH)
    environment = {
        "LEFT": network.left,
        "RIGHT": network.right,
        "ROUTER": network.router,
        "CUT": str(tmp_path / "cut"),
        "MASTER_ADDR": "10.77.1.2",
        "MASTER_PORT": "29511",
        "WORLD_SIZE": "4",
    }
    options = ("--stall-after", "8", "--on-stall", "kill", "--evidence", "ev")
    run = run_whystuck(
        *("run", *options, "--", "bash", "launch.sh"), cwd=tmp_path, environment=environment
    )
    assert run.returncode == 124, run.stderr.decode(errors="replace")
    report = json.loads((tmp_path / "ev/incidents/000/report.json").read_bytes())
    (finding,) = report["findings"]

    assert (finding["code"], finding["culprits"]["ranks"]) == ("H122", [])
    # Two ranks on each side: only connections that cross the router are dead.
    assert finding["details"]["pairs"]
    for low, high in finding["details"]["pairs"]:
        assert low in {0, 1}
        assert high in {2, 3}
