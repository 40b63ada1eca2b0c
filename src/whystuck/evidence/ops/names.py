"""The ops of process groups: what each is called where, and what its members must agree on.

One op has many names: those of the op log, of flight recorders (which backends and releases of
torch spell in ways of their own), of the dispatcher (``c10d::``), of torch's hooks of groups and of
functional collectives. All of torch 2.5 to 2.15 are here; what is not is an op that nothing is
known of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Literal

Sizes = Sequence[Sequence[int]]
Equal = Literal["", "input", "output"]


@dataclass(frozen=True)
class OpKind:
    """One op.

    Args:
        name: What the op log calls it.
        recorded: What the flight recorder of NCCL calls it, and reports too.
        others: All other names of it.
        equal: The tensors that must have one size on all members: what they give, or what they
            get. Empty where sizes may differ, or where splits tell.
        needs_all: Whether no member comes out of it before all have come.
    """

    name: str
    recorded: str
    others: tuple[str, ...] = ()
    equal: Equal = ""
    needs_all: bool = True


_KINDS = (
    OpKind("all_reduce", "all_reduce", ("allreduce",), "input"),
    OpKind("all_reduce_coalesced", "allreduce_coalesced", (), "input"),
    # Each rank has as many values as it likes.
    OpKind("all_reduce_sparse", "all_reduce_sparse", ("sparse_all_reduce",)),
    OpKind("broadcast", "broadcast", (), "input", needs_all=False),
    # All of an all_gather or reduce_scatter of uneven tensors give their own tensor to each.
    OpKind("broadcast_oop", "_broadcast_oop", (), "output", needs_all=False),
    OpKind("reduce", "reduce", (), "input", needs_all=False),
    OpKind("reduce_oop", "_reduce_oop", (), "input", needs_all=False),
    OpKind("all_gather", "all_gather", ("allgather",), "input"),
    OpKind(
        "all_gather_base",
        "_all_gather_base",
        ("_allgather_base", "all_gather_single", "all_gather_into_tensor", "all_gather_tensor"),
        "input",
    ),
    OpKind("all_gather_coalesced", "allgather_coalesced", (), "input"),
    OpKind(
        "all_gather_base_coalesced",
        "all_gather_into_tensor_coalesced",
        ("allgather_into_tensor_coalesced", "all_gather_single_coalesced"),
        "input",
    ),
    OpKind("all_gather_v", "all_gather_v"),
    OpKind("reduce_scatter", "reduce_scatter", (), "input"),
    OpKind(
        "reduce_scatter_base",
        "_reduce_scatter_base",
        ("reduce_scatter_single", "reduce_scatter_tensor"),
        "input",
    ),
    OpKind(
        "reduce_scatter_base_coalesced",
        "reduce_scatter_tensor_coalesced",
        ("reduce_scatter_single_coalesced",),
        "input",
    ),
    OpKind("reduce_scatter_v", "reduce_scatter_v"),
    OpKind("gather", "gather", ("gather_single",), needs_all=False),
    OpKind("scatter", "scatter", (), needs_all=False),
    OpKind("all_to_all", "all_to_all", ("alltoall",)),
    OpKind(
        "all_to_all_base",
        "all_to_all_base",
        ("alltoall_base", "all_to_all_single", "all_to_all_v_single"),
    ),
    OpKind("barrier", "barrier", ("all_reduce_barrier",)),
    OpKind("monitored_barrier", "monitored_barrier", (), needs_all=False),
    OpKind("send", "send", ("isend",), needs_all=False),
    OpKind("recv", "recv", ("irecv",), needs_all=False),
    OpKind("recv_any", "recv_any", ("recvAnySource", "recv_any_source"), needs_all=False),
    # What closes a batch of ops that are issued as one.
    OpKind("coalesced", "coalesced", ("batch_p2p_ops", "batch_op_issue"), needs_all=False),
    OpKind("all_gather_closing", "ALLGATHER_coalesced"),
    OpKind("reduce_scatter_closing", "REDUCE_SCATTER_coalesced"),
    OpKind("split", "split"),
    OpKind("new_window", "new_window"),
)
_KIND_BY_NAME = {name: kind for kind in _KINDS for name in (kind.name, kind.recorded, *kind.others)}


@lru_cache(maxsize=4096)
def find_kind(name: str) -> OpKind | None:
    """Find an op by any of its names.

    Args:
        name: Such as ``_all_gather_base``, ``nccl:all_reduce`` or ``c10d::allgather_``.

    Returns:
        The op; None when it is not known.
    """
    plain = name.rpartition(":")[2]
    for spelled in (plain, plain.removesuffix("_"), plain.removesuffix("_out")):
        if spelled in _KIND_BY_NAME:
            return _KIND_BY_NAME[spelled]
    return None


def find_op_name(name: str) -> str:
    """Return what a recorder calls an op of the op log."""
    kind = find_kind(name)
    return kind.recorded if kind else name


def needs_all(name: str, *, unknown: bool = False) -> bool:
    """Return whether no member comes out of an op before all have come.

    Args:
        name: Any name of the op.
        unknown: What is returned for an op that is not in the table.
    """
    kind = find_kind(name)
    return kind.needs_all if kind else unknown


def count_shared(name: str, inputs: Sizes, outputs: Sizes) -> tuple[int, ...]:
    """Count the elements that all members of an op must agree on.

    Args:
        name: Any name of the op.
        inputs: The sizes of what the rank gives.
        outputs: The sizes of what it gets.

    Returns:
        The elements of each tensor; empty where members need not agree.
    """
    kind = find_kind(name)
    if kind is None or not kind.equal:
        return ()
    return _count(inputs if kind.equal == "input" else outputs)


def _count(sizes: Iterable[Sequence[int]]) -> tuple[int, ...]:
    return tuple(prod(size) for size in sizes)


def find_bus_factor(name: str, ranks: int) -> float | None:
    """Return busbw / algbw of an op as nccl-tests defines it (doc/PERFORMANCE.md there).

    Args:
        name: The name of the op in the op log, or of its kind.
        ranks: How many take part.

    Returns:
        The factor; None for an op that moves no data of its own.
    """
    if ranks < 1:
        return None
    if name.startswith("all_reduce"):
        return 2 * (ranks - 1) / ranks
    if name.startswith(("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")):
        return (ranks - 1) / ranks
    return 1.0 if name in {"broadcast", "reduce", "send", "recv", "recv_any", "send_recv"} else None
