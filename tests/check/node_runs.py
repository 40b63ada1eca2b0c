"""Runs `whystuck check` as several nodes at once: on one loopback, or in networks of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.launch.running import PATIENCE_S, WHYSTUCK, clean_environment
from tests.ports import find_port

ROOT = Path(__file__).parents[2]
# What a busy machine makes slow is no fault of these.
EASY = """
[gemm]
min_host_gflops_per_core = 0.0
seconds = 0.05
[allreduce]
min_gloo_gbps = 0.0
megabytes = 1
repeats = 1
[nodes]
meet_s = {meet_s}
budget_s = 0.3
min_gloo_gbps = {least}
min_share_of_quartile = {share}
max_host_below_median_share = {below}
max_clock_offset_s = 5.0
pair_s = {pair_s}
"""


@dataclass(frozen=True)
class Answer:
    """What one node said in the end."""

    code: int
    report: dict[str, Any]
    errors: str = ""

    def find(self, code: str) -> list[dict[str, Any]]:
        return [one for one in self.report["findings"] if one["code"] == code]

    def row(self, name: str, subject: str = "") -> dict[str, Any]:
        rows = self.report["checks"]
        (row,) = (one for one in rows if (one["name"], one["subject"]) == (name, subject))
        return row  # type: ignore[no-any-return]


@dataclass
class Nodes:
    """Nodes that check themselves together.

    ``pythons`` are those of the job, by node rank, where they are not ours; ``before`` are words
    before the command.
    """

    folder: Path
    count: int = 3
    host: str = "127.0.0.1"
    only: str = "pairs"
    pythons: Mapping[int, str] = field(default_factory=dict)
    before: Mapping[int, Sequence[str]] = field(default_factory=dict)
    meet_s: float = 120.0
    least: float = 0.0
    share: float = 0.0
    pair_s: float = 60.0
    below: float = 1.0
    port: int = field(default_factory=find_port)

    def start(self, rank: int, *, number: int | None = None) -> subprocess.Popen[bytes]:
        """Start one node; ``number`` is the rank that it says it has."""
        place = self.folder / f"node-{rank}"
        place.mkdir(exist_ok=True)
        names = ("least", "share", "pair_s", "meet_s", "below")
        text = EASY.format(**{name: getattr(self, name) for name in names})
        (place / "policy.toml").write_text(text)
        command = [
            *self.before.get(rank, ()), *WHYSTUCK, "check", "--only", self.only, "--format", "json",
            "--coordinator", f"{self.host}:{self.port}", "--nnodes", str(self.count),
            "--node-rank", str(rank if number is None else number),
            "--policy", str(place / "policy.toml"),
        ]  # fmt: skip
        environment = clean_environment()
        python = self.pythons.get(rank, sys.executable)
        environment["PATH"] = f"{Path(python).parent}:{environment['PATH']}"
        with (place / "errors").open("wb") as errors, (place / "report").open("wb") as report:
            return subprocess.Popen(
                command, cwd=place, env=environment, stdout=report, stderr=errors
            )

    def wait(self, rank: int, process: subprocess.Popen[bytes]) -> Answer:
        """Return what a node said."""
        try:
            code = process.wait(PATIENCE_S)
        finally:
            process.kill()
        place = self.folder / f"node-{rank}"
        errors = (place / "errors").read_text(errors="replace")
        text = (place / "report").read_text()
        assert text, errors
        return Answer(code, json.loads(text), errors)

    def check(self, ranks: Sequence[int] | None = None) -> dict[int, Answer]:
        """Run nodes, all by default, side by side."""
        chosen = range(self.count) if ranks is None else ranks
        processes = {rank: self.start(rank) for rank in chosen}
        try:
            return {rank: self.wait(rank, process) for rank, process in processes.items()}
        finally:
            for process in processes.values():
                process.kill()
                process.wait()


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=30)


@dataclass(frozen=True)
class Networks:
    """Networks of ``count`` hosts, which a bridge joins; host K has the address 10.78.9.K+1."""

    names: tuple[str, ...]

    @property
    def before(self) -> dict[int, list[str]]:
        """What makes a command one of a host, with a name of its own."""
        script = 'hostname "$1"; shift; exec "$@"'
        return {
            number: ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", script, "sh",
                     f"n{number}"]
            for number, name in enumerate(self.names)
        }  # fmt: skip

    def address(self, number: int) -> str:
        return f"10.78.9.{number + 1}"

    def shape(self, number: int, *arguments: str) -> None:
        """Have the kernel delay, limit or drop what a host sends."""
        command = ["tc", "-n", self.names[number], *arguments]
        done = subprocess.run(command, check=False, capture_output=True, timeout=30)
        if done.returncode:
            pytest.skip(f"`tc` cannot do this here: {done.stderr.decode().strip()}")

    def slow_down(self, number: int, rate: str) -> None:
        """Limit all that a host sends."""
        limit = ("tbf", "rate", rate, "burst", "32kb", "latency", "100ms")
        self.shape(number, "qdisc", "add", "dev", "link0", "root", *limit)

    def slow_link(self, number: int, other: int, rate: str) -> None:
        """Limit what two hosts send to each other, and nothing else."""
        for one, peer in ((number, other), (other, number)):
            root = ("qdisc", "add", "dev", "link0", "root", "handle", "1:", "htb", "default", "1")
            self.shape(one, *root)
            for name, speed in (("1:1", "10gbit"), ("1:3", rate)):
                self.shape(
                    one, "class", "add", "dev", "link0", "parent", "1:", "classid", name, "htb",
                    "rate", speed,
                )  # fmt: skip
            self.shape(
                one, "filter", "add", "dev", "link0", "parent", "1:", "protocol", "ip", "u32",
                "match", "ip", "dst", f"{self.address(peer)}/32", "flowid", "1:3",
            )  # fmt: skip

    def cut_link(self, number: int, other: int) -> None:
        """Swallow what two hosts send to each other: it goes to a card that nobody has."""
        for one, peer in ((number, other), (other, number)):
            ip(
                "-n", self.names[one], "neigh", "replace", self.address(peer), "lladdr",
                "02:00:00:00:00:99", "dev", "link0", "nud", "permanent",
            )  # fmt: skip


@contextmanager
def make_networks(count: int) -> Iterator[Networks]:
    """Make networks; skips the test where that is not allowed."""
    if os.geteuid() or not all(map(shutil.which, ("ip", "tc", "unshare"))):
        pytest.skip("network namespaces need root, iproute2 and util-linux")
    names = [f"ws{os.getpid()}n{number}" for number in range(count)]
    switch = f"ws{os.getpid()}s"
    made: list[str] = []
    try:
        for name in (switch, *names):
            try:
                ip("netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no network namespace can be made: {error.stderr!r:.80}")
            made.append(name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", switch, "link", "add", "bridge0", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge0", "up")
        for number, name in enumerate(names):
            port = f"port{number}"
            ends = ("link0", "netns", name, "type", "veth", "peer", "name", port)
            ip("link", "add", *ends, "netns", switch)
            ip("-n", switch, "link", "set", port, "master", "bridge0")
            ip("-n", switch, "link", "set", port, "up")
            ip("-n", name, "addr", "add", f"10.78.9.{number + 1}/24", "dev", "link0")
            ip("-n", name, "link", "set", "link0", "up")
        yield Networks(tuple(names))
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False, timeout=30)
