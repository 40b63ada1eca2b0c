"""Tells communication from computation: by what the trace says first, then by names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.traces.events import Category, Trace
from whystuck.tracing.arrays.segments import look_up, number_codes

Flags = NDArray[np.bool_]
Rows = NDArray[np.int64]


class KernelClass(IntEnum):
    """What work of a device is for."""

    COMPUTE = 0
    COMM = 1
    MEMORY = 2


CLASS_NAMES = {
    KernelClass.COMPUTE: "compute",
    KernelClass.COMM: "comm",
    KernelClass.MEMORY: "memory",
}

# Kernels that communicate, by how their names look. Users can add more.
COMM_PATTERNS = (
    r"^(?:nccl|rccl|hccl|hcom_|oneccl|xccl|mccl|msccl)",
    r"ncclKernel|ncclDevKernel|rcclGenericKernel|mscclKernel",
    r"deep_ep::|dpsk::ep::|mori::",
    r"nvshmem",
    r"symm_mem|symmetric_memory|multimem_",
    r"(?i:(?:one|two)_?shot_?all_?reduce|all_?reduce_(?:one|two)_?shot)",
    r"cross_device_reduce|quickreduce::|(?i:custom_?all_?reduce|all_?reduce_?fusion)",
    r"userbuffers_",
    r"^collective_subgraph_execution",
)
# Copies that some tracers list as kernels.
MEMORY_PATTERN = re.compile(r"^(?:hip)?Mem(?:cpy|set)|^dma|^Copy(?:Host|Device)To|^FillBuffer")
# Ops whose own kernels communicate. Those of other ops that they call belong to those ops.
_COMM_OPS = re.compile(r"record_param_comms$|c10d::|nccl:")


def classify_names(names: Sequence[str], extra: Sequence[str] = ()) -> NDArray[np.uint8]:
    """Tell the class of a kernel from its name.

    Args:
        names: Names of kernels, or of any events.
        extra: Further regular expressions of kernels that communicate.

    Returns:
        A `KernelClass` for each name.

    Raises:
        re.error: An expression of the user is none.
    """
    given = tuple(extra)
    return np.fromiter((_classify(name, given) for name in names), dtype=np.uint8, count=len(names))


@lru_cache(maxsize=8)
def _join_patterns(extra: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{one})" for one in (*COMM_PATTERNS, *extra)))


# The traces of a job name the same kernels over and over.
@lru_cache(maxsize=20_000)
def _classify(name: str, extra: tuple[str, ...]) -> KernelClass:
    if _join_patterns(extra).search(name):
        return KernelClass.COMM
    return KernelClass.MEMORY if MEMORY_PATTERN.match(name) else KernelClass.COMPUTE


def classify_rows(
    trace: Trace, rows: Rows, launches: Rows, extra: Sequence[str] = ()
) -> NDArray[np.uint8]:
    """Tell the class of work of devices.

    Copies and memsets are memory work. A kernel communicates when the trace says which collective
    it is, when it was launched by an op that the trace describes as a collective, or when its name
    looks like it.

    Args:
        trace: The trace.
        rows: Rows of work of devices.
        launches: The call that launched each, or -1.
        extra: Further regular expressions of names of kernels that communicate.

    Returns:
        A `KernelClass` for each row.
    """
    events = trace.events
    names, place = number_codes(events.name[rows], len(trace.names))
    classes = classify_names([trace.names[name] for name in names.tolist()], extra)[place]
    is_kernel = events.category[rows] == Category.KERNEL
    classes[~is_kernel] = KernelClass.MEMORY
    told = trace.get("collective:text").at(rows) >= 0
    told |= _is_launched_by_collective(trace, rows, launches)
    classes[told & is_kernel & (classes != KernelClass.MEMORY)] = KernelClass.COMM
    return classes


def _is_launched_by_collective(trace: Trace, rows: Rows, launches: Rows) -> Flags:
    events = trace.events
    ops = _find_collective_ops(trace)
    linked = np.flatnonzero(launches >= 0)
    answer = np.zeros(len(rows), dtype=np.bool_)
    if not len(ops) or not len(linked):
        return answer
    ops = ops[np.lexsort((events.start_ns[ops], events.external[ops]))]
    calls = launches[linked]
    own = events.external[rows[linked]]
    wanted = np.where(own >= 0, own, events.external[calls])
    place = look_up(events.external[ops], wanted)
    same = np.flatnonzero(place >= 0)
    op, call = ops[place[same]], calls[same]
    # Old traces count calls and ops apart under the name of one id, so that numbers meet by chance.
    start, end = events.start_ns[op], events.start_ns[op] + events.duration_ns[op]
    at = events.start_ns[call]
    answer[linked[same]] = (events.tid[op] == events.tid[call]) & (start <= at) & (at <= end)
    return answer


def _find_collective_ops(trace: Trace) -> Rows:
    events = trace.events
    is_named = np.fromiter(
        (_COMM_OPS.match(name) is not None for name in trace.names), np.bool_, len(trace.names)
    )
    is_op = is_named[events.name]
    is_op[trace.get("collective:text").event] = True
    is_op &= (events.category == Category.CPU_OP) & (events.external >= 0)
    return np.flatnonzero(is_op)
