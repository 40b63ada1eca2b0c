"""The one command that would decide where logs do not: for what, and on which rank or host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.ranks import name_ranks

_ENDS = ("c10d.teardown", "elastic.abort", "elastic.")
NEXT_RUN = (
    "export TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1   # with NCCL, for the next "
    "run: its dumps tell who is missing"
)
_NEXT_RUN_GLOO = (
    "export TORCH_DISTRIBUTED_DEBUG=DETAIL TORCH_CPP_LOG_LEVEL=INFO   # for the next run: each "
    "rank then says in which call it is"
)


def choose_command(view: LogView, silent: Sequence[int]) -> str:
    """Choose what to do where ranks waited and nothing tells why.

    Args:
        view: The logs.
        silent: The ranks of which there is no word.
    """
    has_ended = bool(view.exits or view.exceptions or any(view.list_signatures(*_ENDS)))
    if silent and has_ended:
        return (
            f"whystuck logs LOG...   # with the {_logs(silent)} of {name_ranks(silent)}"
            f"{_place(view, silent)}: nothing is known of {_them(silent)}"
        )
    if silent:
        pids = {rank: pid for file in view.files for rank, pid in file.pid_by_rank.items()}
        first = next((rank for rank in silent if rank in pids), silent[0])
        return (
            f"py-spy dump --pid {pids.get(first, 'PID')}   # of {name_ranks([first])}"
            f"{_place(view, [first])}: where it is; nothing is known of {name_ranks(silent)}"
        )
    if not _has_nccl(view):
        return _NEXT_RUN_GLOO
    if has_ended:
        return NEXT_RUN
    return "ncclras -v   # on any host, while the job hangs: which ranks are behind, and in what"


def choose_host_command(view: LogView, ranks: Sequence[int]) -> str:
    """Choose what to do where ranks lost a peer and nothing tells why it went."""
    silent = sorted(view.ranks - view.told_ranks - set(ranks))
    nodes = _list_nodes(view, silent or ranks)
    where = " and ".join(nodes[:4]) if nodes else "each host"
    who = f", where {name_ranks(silent)} ran" if silent and nodes else ""
    return f"dmesg -T | tail -50   # on {where}{who}: whether the kernel ended a process"


def _has_nccl(view: LogView) -> bool:
    return any(view.list_signatures("c10d.watchdog_timeout", "c10d.pg_status", "nccl."))


def _place(view: LogView, ranks: Iterable[int]) -> str:
    nodes = _list_nodes(view, ranks)
    return f" on {' and '.join(nodes[:4])}" if nodes else ""


def _list_nodes(view: LogView, ranks: Iterable[int]) -> list[str]:
    return sorted({view.node_by_rank[rank] for rank in ranks if rank in view.node_by_rank})


def _logs(ranks: Sequence[int]) -> str:
    return "log" if len(ranks) == 1 else "logs"


def _them(ranks: Sequence[int]) -> str:
    return "it" if len(ranks) == 1 else "them"
