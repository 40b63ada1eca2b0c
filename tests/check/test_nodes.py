"""Several nodes at once: who comes, what differs, and which node or link is bad."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.check.node_runs import Nodes, make_networks
from tests.check.test_compute import make_python
from tests.launch.running import LONG

from whystuck.check.nodes.place import MeetingPlace, find_place
from whystuck.evidence.errors import UsageError

pytestmark = LONG

# ---------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("n0", "n0", 9601),
        ("n0:29500", "n0", 29500),
        ("10.0.0.1:1", "10.0.0.1", 1),
        ("fd00::1", "fd00::1", 9601),
        ("[fd00::1]:77", "fd00::1", 77),
        ("[fd00::1]", "fd00::1", 9601),
    ],
)
def test_a_coordinator_is_a_host_with_or_without_a_port(text: str, host: str, port: int) -> None:
    assert find_place(text, 4, 3) == MeetingPlace(host, port, 4, 3)


@pytest.mark.parametrize(
    "text", ["", ":1", "n0:", "n0:x", "n0:0", "n0:70000", "[fd00::1]x", "n0:٣"]
)
def test_what_is_no_coordinator_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not HOST or HOST:PORT"):
        find_place(text, 4, 3)


def test_variables_of_launchers_tell_how_many_and_which() -> None:
    slurm = {"SLURM_NNODES": "8", "SLURM_NODEID": "5"}

    assert find_place("n0", environment=slurm) == MeetingPlace("n0", 9601, 8, 5)
    assert find_place("n0", 2, 1, slurm) == MeetingPlace("n0", 9601, 2, 1)
    assert find_place(None, environment=slurm) is None
    for variables in ({}, {"PET_NNODES": "1:4", "PET_NODE_RANK": "0"}):
        with pytest.raises(UsageError, match="needs `--nnodes` and `--node-rank`"):
            find_place("n0", environment=variables)


@pytest.mark.parametrize(("nodes", "rank"), [(4, 4), (4, -1), (0, 0)])
def test_a_rank_is_one_of_the_nodes(nodes: int, rank: int) -> None:
    with pytest.raises(UsageError, match="is none of"):
        find_place("n0", nodes, rank)


# ----------------------------------------------------------------------------------------- meeting


def test_two_good_nodes_pass_and_tell_figures_with_their_definition(tmp_path: Path) -> None:
    answers = Nodes(tmp_path, 2, only="versions,clock,pairs,allreduce").check()

    for answer in answers.values():
        assert answer.code == 0, (answer.report["findings"], answer.report["checks"])
        assert answer.row("meeting")["figures"]["nodes"] == 2
        assert answer.row("versions", "nodes")["facts"]["torch"].endswith(" on all")
        assert abs(answer.row("clock", "nodes")["figures"]["spread_ms"]) < 1000
        assert answer.row("pairs")["figures"]["min_busbw_gbps"] > 0
        told = answer.row("allreduce", "nodes")
        assert told["facts"]["sums"] == "exact"
        assert "n=2 on 2 nodes" in told["facts"]["op"]
        assert "min over ranks (busbw = 2(n-1)/n × size" in told["facts"]["bus bandwidth"]
        assert all(row["took_s"] > 0 for row in answer.report["checks"])


@pytest.mark.slow
def test_a_node_that_never_comes_is_incomplete_and_the_others_go_on(tmp_path: Path) -> None:
    answers = Nodes(tmp_path, 3, meet_s=40.0).check([0, 1])

    for answer in answers.values():
        told = answer.row("meeting")
        assert told["outcome"] == "incomplete"
        assert told["reason"] == "node rank 2 did not come within 40 s"
        assert (answer.code, answer.report["verdict"]) == (3, "inconclusive")
        assert answer.row("pairs")["outcome"] == "ok"
        assert answer.row("pairs")["figures"]["pairs"] == 1


@pytest.mark.slow
def test_where_the_first_node_never_comes_the_others_are_incomplete(tmp_path: Path) -> None:
    (answer,) = Nodes(tmp_path, 2, meet_s=3.0).check([1]).values()

    assert answer.code == 3
    assert answer.row("meeting")["outcome"] == "incomplete"
    assert "the first node does not answer at 127.0.0.1:" in answer.row("meeting")["reason"]
    assert answer.row("pairs")["reason"] == "the nodes did not meet"


@pytest.mark.slow
def test_a_first_node_that_is_alone_has_no_bus_bandwidth(tmp_path: Path) -> None:
    (answer,) = Nodes(tmp_path, 1, only="pairs,allreduce").check().values()

    for name, subject in (("pairs", ""), ("allreduce", "nodes")):
        row = answer.row(name, subject)
        assert (row["outcome"], row["figures"]) == ("skipped", {})
        assert row["reason"] == "this is the only node"


@pytest.mark.slow
def test_two_nodes_of_one_rank_are_told(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 3, meet_s=45.0)
    processes = {rank: nodes.start(rank, number=min(rank, 1)) for rank in range(3)}
    answers = [nodes.wait(rank, process) for rank, process in processes.items()]

    reasons = [answer.row("meeting")["reason"] for answer in answers]
    assert reasons.count("another node has the node rank 1, too") == 1
    assert reasons[0] == "node rank 2 did not come within 45 s"


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 2])
def test_a_node_that_is_killed_in_the_middle_hangs_nobody(tmp_path: Path, rank: int) -> None:
    # GIVEN nodes that have met, of which one is killed while pairs are measured
    slow = """
