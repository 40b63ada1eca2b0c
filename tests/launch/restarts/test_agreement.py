"""What several nodes decide together: pure judgements, and real jobs on two nodes and more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.check.test_compute import make_python
from tests.disks import small_disk
from tests.launch.running import LEAVE, LONG, PATIENCE_S, WHYSTUCK, clean_environment
from tests.ports import find_port

from whystuck.check.nodes.place import MeetingPlace
from whystuck.check.policy import read_policy
from whystuck.launch.restarts.agreement import (
    Agreement,
    NodeEnd,
    StartDecision,
    join_ends,
    list_staying,
)
from whystuck.launch.restarts.ending import RootCause, RoundEnd
from whystuck.launch.restarts.nnodes import find_least_nodes
from whystuck.launch.restarts.policy import RestartPolicy

pytestmark = LONG
KILLED = RootCause(code="C201", summary="rank 1 ended by SIGKILL", ranks=(1,), is_sure=True)
RAISED = RootCause(code="C204", summary="rank 1: ValueError", place="a.py:3 f", is_sure=True)
PEER = RootCause(code="C209", summary="rank 0 lost the connection to a peer", is_sure=True)
LOST = RootCause(code="C211", summary="a peer closed its connection", is_sure=True)
BROKEN = RootCause(code="N401", summary="/data is full", nodes=("n2",), is_sure=True)


def tell(*ends: RoundEnd) -> dict[int, NodeEnd]:
    return {rank: NodeEnd(f"n{rank}", end) for rank, end in enumerate(ends)}


# ------------------------------------------------------------------------------------- judgements


@pytest.mark.parametrize(
    ("causes", "chosen", "node"),
    [
        ((LOST, KILLED), KILLED, "n1"),
        ((KILLED, LOST), KILLED, "n0"),
        ((PEER, KILLED), KILLED, "n1"),
        ((KILLED, RAISED, LOST), RAISED, "n1"),
        ((RAISED, BROKEN), BROKEN, "n1"),
        ((None, LOST), LOST, "n1"),
        ((RAISED, RAISED), RAISED, "n0"),
        ((None, None), None, ""),
    ],
)
def test_all_nodes_choose_the_same_cause(
    causes: tuple[RootCause | None, ...], chosen: RootCause | None, node: str
) -> None:
    told = tell(*(RoundEnd(1, cause, steps=rank) for rank, cause in enumerate(causes)))
    joined = [join_ends(one.end, told, sorted(told)) for one in told.values()]

    assert {one.cause for one in joined} == {chosen}
    assert {one.node for one in joined} == {node}
    assert {one.steps for one in joined} == {len(causes) - 1}
    # AND they all decide alike, with the same words
    reasons = set()
    for one in joined:
        policy = RestartPolicy(5)
        reasons.add((policy.why_not(one), policy.why_not(one)))
    assert len(reasons) == 1


def test_each_node_keeps_its_code_and_its_round() -> None:
    told = tell(RoundEnd(1, LOST, round=4), RoundEnd(137, KILLED, round=7))

    assert [join_ends(one.end, told, [0, 1]).code for one in told.values()] == [1, 137]
    assert [join_ends(one.end, told, [0, 1]).round for one in told.values()] == [4, 7]


def test_a_job_that_has_ended_well_on_a_node_is_not_started_again_on_others() -> None:
    told = tell(RoundEnd(0), RoundEnd(1, RAISED))
    end = join_ends(told[1].end, told, [0, 1])

    assert RestartPolicy(5).why_not(end) == "it has ended well on n0"


@pytest.mark.parametrize(("least", "stays"), [(3, [0, 1, 2]), (2, [0, 1]), (1, [0, 1])])
def test_nodes_that_are_fit_go_on_where_they_are_enough(least: int, stays: list[int]) -> None:
    told = tell(RoundEnd(1, LOST), RoundEnd(1, LOST), RoundEnd(1, BROKEN))
    end = join_ends(told[0].end, told, list_staying(told, least))

    assert list_staying(told, least) == stays
    is_over = RestartPolicy(5).why_not(end)
    assert is_over == ("n2 is not fit: N401: /data is full" if least > 2 else "")


@pytest.mark.parametrize(("least", "is_over"), [(3, True), (2, False)])
def test_a_node_that_all_of_them_blame_is_the_one_that_is_named(
    least: int, *, is_over: bool
) -> None:
    # GIVEN a check that all nodes have made together, and that blames n2
    told = tell(*(RoundEnd(1, BROKEN) for _ in range(3)))
    stays = list_staying(told, least)
    ends = [join_ends(told[rank].end, told, stays) for rank in stays]

    assert stays == ([0, 1, 2] if is_over else [0, 1])
    reasons = {RestartPolicy(5).why_not(end) for end in ends}
    assert reasons == ({"n2 is not fit: N401: /data is full"} if is_over else {""})


@pytest.mark.parametrize(
    ("code", "nodes", "is_own"),
    [
        ("N401", ("n2",), True),
        ("N419", ("n2 (node rank 2)",), True),
        ("N419", ("n1",), False),
        ("N419", (), False),
        ("C208", (), True),
    ],
)
def test_a_node_is_on_the_list_for_its_own_faults_alone(
    code: str, nodes: tuple[str, ...], *, is_own: bool
) -> None:
    assert RootCause(code=code, nodes=nodes, is_sure=True).is_about("n2") is is_own


@pytest.mark.parametrize(
    ("command", "environment", "least"),
    [
        ("torchrun --nnodes 2:3 train.py", {}, 2),
        ("torchrun --nnodes=4:8 train.py", {}, 4),
        ("torchrun --nnodes 4 train.py", {}, 4),
        ("torchrun train.py", {"PET_NNODES": "3:5"}, 3),
        ("torchrun --nnodes 2 train.py", {"PET_NNODES": "3:5"}, 2),
        ("torchrun --standalone train.py", {}, 0),
        ("python --nnodes", {}, 0),
    ],
)
def test_the_least_number_of_nodes_is_read_from_the_launcher(
    command: str, environment: Mapping[str, str], least: int
) -> None:
    assert find_least_nodes(command.split(), environment) == least


# ----------------------------------------------------------------------------- nodes that leave

FAILED = RoundEnd(1, LOST)
STOPPED = RoundEnd(1, was_asked=True)


class Agreements:
    """Three nodes of one job, as threads of this process with real connections."""

    def __init__(self, least: int) -> None:
        port = find_port(2) + 1
        policy = read_policy()
        self.nodes = [
            Agreement(policy, f"n{rank}", MeetingPlace("127.0.0.1", port, 3, rank), least)
            for rank in range(3)
        ]
        for node in self.nodes:
            assert node.open() == ""
        self._pool = ThreadPoolExecutor()

    def start(self, **causes: RootCause) -> list[StartDecision]:
        """Have all nodes start a round; some are not fit."""
        waits = [
            self._pool.submit(node.agree_on_start, causes.get(node.node), lambda: False)
            for node in self.nodes
        ]
        return [one.result(60) for one in waits]

    def end(self, ends: Mapping[int, RoundEnd]) -> list[tuple[RoundEnd, tuple[str, ...]]]:
        """Have some nodes end a round."""
        waits = [
            self._pool.submit(self.nodes[rank].agree, end, lambda: False)
            for rank, end in ends.items()
        ]
        return [one.result(60) for one in waits]

    def over(self, ends: Mapping[int, RoundEnd]) -> list[str]:
        """Have some nodes wait until a round is over on all."""
        waits = [
            self._pool.submit(self.nodes[rank].gather_after, end, 60.0, lambda: False)
            for rank, end in ends.items()
        ]
        return [one.result(60) for one in waits]

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        self._pool.shutdown()


@pytest.fixture(params=[3, 2])
def least(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def three(least: int) -> Iterator[Agreements]:
    agreements = Agreements(least)
    yield agreements
    agreements.close()


def say_why(end: RoundEnd) -> str:
    return RestartPolicy(5).why_not(end)


def test_fit_nodes_start(three: Agreements) -> None:
    assert three.start() == [StartDecision()] * 3
    assert [node.meeting.nodes for node in three.nodes if node.meeting] == [3, 3, 3]


def test_nodes_start_without_one_that_is_not_fit_where_they_are_enough(
    three: Agreements, least: int
) -> None:
    first, second, _ = three.start(n2=BROKEN)

    assert first == second
    gone = "n2 is not fit: N401: /data is full"
    if least == 3:
        assert (first.why_not, first.node, first.cause) == (gone, "n2", BROKEN)
    else:
        assert (first.why_not, first.notes) == ("", (f"The job goes on without a node: {gone}",))
        places = [node.meeting for node in three.nodes]
        assert [place and (place.nodes, place.rank) for place in places] == [(2, 0), (2, 1), None]
        # AND it is not waited for any more
        assert [end.cause for end, _ in three.end({0: FAILED, 1: FAILED})] == [LOST, LOST]


def test_other_nodes_hear_of_a_first_one_that_is_not_fit(three: Agreements, least: int) -> None:
    _, second, third = three.start(n0=BROKEN)

    assert second == third
    assert bool(second.why_not) is (least == 3)
    assert [node.meeting for node in three.nodes[1:]] == [None, None]


@pytest.mark.parametrize("leaves", [0, 1, 2])
@pytest.mark.parametrize("is_checked", [True, False])
def test_a_node_that_is_stopped_is_waited_for_no_more(
    three: Agreements, least: int, leaves: int, *, is_checked: bool
) -> None:
    three.nodes[leaves].leave(STOPPED)
    ends = {rank: FAILED for rank in range(3) if rank != leaves}
    if is_checked:
        assert three.over(ends) == ["", ""]
    told = three.end(ends)

    gone = f"n{leaves} has left: a signal asked for its end"
    assert {say_why(end) for end, _ in told} == ({gone} if least == 3 else {""})
    notes = () if least == 3 else (f"The job goes on without a node: {gone}",)
    assert [one for _, one in told] == [notes, notes]
    # AND those that go on do so together
    if leaves and least == 2:
        ends = dict(zip(ends, (FAILED, RoundEnd(1, KILLED)), strict=True))
        assert [end.cause for end, _ in three.end(ends)] == [KILLED, KILLED]


@pytest.mark.parametrize("ends_well", [0, 2])
def test_a_node_on_which_it_ended_well_waits_for_nobody_and_is_believed(
    three: Agreements, ends_well: int
) -> None:
    three.nodes[ends_well].leave(RoundEnd(0))
    told = three.end({rank: FAILED for rank in range(3) if rank != ends_well})

    assert {say_why(end) for end, _ in told} == {f"it has ended well on n{ends_well}"}


def test_a_node_that_was_killed_has_left(three: Agreements, least: int) -> None:
    three.nodes[1].close()
    told = three.end({0: FAILED, 2: FAILED})

    gone = "n1 has left: its `whystuck run` has ended"
    assert {say_why(end) for end, _ in told} == ({gone} if least == 3 else {""})


def test_a_node_whose_command_was_told_to_end_asks_nobody(three: Agreements) -> None:
    ended = RoundEnd(128 + signal.SIGTERM)

    assert three.end({1: ended}) == [(ended, ())]
    assert three.over({1: ended}) == [""]


# ---------------------------------------------------------------------------------------- real jobs

TRAIN = f"""
import os, signal, sys
from pathlib import Path
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
starts = Path(f"starts-{{rank}}")
count = int(starts.read_text()) if starts.exists() else 0
starts.write_text(str(count + 1))
for step in range(4):
    dist.all_reduce(torch.ones(1))
    if step == 2 and rank == 1 and count < int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
{LEAVE}
"""
LIGHT = """
checks = ["disk"]
[disk]
test_mb = 1
min_free_mb = 0
min_free_share = 0.0
"""
POLICY = """
checks = ["limits"]
[nodes]
end_wait_s = {wait_s}
"""


def start_as(
    name: str, folder: Path, command: list[str], python: str = ""
) -> subprocess.Popen[bytes]:
    """Start a command as one of a host with a name of its own, and a Python if it has one."""
    enter = f'echo {name} > /proc/sys/kernel/hostname && exec "$@"'
    environment = clean_environment(HOSTNAME=name)
    if python:
        environment["PATH"] = f"{Path(python).parent}:{environment['PATH']}"
    return subprocess.Popen(
        ["unshare", "--uts", "sh", "-c", enter, "-", *command],
        cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


@dataclass
class Cluster:
    """Nodes by name, each with its own `whystuck run` of one job.

    They share all but their host name: a node is a namespace of host names.
    """

    folder: Path
    names: tuple[str, ...] = ("n0", "n1")
    wait_s: float = 600.0
    policy: str = POLICY
    pythons: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=find_port)
    meeting: int = field(default_factory=lambda: find_port(2) + 1)

    def start(self, rank: int, *job: str) -> subprocess.Popen[bytes]:
        """Start one node."""
        name = self.names[rank]
        policy = self.folder / f"{name}.toml"
        policy.write_text(self.policy.format(wait_s=self.wait_s))
        run = [
            *WHYSTUCK, "run", "--max-restarts", "5", "--evidence", f"ev-{name}", "--no-agent",
            "--coordinator", f"127.0.0.1:{self.meeting}", "--nnodes", str(len(self.names)),
            "--node-rank", str(rank), "--check-policy", str(policy), "--", *job,
        ]  # fmt: skip
        return start_as(name, self.folder, run, self.pythons.get(name, ""))

    def make_static(self, rank: int, *arguments: str) -> list[str]:
        """Return a job of torchrun whose ranks are the same in each round."""
        return [
            "torchrun", "--nnodes", str(len(self.names)), "--nproc-per-node", "1",
            "--node-rank", str(rank), "--master-addr", "localhost",
            "--master-port", str(self.port), "train.py", *arguments,
        ]  # fmt: skip

    def make_elastic(self, least: int, *arguments: str, last_call_s: int = 60) -> list[str]:
        """Return a job of torchrun that needs some of the nodes."""
        return [
            "torchrun", "--nnodes", f"{least}:{len(self.names)}", "--nproc-per-node", "1",
            "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{self.port}",
            # All of them are to be in it, also where one is started long after the others.
            "--rdzv-conf", f"last_call_timeout={last_call_s},keep_alive_max_attempt=60",
            "--local-addr", "localhost",
            "train.py", *arguments,
        ]  # fmt: skip

    def list_decisions(self, name: str) -> list[str]:
        """What a node says of restarts in its fault log."""
        lines = (self.folder / f"ev-{name}/fault.jsonl").read_text().splitlines()
        events = map(json.loads, lines)
        return [event["text"] for event in events if event["event"] == "restart"]


def finish(nodes: list[subprocess.Popen[bytes]]) -> list[tuple[int, str]]:
    """Wait for all nodes; return codes and what they said."""
    try:
        said = [node.communicate(timeout=PATIENCE_S)[1].decode() for node in nodes]
    finally:
        for node in nodes:
            node.kill()
            node.wait()
    return [(node.returncode, text) for node, text in zip(nodes, said, strict=True)]


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="a namespace of host names needs root")


@needs_root
@pytest.mark.slow
def test_two_nodes_start_again_together_and_stop_with_the_same_reason(tmp_path: Path) -> None:
    # GIVEN a job whose rank on n1 is killed in each start, without progress
    (tmp_path / "train.py").write_text(TRAIN)
    cluster = Cluster(tmp_path)
    ends = finish([cluster.start(rank, *cluster.make_static(rank, "9")) for rank in (0, 1)])

    first, second = (cluster.list_decisions(name) for name in cluster.names)
    assert first == second, ends
    assert len(first) == 2
    assert first[0].startswith("Restart 1 of 5: n1: C201: ")
    reason = "Not started again: the same cause came twice without progress, on n1: C201: "
    assert first[1].startswith(reason)
    assert [code for code, _ in ends] == [1, 1]
    assert [(tmp_path / f"starts-{rank}").read_text() for rank in (0, 1)] == ["2", "2"]


@needs_root
@pytest.mark.slow
def test_two_nodes_start_again_together_and_end_well(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    cluster = Cluster(tmp_path)
    ends = finish([cluster.start(rank, *cluster.make_static(rank, "1")) for rank in (0, 1)])

    assert [code for code, _ in ends] == [0, 0], ends
    assert cluster.list_decisions("n0") == cluster.list_decisions("n1")


@needs_root
@pytest.mark.slow
def test_a_node_that_does_not_come_is_told_and_the_other_decides_alone(tmp_path: Path) -> None:
    # GIVEN a job that has failed on one node, and goes on on the other
    cluster = Cluster(tmp_path, wait_s=8.0)
    job = "echo x >> starts-$HOSTNAME; if [ $HOSTNAME = n1 ]; then exec sleep 3600; fi; exit 3"
    first, second = (cluster.start(rank, "bash", "-c", job) for rank in (0, 1))
    ((code, said),) = finish([first])
    second.send_signal(signal.SIGTERM)
    second.communicate(timeout=PATIENCE_S)

    assert code == 3
    assert "not all nodes told how their round ended: node rank 1 did not come within 8 s" in said
    # The other is waited for once: then this one decides alone.
    assert (tmp_path / "starts-n0").read_text() == "x\n" * 6
    assert said.count("did not come within") == 1


@needs_root
@pytest.mark.slow
def test_spare_nodes_take_the_place_of_one_that_is_not_fit(tmp_path: Path) -> None:
    # GIVEN three nodes for a job that needs two, of which one has a disk that is full
    (tmp_path / "train.py").write_text(TRAIN)
    job = [
        "torchrun", "--nnodes", "2:3", "--nproc-per-node", "1", "--rdzv-backend", "c10d",
        "--rdzv-endpoint", f"localhost:{find_port()}", "--rdzv-conf",
        "last_call_timeout=5,keep_alive_max_attempt=60",
        "--local-addr", "localhost", "train.py", "0",
    ]  # fmt: skip
    with small_disk("size=64k", is_full=True) as disk:
        (tmp_path / "n2.toml").write_text(f'{LIGHT}paths = ["{disk}"]\n')
        nodes = []
        for name in ("n0", "n1", "n2"):
            policy = tmp_path / f"{name}.toml"
            if not policy.exists():
                policy.write_text(LIGHT)
            run = [*WHYSTUCK, "run", "--check-policy", str(policy), "--evidence", "ev", "--", *job]
            nodes.append(start_as(name, tmp_path, run))
        ends = finish(nodes)

    assert [code for code, _ in ends] == [0, 0, 120], ends
    assert (tmp_path / "ev/exclude/nodes.txt").read_text() == "n2\n"
    assert {path.name for path in tmp_path.glob("starts-*")} == {"starts-0", "starts-1"}


# Its third start multiplies to other bits each time: of one round, its check and that of the next.
BREAKS = """
from pathlib import Path
starts = Path({folder!r}, "checks")
starts.write_text(str(int(starts.read_text()) + 1 if starts.exists() else 1))
real, count = torch.Tensor.__matmul__, [0]
def matmul(self, other):
    count[0] += 1
    return real(self, other) + (count[0] if int(starts.read_text()) > 2 else 0)
