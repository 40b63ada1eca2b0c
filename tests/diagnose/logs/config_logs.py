"""What torch 2.13, NCCL and launchers print, as real jobs printed it, and a way to diagnose it."""

from __future__ import annotations

from pathlib import Path

from whystuck.evidence.finding import Finding, Report
from whystuck.pipeline import diagnose_paths

SITE = "/venv/lib/python3.11/site-packages/torch"
INIT_FRAMES = f"""\
  File "{SITE}/distributed/c10d_logger.py", line 83, in wrapper
    return func(*args, **kwargs)
  File "{SITE}/distributed/distributed_c10d.py", line 1892, in init_process_group
    store, rank, world_size = next(rendezvous_iterator)
"""
REMOTE = (
    "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/"
    "ProcessGroupNCCL.cpp:2093, remote process exited or there was a network error, NCCL version "
    "2.27.5"
)
GLOO_CUT = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by "
    "peer [127.0.0.1]:5524. This is typically caused by a remote worker crashing."
)
MESH = (
    "RuntimeError: Gloo connectFullMesh failed with "
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.h:311] Connect timeout [none]"
)
ADDRESS_IN_USE = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
    "network address. port: 29654, useIpv6: false, code: -98, name: EADDRINUSE, message: address "
    "already in use"
)


def wait_for_key(rank: int) -> str:
    """Write what gloo prints when the address of a rank does not come."""
    return (
        f"torch.distributed.DistStoreError: wait timeout after 6000ms, keys: "
        f"/default_pg/0//cpu//0/{rank}"
    )


def trace(error: str, *places: str, rank: int | None = None, inner: str = "") -> str:
    """Write a traceback; with a rank, as torch's own hook does."""
    text = "Traceback (most recent call last):\n"
    for place in places or ("train.py:7",):
        file, _, line = place.partition(":")
        text += f'  File "/app/{file}", line {line}, in step\n    run()\n'
    text += inner + error + "\n"
    if rank is None:
        return text
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


def join(rank: int, error: str) -> str:
    """Write how ``init_process_group`` failed on a rank."""
    return trace(error, "train.py:30", rank=rank, inner=INIT_FRAMES)


def table(*rows: tuple[int, int], host: str = "n0") -> str:
    """Write torchrun's table of failures: rank and exit code of each, the first one below."""
    text = "train.py FAILED\n" + "-" * 60 + "\nFailures:\n"
    for place, (rank, code) in enumerate((*rows[1:], rows[0])):
        if place == len(rows) - 1:
            text += "-" * 60 + "\nRoot Cause (first observed failure):\n"
        text += (
            f"[{place}]:\n  time      : 2026-11-21_18:22:26\n  host      : {host}\n"
            f"  rank      : {rank} (local_rank: {rank})\n"
            f"  exitcode  : {code} (pid: {4100 + rank})\n"
            "  error_file: <N/A>\n  traceback : To enable traceback see: https://pytorch.org/docs/\n"
        )
    return text + "=" * 60 + "\n"


def tell(folder: Path, files: dict[str, str]) -> Report:
    """Write logs and diagnose them, as a person would."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return diagnose_paths([folder])


def first(folder: Path, files: dict[str, str]) -> Finding:
    """Write logs, diagnose them, and return the root cause."""
    return tell(folder, files).findings[0]