real = dist.all_reduce
def all_reduce(tensor, *args, **kwargs):
    open("begun", "w").close()
    time.sleep(3.0)
    return real(tensor, *args, **kwargs)
dist.all_reduce = all_reduce
"""
    python = make_python(tmp_path, slow)
    nodes = Nodes(tmp_path, 3, pythons=dict.fromkeys(range(3), python), pair_s=30.0)
    processes = {one: nodes.start(one) for one in range(3)}
    begun = [tmp_path / f"node-{one}/begun" for one in range(3)]
    while sum(path.exists() for path in begun) < 2:
        assert any(process.poll() is None for process in processes.values())
        time.sleep(0.05)
    processes[rank].send_signal(signal.SIGINT)
    processes[rank].wait(60)
    answers = [nodes.wait(one, processes[one]) for one in range(3) if one != rank]

    for answer in answers:
        assert answer.code == 3, answer.report["findings"]
        assert not answer.find("N421")
        row = answer.row("pairs")
        assert row["outcome"] == "incomplete"
        assert "left the check" in row["reason"] or "the meeting ended" in row["reason"]


# -------------------------------------------------------------------------------------- comparing


@pytest.mark.slow
def test_the_node_with_another_version_is_named(tmp_path: Path) -> None:
    python = make_python(tmp_path, 'torch.__version__ = "2.1.0"')
    answers = Nodes(tmp_path, 3, only="versions", pythons={1: python}).check()

    for answer in answers.values():
        (finding,) = answer.find("N417")
        assert len(finding["culprits"]["nodes"]) == 1
        assert finding["culprits"]["nodes"][0].endswith("(node rank 1)")
        assert "has another torch than the other nodes" in finding["summary"]
        assert set(finding["details"]["versions"]) > {"2.1.0"}


@pytest.fixture(scope="module")
def wall_clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library for the wall clock of one node; whoever sets the clock itself sets that of all."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build a clock that is off")
    library = tmp_path_factory.mktemp("clock") / "wall_clock.so"
    source = Path(__file__).with_name("wall_clock.c")
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_the_node_with_another_time_is_named(tmp_path: Path, wall_clock: Path, rank: int) -> None:
    before = {rank: ["env", f"LD_PRELOAD={wall_clock}", "CLOCK_OFFSET_S=90"]}
    answers = Nodes(tmp_path, 3, only="clock", before=before).check()

    for answer in answers.values():
        found = [one for one in answer.find("N406") if "median" in one["summary"]]
        (finding,) = found
        assert finding["culprits"]["nodes"][0].endswith(f"(node rank {rank})")
        assert finding["measures"]["offset_ms"] == pytest.approx(90_000, abs=3000)
        assert finding["severity"] == "error"
        assert "s ahead of the median of all nodes" in finding["summary"]
        assert "time service" in finding["remedies"][0]


@pytest.mark.slow
def test_a_node_whose_sums_are_wrong_is_named(tmp_path: Path) -> None:
    fault = """
real = dist.all_reduce
def all_reduce(tensor, *args, **kwargs):
    if tensor.numel() > 1:
        tensor[77] += 1
    return real(tensor, *args, **kwargs)
dist.all_reduce = all_reduce
"""
    python = make_python(tmp_path, fault)
    answers = Nodes(tmp_path, 3, only="pairs", pythons={2: python}).check()

    for answer in answers.values():
        (finding,) = answer.find("N419")
        assert finding["culprits"]["nodes"][0].endswith("(node rank 2)")
        assert finding["severity"] == "error"
        assert "gives wrong sums" in finding["summary"]
        assert answer.code == 1


@pytest.mark.slow
def test_the_node_with_a_slow_rank_is_named(tmp_path: Path) -> None:
    fault = """
