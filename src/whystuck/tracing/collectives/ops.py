"""What collectives are called, how large they are, and what their members wait for."""

from __future__ import annotations

import re
from functools import lru_cache

# Names of the trace, without backend, underscores and dots, that say the same op. The first that
# is found in the name counts, so the longer ones come first.
_OPS = (
    ("reducescatter", "reduce_scatter"),
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("sendrecv", "send_recv"),
    ("crossdevicereduce", "all_reduce"),
    ("oneshot", "all_reduce"),
    ("twoshot", "all_reduce"),
    ("dispatch", "dispatch"),
    ("combine", "combine"),
    ("coalesced", "coalesced"),
    ("isend", "send"),
    ("irecv", "recv"),
    ("send", "send"),
    ("recv", "recv"),
    ("reduce", "reduce"),
)
# Every member waits until the last one has come, and all end together.
MEETING_OPS = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
# Two ranks, not a group.
PAIR_OPS = frozenset({"send", "recv"})
# Ranks of one group may give sizes of their own.
UNEVEN_OPS = frozenset({"all_to_all", "dispatch", "combine", *PAIR_OPS})
# Kernels of NCCL named after the way in which data moves: the op above them tells more.
VAGUE_OPS = frozenset({"send_recv", "coalesced", "unknown"})

_NOT_A_LETTER = re.compile(r"[^a-z]+")
_DTYPE_BYTES = {
    "double": 8,
    "float": 4,
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "half": 2,
    "bfloat16": 2,
    "long": 8,
    "long int": 8,
    "int64": 8,
    "int": 4,
    "int32": 4,
    "short": 2,
    "short int": 2,
    "int16": 2,
    "char": 1,
    "signed char": 1,
    "unsigned char": 1,
    "byte": 1,
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "complexfloat": 8,
    "complexdouble": 16,
    "complex64": 8,
    "complex128": 16,
}


@lru_cache(maxsize=65_536)
def name_op(name: str) -> str:
    """Return the op that a name of a trace speaks of.

    Args:
        name: Such as ``nccl:_all_gather_base``, ``allreduce_coalesced``, ``c10d::barrier`` or
            ``ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL``.

    Returns:
        Such as ``all_gather``; ``unknown`` where the name tells none.
    """
    letters = _NOT_A_LETTER.sub("", name.lower().removeprefix("ncclx:"))
    return next((op for text, op in _OPS if text in letters), "unknown")


@lru_cache(maxsize=65_536)
def count_dtype_bytes(dtype: str) -> int:
    """Return the size of an element, -1 when the type is not known."""
    plain = dtype.lower().removeprefix("c10::").removeprefix("torch.")
    if plain.startswith("float8"):
        return 1
    return _DTYPE_BYTES.get(plain, -1)


def count_op_bytes(op: str, size: int, in_bytes: int, out_bytes: int) -> int:
    """Return the size of an op as nccl-tests counts it.

    That is the whole of the data: for all_gather and gather what all give together, for
    reduce_scatter and scatter what is shared out, and for the others what each member has.

    Args:
        op: The op.
        size: The number of members; -1 when unknown.
        in_bytes: What a member gives; -1 when unknown.
        out_bytes: What it gets; -1 when unknown.

    Returns:
        The size in bytes; -1 when unknown.
    """
    if op == "barrier":
        return 0
    known = max(in_bytes, out_bytes)
    if op in {"all_gather", "gather"}:
        whole = in_bytes * size if in_bytes >= 0 and size > 0 else -1
        return max(whole, out_bytes)
    if op in {"reduce_scatter", "scatter"}:
        whole = out_bytes * size if out_bytes >= 0 and size > 0 else -1
        return max(whole, in_bytes)
    if op == "recv":
        return out_bytes if out_bytes >= 0 else in_bytes
    return in_bytes if in_bytes >= 0 else known
