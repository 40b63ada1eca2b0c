"""H121: what differs between processes that did not find each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose.logs.config_logs import (
    ADDRESS_IN_USE,
    INIT_FRAMES,
    MESH,
    first,
    join,
    tell,
    trace,
    wait_for_key,
)
from tests.diagnose.scenes import C10D, Job, at

from whystuck.diagnose.engine import diagnose
from whystuck.evidence.finding import Confidence, Finding, Report
from whystuck.evidence.model import Evidence, Incident, Topology
from whystuck.evidence.nodes.resources import RankClaim
from whystuck.evidence.ops.collectives import Frame

CLIENTS = "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. "
ENV = "MASTER_ADDR={addr} MASTER_PORT={port} RANK={rank} WORLD_SIZE={world}\n"
UNREACHED = (
    "torch.distributed.DistNetworkError: The client socket has timed out after 6000ms while trying "
    "to connect to (10.0.0.9, 29501)."
)
NO_NAME = (
    "[W1121 18:20:55.260602854 socket.cpp:764] [c10d] The IPv6 network addresses of (train-0.x, "
    "29500) cannot be retrieved (gai error: -2 - Name or service not known).\n"
)
NO_STORE = (
    "torch.distributed.DistNetworkError: The client socket has timed out after 6000ms while trying "
    "to connect to (train-0.x, 29500)."
)
BARRIER = (
    "torch.distributed.DistStoreError: Timed out initializing process group in store based barrier "
    "on rank {rank}, for key: store_based_barrier_key:1 (world_size=8, num_workers_joined=7, "
    "timeout=0:30:00)"
)
NCCL_ID = (
    "torch.distributed.DistBackendError: [{rank}] is setting up NCCL communicator and retrieving "
    "ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: "
    "wait timeout after 600000ms, keys: /default_pg/0//cuda//0"
)


def env(rank: int, world: int = 4, addr: str = "10.0.0.1", port: int = 29500) -> str:
    return ENV.format(rank=rank, world=world, addr=addr, port=port)


def look(finding: Finding) -> tuple[str, str, list[int]]:
    return finding.code, finding.details["kind"], finding.culprits.ranks


def test_rank_that_others_wait_for_is_named(tmp_path: Path) -> None:
    logs = {f"rank_{rank}.log": join(rank, wait_for_key(2)) for rank in (0, 1, 3)}
    finding = first(tmp_path, logs)

    assert look(finding) == ("H121", "missing-rank", [2])
    assert finding.victims.ranks == "0-1,3"
    assert finding.because[0].row == 8


def test_nobody_is_named_where_the_waiting_may_be_that_rank(tmp_path: Path) -> None:
    # Without a rank before the lines, one of them may be rank 2 itself.
    text = trace(wait_for_key(2), inner=INIT_FRAMES)
    finding = first(tmp_path, {"a.txt": text, "b.txt": text})

    assert look(finding) == ("H121", "missing-rank", [])
    assert finding.details["missing"] == [2]


def test_count_leaves_one_rank(tmp_path: Path) -> None:
    # As torch 2.13: rank 0 counts, the others then wait for what rank 0 did not write.
    logs = {f"rank_{rank}.log": join(rank, wait_for_key(0)) for rank in (1, 3)}
    logs["rank_0.log"] = join(0, f"{CLIENTS}3/4 clients joined.")
    finding = first(tmp_path, logs)

    assert look(finding) == ("H121", "missing-rank", [2])
    assert finding.summary == "3 of 4 processes came; rank 2 did not"
    assert finding.confidence is Confidence.LIKELY, "it is all that could be there of rank 2"


def test_count_that_leaves_several_names_nobody(tmp_path: Path) -> None:
    logs = {"rank_0.log": join(0, f"{CLIENTS}3/8 clients joined.")}
    finding = first(tmp_path, logs)

    assert look(finding) == ("H121", "missing-rank", [])


@pytest.mark.parametrize("rank", [0, 5])
def test_barrier_of_the_store_counts(tmp_path: Path, rank: int) -> None:
    finding = first(tmp_path, {f"rank_{rank}.log": join(rank, BARRIER.format(rank=rank))})

    assert look(finding)[:2] == ("H121", "missing-rank")
    assert (finding.details["joined"], finding.details["expected"]) == (7, 8)


def test_rank_that_makes_the_id_of_nccl_is_waited_for(tmp_path: Path) -> None:
    logs = {f"rank_{rank}.log": join(rank, NCCL_ID.format(rank=rank)) for rank in (1, 2)}
    finding = first(tmp_path, logs)

    assert look(finding) == ("H121", "missing-rank", [0])


def test_two_processes_of_one_rank(tmp_path: Path) -> None:
    logs = {
        "a.log": env(0, 3) + trace(wait_for_key(2), inner=INIT_FRAMES),
        "b.log": env(1, 3) + trace(wait_for_key(2), inner=INIT_FRAMES),
        "c.log": env(1, 3) + trace(wait_for_key(2), inner=INIT_FRAMES),
    }
    finding = first(tmp_path, logs)

    assert look(finding) == ("H121", "duplicate-rank", [1])
    assert finding.summary.endswith("started as rank 1; nobody is rank 2")


def test_line_that_the_launcher_prints_again_is_no_second_process(tmp_path: Path) -> None:
    own = {rank: env(rank, 2) + join(rank, wait_for_key(1)) for rank in (0, 1)}
    logs = {f"rank_{rank}.log": text for rank, text in own.items()}
    merged = "".join(
        f"[default{rank}]:{line}\n" for rank, text in own.items() for line in text.splitlines()
    )
    report = tell(tmp_path, logs | {"console.log": merged})

    assert {item.details.get("kind") for item in report.findings} <= {"missing-rank", "timeout"}


def test_second_process_of_rank_0_finds_the_port_taken(tmp_path: Path) -> None:
    # As torch 2.13: the one serves, the other fails at once.
    logs = {
        "a.log": env(0, 2) + join(0, f"{CLIENTS}1/2 clients joined."),
        "b.log": env(0, 2) + join(0, ADDRESS_IN_USE),
    }
    finding = first(tmp_path, logs)

    assert look(finding) == ("H121", "duplicate-rank", [0])
    assert finding.summary.endswith("started as rank 0; nobody is rank 1")


def test_odd_world_size_is_named(tmp_path: Path) -> None:
    logs = {
        f"rank_{rank}.log": env(rank, 5 if rank == 2 else 4) + join(rank, wait_for_key(3))
        for rank in range(3)
    }
    finding = first(tmp_path, logs)

    assert look(finding) == ("H121", "world-size", [2])
    assert finding.details["world_sizes"] == ["4", "5"]


def test_nccl_tells_that_the_numbers_of_ranks_differ(tmp_path: Path) -> None:
    line = "n0:22:33 [0] bootstrap.cc:506 NCCL WARN Bootstrap Root : mismatch in rank count from "
    finding = first(tmp_path, {"train.log": f"{line}procs 8 : 16\n"})

    assert look(finding) == ("H121", "world-size", [])
    assert "8 and 16" in finding.summary


def test_rank_that_waits_for_one_that_others_do_not_know(tmp_path: Path) -> None:
    # Nobody prints WORLD_SIZE, but gloo got all addresses on some ranks and not on rank 3.
    logs = {f"rank_{rank}.log": join(rank, MESH) for rank in range(3)}
    logs["rank_3.log"] = join(3, wait_for_key(4))
    finding = first(tmp_path, logs)

    assert look(finding) == ("H121", "world-size", [3])


def test_two_ranks_that_differ_are_a_tie(tmp_path: Path) -> None:
    logs = {"rank_0.log": join(0, MESH), "rank_1.log": join(1, wait_for_key(2))}
    finding = first(tmp_path, logs)

    assert look(finding) == ("H121", "world-size", [])


def test_odd_port_is_named(tmp_path: Path) -> None:
    logs = {f"rank_{rank}.log": env(rank) + join(rank, wait_for_key(0)) for rank in (1, 3)}
    logs["rank_0.log"] = env(0) + join(0, f"{CLIENTS}3/4 clients joined.")
    logs["rank_2.log"] = env(2, port=29501) + join(2, UNREACHED)
    finding = first(tmp_path, logs)

    assert look(finding) == ("H121", "endpoint", [2])
    assert "MASTER_PORT=29501" in finding.summary


def test_address_that_one_rank_cannot_reach(tmp_path: Path) -> None:
    refused = (
        "[W722 12:10:00.2 socket.cpp:753] [c10d] The client socket has failed to connect to "
        "[10.0.0.9]:29501 (errno: 111 - Connection refused).\n"
    )
    logs = {"rank_0.log": join(0, f"{CLIENTS}2/3 clients joined.")}
    logs["rank_1.log"] = join(1, wait_for_key(0))
    logs["rank_2.log"] = refused + join(2, UNREACHED)
    finding = first(tmp_path, logs)

    assert look(finding) == ("H121", "refused", [2])
    assert finding.details["port"] == 29501
    assert "nc -vz 10.0.0.9 29501" in finding.remedies[0]


def test_address_that_nobody_reaches_blames_nobody(tmp_path: Path) -> None:
    logs = {f"rank_{rank}.log": join(rank, UNREACHED) for rank in (1, 2)}
    finding = first(tmp_path, logs)

    assert look(finding) == ("H121", "unreachable", [])


def test_name_that_does_not_resolve(tmp_path: Path) -> None:
    logs = {f"rank_{rank}.log": NO_NAME + join(rank, NO_STORE) for rank in range(2)}
    finding = first(tmp_path, logs)

    assert look(finding) == ("H121", "unresolved", [])
    assert "getent hosts train-0.x" in finding.remedies[0]


def test_name_without_an_ipv6_address_is_healthy(tmp_path: Path) -> None:
    text = NO_NAME + "step 1 loss 2.0\n" + trace("KeyError: 'x'", "data.py:5", rank=0)
    finding = first(tmp_path, {"rank_0.log": text})

    assert finding.code == "C204"


def test_something_else_at_the_address(tmp_path: Path) -> None:
    ping = (
        "torch.distributed.DistNetworkError: Ping failed, invalid value returned from server. "
        "Expected: 20189, Got: 1347703880"
    )
    finding = first(tmp_path, {"rank_1.log": join(1, ping)})

    assert look(finding)[:2] == ("H121", "not-a-store")


def test_exception_of_one_rank_explains_the_wait_of_others(tmp_path: Path) -> None:
    logs = {f"rank_{rank}.log": join(rank, wait_for_key(2)) for rank in (0, 1)}
    logs["rank_2.log"] = trace("ValueError: no such model", "train.py:5", rank=2)
    report = tell(tmp_path, logs)

    assert [item.code for item in report.findings] == ["C204"]
    assert report.findings[0].culprits.ranks == [2]


# ------------------------------------------------------------------------- a job that still waits

JOINING = (
    Frame("_create_c10d_store", "/venv/lib/python3.11/site-packages/torch/distributed/r.py", 199),
    Frame("init_process_group", C10D, 1892),
    at("/job/train.py", 30, "main"),
)


def claim(
    rank: int,
    world: int = 4,
    addr: str = "127.0.0.1",
    pid: int = 0,
    parent_pid: int = 0,
    ended_ns: int = 0,
) -> RankClaim:
    variables = {"MASTER_ADDR": addr, "MASTER_PORT": "29500"}
    return RankClaim(
        rank=rank,
        pid=pid or 100 + rank,
        world_size=world,
        node="n0",
        began_ns=5,
        ended_ns=ended_ns,
        parent_pid=parent_pid,
        environment=variables,
    )


def wait(*claims: RankClaim, kind: str = "stall", joining: bool = True) -> Report:
    job = Job()
    for one in {item.rank: item for item in claims}.values():
        job.stands(one.rank, JOINING if joining else (at("/job/train.py", 40),))
    evidence = Evidence(
        topology=Topology(world_size=4),
        incident=Incident(kind=kind, stalled_s=30, limit_s=20),
        stacks=tuple(job.stacks),
        processes=tuple(job.processes),
        claims=claims,
    )
    return diagnose(evidence)


@pytest.mark.parametrize(
    ("claims", "kind", "ranks"),
    [
        ([claim(0), claim(1), claim(1, pid=900), claim(3)], "duplicate-rank", [1]),
        ([claim(0), claim(1), claim(2, 5), claim(3)], "world-size", [2]),
        ([claim(0), claim(1, addr="10.7.7.7"), claim(2), claim(3)], "endpoint", [1]),
        ([claim(0), claim(1), claim(3)], "missing-rank", [2]),
    ],
)
def test_processes_that_wait_show_what_differs(
    claims: list[RankClaim], kind: str, ranks: list[int]
) -> None:
    report = wait(*claims)

    assert look(report.findings[0]) == ("H121", kind, ranks)
    assert report.findings[0].where[0].line == 30
    assert not {item.code for item in report.findings} & {"H101", "H117"}


def test_rank_that_others_waited_for_in_vain_has_the_line_where_it_is() -> None:
    job = (
        Job(3).of_kind("exit").stands(1, (at("/job/train.py", 7, "fetch"), at("/job/train.py", 9)))
    )
    for rank in (0, 2):
        text = "wait timeout after 120000ms, keys: /default_pg/0//cpu//0/1"
        job.raises(rank, "torch.distributed.DistStoreError", text, JOINING).ends(rank, code=1)
    finding = job.report().findings[0]

    assert (finding.code, finding.culprits.ranks) == ("H121", [1])
    assert [(place.rank, place.line) for place in finding.where] == [(1, 7), (1, 9)]
    assert finding.summary.endswith("rank 1 until the time limit; it is in fetch (train.py:7)")


def test_ranks_of_other_hosts_may_be_there_unseen() -> None:
    report = wait(*(claim(rank, addr="10.0.0.1") for rank in (0, 1)))
    [finding] = [item for item in report.findings if item.code == "H121"]

    assert finding.confidence is Confidence.POSSIBLE


@pytest.mark.parametrize(
    "claims",
    [
        [claim(rank) for rank in range(4)],
        [*(claim(rank) for rank in range(4)), claim(1, pid=900, parent_pid=101)],
        [*(claim(rank) for rank in range(4)), claim(1, pid=90, ended_ns=2)],
    ],
    ids=["all alike", "a child of the rank", "replaced"],
)
def test_processes_that_are_alike_are_silent(claims: list[RankClaim]) -> None:
    assert "H121" not in {item.code for item in wait(*claims).findings}


def test_ranks_that_train_are_no_rendezvous() -> None:
    report = wait(claim(0), claim(1), claim(3), joining=False)

    assert "H121" not in {item.code for item in report.findings}


def test_huge_numbers_are_no_ranks(tmp_path: Path) -> None:
    huge = "9" * 400
    text = join(0, f"{CLIENTS}3/{huge} clients joined.") + join(1, wait_for_key(0) + huge)
    report = tell(tmp_path, {"train.log": text + env(0).replace("RANK=0", f"RANK={huge}")})

    assert report.findings[0].code == "H121"
    assert huge not in str(report.findings[0].culprits)


def test_wait_in_a_store_of_a_file_that_nobody_else_uses_blames_no_rank(tmp_path: Path) -> None:
    # `FileStore` and `HashStore` name neither the key nor the rank that they wait for.
    finding = first(tmp_path, {"rank-1.log": join(1, "RuntimeError: Wait timeout")})

    assert (finding.code, finding.culprits.ranks) == ("H121", [])
    assert finding.details["kind"] == "timeout"


def test_wait_of_the_job_itself_for_a_key_is_no_rendezvous(tmp_path: Path) -> None:
    log = trace("RuntimeError: Wait timeout", "train.py:30", rank=1)

    assert first(tmp_path, {"rank-1.log": log}).code == "C204"


def test_process_of_spawn_that_waited_in_a_store_is_not_blamed(tmp_path: Path) -> None:
    head = "torch.multiprocessing.spawn.ProcessRaisedException: \n\n"
    head += "-- Process 1 terminated with the following error:\n"
    raised = trace("RuntimeError: Wait timeout", "train.py:30", inner=INIT_FRAMES)
    report = tell(tmp_path, {"launcher.txt": trace(head + raised, "train.py:50")})

    assert [finding.code for finding in report.findings] == ["H121"]
    assert report.findings[0].culprits.ranks == []