real = torch.Tensor.__matmul__
def matmul(self, other):
    time.sleep(2.0)
    return real(self, other)
torch.Tensor.__matmul__ = matmul
"""
    python = make_python(tmp_path, fault)
    # Far apart: the nodes of this test share few cores.
    answers = Nodes(tmp_path, 3, only="gemm", pythons={1: python}, below=0.9).check()

    for answer in answers.values():
        (finding,) = answer.find("N423")
        assert finding["culprits"]["nodes"][0].endswith("(node rank 1)")
        assert finding["measures"]["tflops"] < finding["measures"]["threshold_tflops"]
        assert finding["details"]["node_rank"] == 1
        assert "whystuck check --deep" in finding["remedies"][0]


# ---------------------------------------------------------------------------------------- networks


@pytest.mark.slow
def test_a_slow_network_is_told_with_its_figure(tmp_path: Path) -> None:
    with make_networks(2) as networks:
        for node in (0, 1):
            networks.slow_down(node, "1mbit")
        answers = Nodes(
            tmp_path, 2, networks.address(0), "allreduce", before=networks.before, least=0.01
        ).check()

    for answer in answers.values():
        (finding,) = answer.find("N420")
        assert finding["measures"]["busbw_gbps"] < finding["measures"]["threshold_gbps"] == 0.01
        assert "n=2 on 2 nodes" in finding["because"][0]["text"]
        assert "--only pairs" in finding["remedies"][0]


@pytest.mark.slow
def test_good_networks_pass(tmp_path: Path) -> None:
    with make_networks(4) as networks:
        answers = Nodes(
            tmp_path, 4, networks.address(0), "pairs,clock,versions,allreduce",
            before=networks.before, share=0.02,
        ).check()  # fmt: skip

    for answer in answers.values():
        assert answer.code == 0, answer.report["findings"]
        assert answer.row("meeting")["facts"]["came"] == "n0, n1, n2, n3"
        assert answer.row("meeting")["facts"]["interface"] == "link0"
        assert answer.row("pairs")["figures"]["pairs"] == 4
        assert "n=4 on 4 nodes" in answer.row("allreduce", "nodes")["facts"]["op"]


@pytest.mark.slow
@pytest.mark.parametrize("bad", [0, 2])
def test_the_node_behind_a_slow_port_is_named_and_no_other(tmp_path: Path, bad: int) -> None:
    with make_networks(4) as networks:
        networks.slow_down(bad, "1mbit")
        answers = Nodes(tmp_path, 4, networks.address(0), before=networks.before, share=0.1).check()

    for answer in answers.values():
        (finding,) = answer.find("N421")
        assert finding["culprits"]["nodes"] == [f"n{bad}"]
        assert (finding["severity"], answer.code) == ("warning", 3)
        assert finding["details"]["node_rank"] == bad
        assert len(finding["details"]["pairs"]) >= 2
        assert finding["measures"]["busbw_gbps"] < 0.001
        assert finding["measures"]["threshold_gbps"] > finding["measures"]["busbw_gbps"]
        assert any("busbw = 2(n-1)/n" in one["text"] for one in finding["because"])
        assert finding["remedies"]


@pytest.mark.slow
@pytest.mark.parametrize("is_dead", [False, True])
def test_a_bad_link_is_a_pair_and_no_node(tmp_path: Path, is_dead: bool) -> None:
    with make_networks(4) as networks:
        if is_dead:
            networks.cut_link(2, 3)
        else:
            networks.slow_link(2, 3, "1mbit")
        answers = Nodes(
            tmp_path, 4, networks.address(0), "pairs,allreduce", before=networks.before,
            share=0.1, pair_s=30.0,
        ).check()  # fmt: skip

    for answer in answers.values():
        (finding,) = answer.find("N421")
        assert finding["culprits"]["nodes"] == []
        assert finding["details"]["pair"] == [2, 3]
        assert "the pair n2 - n3 " in finding["summary"]
        assert finding["severity"] == ("error" if is_dead else "warning")
        if is_dead:
            reason = answer.row("allreduce", "nodes")["reason"]
            assert reason == "some pairs of nodes failed: see the check of pairs"


@pytest.mark.slow
def test_a_coordinator_that_swallows_packets_is_incomplete_in_time(tmp_path: Path) -> None:
    with make_networks(2) as networks:
        networks.cut_link(0, 1)
        begun_s = time.monotonic()
        (answer,) = Nodes(
            tmp_path, 2, networks.address(0), before=networks.before, meet_s=5.0
        ).check([1]).values()  # fmt: skip
        took_s = time.monotonic() - begun_s

    assert answer.row("meeting")["outcome"] == "incomplete"
    assert took_s < 200
