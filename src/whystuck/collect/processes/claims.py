"""What the kernel knows of a process that says it is a rank: its parent and its variables."""

from __future__ import annotations

import time

from whystuck.collect.processes.proc_files import (
    read_environment,
    read_name,
    read_stat,
    read_words,
)
from whystuck.evidence.nodes.records import ClaimEntry
from whystuck.safe_text.secrets import hide_arguments

# About who takes part and where they meet; none of them holds a secret.
_NAMES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK"),
    *("GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NODEID"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"),
    *("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
)
_MAX_CHARS = 200


def collect_claim(rank: int, pid: int) -> ClaimEntry:
    """Look at a process that says it is a rank; what may not be read stays empty."""
    began_ns, parent_pid = time.time_ns(), 0
    try:
        environment = read_environment(pid)
    except OSError:
        environment = {}
    told = {name: environment[name][:_MAX_CHARS] for name in _NAMES if name in environment}
    local_rank = told.get("LOCAL_RANK", "")
    if stat := read_stat(pid):
        parent_pid = int(stat[1])
    return ClaimEntry(
        rank=rank,
        pid=pid,
        local_rank=int(local_rank) if local_rank.isdecimal() else -1,
        began_ns=began_ns,
        parent_pid=parent_pid,
        parent=read_name(parent_pid) if parent_pid else "",
        environment=told,
    )


def read_command(pid: int) -> str:
    """Return the command line of a process, cut; empty when it is gone."""
    shown = hide_arguments(read_words(pid))
    return " ".join(shown).strip()[:_MAX_CHARS]
