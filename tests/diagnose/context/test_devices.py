"""H126: ranks that share a device, and those that only seem to."""

from __future__ import annotations

from pathlib import Path

from tests.diagnose.logs.config_logs import GLOO_CUT, first, tell, trace

from whystuck.evidence.finding import Confidence

COMM = (
    "{node}:{pid}:{pid} [0] NCCL INFO ncclCommInitRankConfig comm 0x55 rank {rank} nranks 4 "
    "cudaDev 0 nvmlDev 0 busId {bus} commId 0x1f - Init COMPLETE\n"
)
GUESS = (
    "[rank{rank}]:[W202 19:59:59.200000919 ProcessGroupNCCL.cpp:4561] [PG ID 0 PG GUID 0 Rank "
    "{rank}]  using GPU {device} to perform barrier as devices used by this process are currently "
    "unknown. This can potentially cause a hang if this rank to GPU mapping is incorrect.\n"
)


def dup(a: int, b: int, bus: str, node: str = "n0") -> str:
    return (
        f"{node}:{4100 + a}:{4160 + a} [0] init.cc:871 NCCL WARN Duplicate GPU detected : rank {a} "
        f"and rank {b} both on CUDA device {bus}\n"
    )


def comms(*buses: str, node: str = "n0") -> str:
    return "".join(
        COMM.format(node=node, pid=4100 + rank, rank=rank, bus=bus)
        for rank, bus in enumerate(buses)
    )


def test_ranks_on_one_device(tmp_path: Path) -> None:
    finding = first(tmp_path, {"train.log": dup(0, 1, "1000") + dup(1, 0, "1000")})

    assert (finding.code, finding.culprits.ranks) == ("H126", [0, 1])
    assert finding.details["shared"] == {"n0 1000": "0-1"}
    assert finding.confidence is Confidence.CERTAIN
    assert "set_device" in finding.remedies[0]


def test_ranks_on_one_device_in_the_words_of_nccl_2_30(tmp_path: Path) -> None:
    line = "n0:4101:4161 [0] NCCL WARN Multiple Ranks are using the same GPU/Partition\n"
    finding = first(tmp_path, {"train.log": line})

    # It says neither which ranks, nor which device.
    assert (finding.code, finding.culprits.ranks) == ("H126", [])
    assert "set_device" in finding.remedies[0]


def test_two_devices_with_two_ranks_each(tmp_path: Path) -> None:
    finding = first(tmp_path, {"train.log": dup(0, 2, "1000") + dup(1, 3, "2000")})

    assert finding.culprits.ranks == [0, 1, 2, 3]
    assert finding.details["shared"] == {"n0 1000": "0,2", "n0 2000": "1,3"}


def test_healthy_bindings_are_silent(tmp_path: Path) -> None:
    text = comms("1000", "2000", "3000", "4000") + "step 1 loss 2.0\n"
    report = tell(tmp_path, {"train.log": text + trace("KeyError: 'x'", "data.py:5", rank=1)})

    assert [item.code for item in report.findings] == ["C204"]


def test_guess_of_one_device_each_is_no_finding_beside_a_cause(tmp_path: Path) -> None:
    # srun shows each task one device: device 0 is right in all of them.
    text = "".join(GUESS.format(rank=rank, device=0) for rank in range(2))
    text += trace("ValueError: bad", "data.py:5", rank=1) + trace(GLOO_CUT, rank=0)
    report = tell(tmp_path, {"n0/train.log": text})

    assert [item.code for item in report.findings] == ["C204"]


def test_guess_in_a_job_that_is_well_is_silent(tmp_path: Path) -> None:
    text = "".join(GUESS.format(rank=rank, device=rank) for rank in range(2))
    report = tell(tmp_path, {"n0/train.log": text + "step 1 loss 2.0\n"})

    assert report.findings == []


def test_same_bus_on_two_hosts_is_healthy(tmp_path: Path) -> None:
    logs = {"n0.log": comms("1000", node="n0") + trace(GLOO_CUT, rank=0)}
    logs["n1.log"] = comms("1000", node="n1").replace(" rank 0 ", " rank 1 ")
    report = tell(tmp_path, logs)

    assert "H126" not in {item.code for item in report.findings}
