"""Writes the logs of small jobs, and diagnoses them as a person would."""

from __future__ import annotations

from pathlib import Path

from whystuck.evidence.finding import Finding, Report
from whystuck.pipeline import diagnose_paths

CUT = "RuntimeError: [/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer [10.0.0.1]:1"
REMOTE = (
    "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/"
    "ProcessGroupNCCL.cpp:2093, remote process exited or there was a network error, NCCL 2.27.5"
)


def trace(rank: int, error: str, place: str = "train.py:7", stamp: str = "") -> str:
    """Write a traceback as torch's hook does, with a rank before each line."""
    file, _, line = place.partition(":")
    lines = (
        "Traceback (most recent call last):",
        f'  File "/app/{file}", line {line}, in step',
        "    run()",
        error,
    )
    return "".join(f"{stamp}[rank{rank}]: {text}\n" for text in lines)


def cut(*ranks: int, error: str = CUT) -> str:
    """Write what ranks print that lost a peer."""
    return "".join(trace(rank, error, "train.py:96") for rank in ranks)


def timeout(rank: int, seq: int = 812, op: str = "ALLREDUCE", at: str = "03:20:01.4") -> str:
    """Write what the watchdog of a rank prints when a collective runs into its limit."""
    return (
        f"[rank{rank}]:[E128 {at}00000319 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught "
        f"collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=64, "
        "NumelOut=64, Timeout(ms)=600000) ran for 600041 milliseconds before timing out.\n"
    )


def comm(rank: int, world: int, bus: str, node: str = "n0") -> str:
    """Write the line with which NCCL tells the device of a rank."""
    pid = 4100 + rank
    return (
        f"{node}:{pid}:{pid} [{rank}] NCCL INFO ncclCommInitRankConfig comm 0x55 rank {rank} "
        f"nranks {world} cudaDev {rank} nvmlDev {rank} busId {bus} commId 0x1f - Init COMPLETE\n"
    )


def tell(folder: Path, files: dict[str, str]) -> Report:
    """Write logs and diagnose them."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return diagnose_paths([folder])


def first(folder: Path, files: dict[str, str]) -> Finding:
    """Write logs, diagnose them, and return the root cause."""
    return tell(folder, files).findings[0]