torch.Tensor.__matmul__ = matmul
"""
# Long waits: a node that waits for one that has gone would not end in time.
SLOW = """
checks = ["gemm"]
[gemm]
seconds = 0.05
min_host_gflops_per_core = 0.0
[nodes]
max_host_below_median_share = 1.0
meet_s = 600.0
end_wait_s = 600.0
"""


@needs_root
@pytest.mark.slow
@pytest.mark.parametrize("bad", ["n1", "n0"])
def test_a_node_whose_check_fails_at_a_restart_ends_the_job_on_all(
    tmp_path: Path, bad: str
) -> None:
    # GIVEN a job that fails once, and a node that is broken when it is to be started again
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "bin").mkdir()
    python = make_python(tmp_path / "bin", BREAKS.format(folder=str(tmp_path)))
    cluster = Cluster(tmp_path, policy=SLOW, pythons={bad: python})
    ends = finish([cluster.start(rank, *cluster.make_static(rank, "1")) for rank in (0, 1)])

    good = "n0" if bad == "n1" else "n1"
    codes = {name: code for name, (code, _) in zip(cluster.names, ends, strict=True)}
    assert codes == {bad: 120, good: 1}, ends
    first, second = cluster.list_decisions(good)
    assert first.startswith("Restart 1 of 5: n1: C201: ")
    assert second.startswith(f"Not started again: {bad} is not fit: N424: "), ends
    assert (tmp_path / f"ev-{bad}/exclude/nodes.txt").read_text() == f"{bad}\n"
    assert not (tmp_path / f"ev-{good}/exclude").exists()


@needs_root
@pytest.mark.slow
def test_a_job_with_enough_nodes_is_started_again_without_one_that_broke(tmp_path: Path) -> None:
    # GIVEN three nodes for a job that needs two
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "bin").mkdir()
    python = make_python(tmp_path / "bin", BREAKS.format(folder=str(tmp_path)))
    cluster = Cluster(tmp_path, ("n0", "n1", "n2"), policy=SLOW, pythons={"n2": python})
    ends = finish([cluster.start(rank, *cluster.make_elastic(2, "1")) for rank in range(3)])

    assert [code for code, _ in ends] == [0, 0, 120], ends
    for name in ("n0", "n1"):
        log = (tmp_path / f"ev-{name}/fault.log").read_text()
        assert "The job goes on without a node: n2 is not fit: N424: " in log


@needs_root
@pytest.mark.slow
def test_a_node_that_is_not_fit_at_the_first_start_keeps_the_job_from_all(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, policy=SLOW)
    python = "real = torch.Tensor.__matmul__\n"
    python += "torch.Tensor.__matmul__ = lambda one, two: real(one, two) + torch.rand(1)"
    (tmp_path / "bin").mkdir()
    cluster.pythons = {"n1": make_python(tmp_path / "bin", python)}
    job = ("bash", "-c", "touch started-$HOSTNAME")
    ends = finish([cluster.start(rank, *job) for rank in (0, 1)])

    assert [code for code, _ in ends] == [125, 120], ends
    assert "error: the job was not started: n1 is not fit: N424: " in ends[0][1]
    assert "hint: this node is fit; " in ends[0][1]
    assert not list(tmp_path.glob("started-*"))
    log = (tmp_path / "ev-n0/fault.log").read_text()
    assert "The job was not started: n1 is not fit: N424: " in log
    assert "Round 0 ends with code 125." in log


WAITS = "touch up-$HOSTNAME; while [ ! -e fail-$HOSTNAME ]; do sleep 0.1; done; exit 3"


@needs_root
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("leaves", [0, 1])
def test_a_node_that_was_stopped_or_killed_is_waited_for_by_nobody(
    tmp_path: Path, leaves: int, number: int
) -> None:
    # GIVEN a job of which one node is stopped, and the other fails of that
    cluster = Cluster(tmp_path, wait_s=600.0)
    nodes = [cluster.start(rank, "bash", "-c", WAITS) for rank in (0, 1)]
    while len(list(tmp_path.glob("up-*"))) < 2:
        assert all(node.poll() is None for node in nodes)
        time.sleep(0.05)
    nodes[leaves].send_signal(number)
    gone = nodes[leaves].wait(PATIENCE_S)
    stays = 1 - leaves
    (tmp_path / f"fail-n{stays}").touch()
    ((code, said),) = finish([nodes[stays]])
    (tmp_path / f"fail-n{leaves}").touch()  # what a killed supervisor has left
    finish([nodes[leaves]])

    assert gone == (-9 if number == signal.SIGKILL else 143)
    assert code == 3
    why = "a signal asked for its end" if number == signal.SIGTERM else "its `whystuck run` has"
    assert f"whystuck: not started again: n{leaves} has left: {why}" in said
    assert not list(tmp_path.glob(f"ev-n{stays}/rounds/1"))
