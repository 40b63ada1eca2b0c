"""What a Kineto trace of one rank holds: its events as columns, and what is said about the rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Flag, IntEnum, auto
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.finding import Gap

UNKNOWN = -1


class Category(IntEnum):
    """What kind of event it is; old and new names of Kineto map to the same."""

    OTHER = 0
    CPU_OP = 1
    USER_ANNOTATION = 2
    PYTHON = 3
    RUNTIME = 4  # cuda_runtime, hip_runtime, mtia_runtime and so on
    DRIVER = 5  # cuda_driver
    KERNEL = 6
    MEMCPY = 7
    MEMSET = 8
    GPU_ANNOTATION = 9
    SYNC = 10  # cuda_sync: what a stream or the host waits for, no work
    OVERHEAD = 11
    SPAN = 12  # the whole trace, once
    COUNTER = 13  # cuda_profiler_range: hardware counters of a kernel
    MEMORY = 14  # an instant at which memory was allocated or freed


class Detail(Flag):
    """Which arguments are decoded into `Trace.sparse`; each costs time where events have it.

    ``COMM``, ``SYNC``, ``MEMORY`` and ``COUNTERS`` cost next to nothing in traces without such
    events. ``SHAPES`` are the inputs of ops, ``AUTOGRAD`` what joins an op with its backward,
    ``PYTHON`` the ids that join frames to stacks, ``KERNELS`` grids, blocks and occupancy.
    The columns of `TraceEvents`, ``bytes`` and ``bandwidth`` are always there. ``NAMES`` (of
    threads) and ``OLD`` (spellings of old versions) are looked for where a trace needs them.
    """

    NONE = 0
    COMM = auto()
    SYNC = auto()
    MEMORY = auto()
    COUNTERS = auto()
    AUTOGRAD = auto()
    PYTHON = auto()
    SHAPES = auto()
    KERNELS = auto()
    NAMES = auto()
    OLD = auto()
    LEAN = COMM | SYNC | MEMORY | COUNTERS
    ALL = LEAN | AUTOGRAD | PYTHON | SHAPES | KERNELS


# Work of a device. A `stream` argument tells nothing: Triton's CPU ops and syncs have one too.
DEVICE_WORK = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)


def is_one_of(category: NDArray[np.uint8], wanted: Sequence[int]) -> NDArray[np.bool_]:
    """Return which of some categories are one of those wanted.

    A look-up is quicker than `numpy.isin`: of few events by ten times.
    """
    return _look_up(tuple(wanted))[category]


@cache
def _look_up(wanted: tuple[int, ...]) -> NDArray[np.bool_]:
    table = np.zeros(np.iinfo(np.uint8).max + 1, dtype=np.bool_)
    table[list(wanted)] = True
    return table


def _no_whole() -> NDArray[np.int64]:
    return np.empty(0, dtype=np.int64)


def _no_int() -> NDArray[np.int32]:
    return np.empty(0, dtype=np.int32)


def _no_short() -> NDArray[np.int16]:
    return np.empty(0, dtype=np.int16)


def _no_byte() -> NDArray[np.uint8]:
    return np.empty(0, dtype=np.uint8)


@dataclass(frozen=True)
class TraceEvents:
    """Events in the order of the file, one value a row.

    ``start_ns`` counts from `Trace.base_ns`; ``duration_ns`` is 0 for instants. ``name`` indexes
    `Trace.names`; ``category`` is a `Category`; ``pid`` and ``tid`` are the numbers of the trace,
    for device work mostly device and stream, and texts there get numbers of their own, below -1.
    ``device`` is -1 for events of the host; ``stream`` and ``correlation`` (which joins device work
    with the call that launched it) and ``external`` (which joins both with the op of the host)
    are -1 where there is none.
    """

    start_ns: NDArray[np.int64] = field(default_factory=_no_whole)
    duration_ns: NDArray[np.int64] = field(default_factory=_no_whole)
    name: NDArray[np.int32] = field(default_factory=_no_int)
    category: NDArray[np.uint8] = field(default_factory=_no_byte)
    pid: NDArray[np.int32] = field(default_factory=_no_int)
    tid: NDArray[np.int32] = field(default_factory=_no_int)
    device: NDArray[np.int16] = field(default_factory=_no_short)
    stream: NDArray[np.int32] = field(default_factory=_no_int)
    correlation: NDArray[np.int64] = field(default_factory=_no_whole)
    external: NDArray[np.int64] = field(default_factory=_no_whole)

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True)
class Sparse:
    """An argument that only some events have: ``event`` are their rows, ascending.

    ``value`` is int64 or float64. Texts are positions in `Trace.texts`.
    """

    event: NDArray[np.int64] = field(default_factory=_no_whole)
    value: NDArray[Any] = field(default_factory=_no_whole)

    def __len__(self) -> int:
        return len(self.event)

    def at(self, rows: NDArray[Any], default: float = UNKNOWN) -> NDArray[Any]:
        """Return the value of each of some rows, ``default`` where there is none."""
        if not len(self.event):
            return np.full(len(rows), default, dtype=self.value.dtype)
        place = np.minimum(np.searchsorted(self.event, rows), len(self.event) - 1)
        found = self.event[place] == rows
        return np.where(found, self.value[place], default).astype(self.value.dtype)


@dataclass(frozen=True)
class TraceGroup:
    """A process group as the trace lists it (``distributedInfo.pg_config``)."""

    name: str
    desc: str = ""
    backend: str = ""
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class TraceDevice:
    """A device of the host (``deviceProperties``); figures are 0 where the trace has none."""

    device: int
    name: str = ""
    sms: int = 0
    warp_size: int = 0
    max_threads_per_sm: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True)
class Trace:
    """The trace of one rank.

    ``base_ns`` + ``events.start_ns`` is the time of the host's clock, in ns. ``rank`` is -1 and
    ``world_size`` 0 when unknown. ``vendor`` is ``cuda``, ``rocm``, ``mtia``, ``xpu``,
    ``npu`` or ``cpu``. ``thread_names`` is keyed by (pid, tid) as in the events. ``sparse`` holds
    further arguments by the names of `SPARSE_NAMES`.
    """

    artifact: str = ""
    rank: int = UNKNOWN
    world_size: int = 0
    host: str = ""
    vendor: str = "cpu"
    base_ns: int = 0
    names: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    events: TraceEvents = field(default_factory=TraceEvents)
    sparse: Mapping[str, Sparse] = field(default_factory=lambda: MappingProxyType({}))
    thread_names: Mapping[tuple[int, int], str] = field(default_factory=dict)
    process_names: Mapping[int, str] = field(default_factory=dict)
    process_labels: Mapping[int, str] = field(default_factory=dict)
    groups: tuple[TraceGroup, ...] = ()
    devices: tuple[TraceDevice, ...] = ()
    gaps: tuple[Gap, ...] = ()

    def get(self, name: str) -> Sparse:
        """Return a further argument; without rows when no event has it."""
        return self.sparse.get(name) or Sparse()


# Further arguments: our name -> the key in the trace. Those with `:text` are positions in `texts`;
# lists are kept as the JSON text of the trace.
SPARSE_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "bytes": "bytes",
        # of collectives, on the op of the host, and on the kernel in newer traces
        "collective:text": "Collective name",
        "group:text": "Process Group Name",
        "group_desc:text": "Process Group Description",
        "group_ranks:text": "Process Group Ranks",
        "group_size": "Group size",
        "dtype:text": "dtype",
        "in_elements": "In msg nelems",
        "out_elements": "Out msg nelems",
        "in_split:text": "In split size",
        "out_split:text": "Out split size",
        "sequence": "Seq",
        "comms_id:text": "Comms Id",
        "src_rank": "Src Rank",
        "dst_rank": "Dst Rank",
        # of ops
        "input_dims:text": "Input Dims",
        "input_types:text": "Input type",
        "input_strides:text": "Input Strides",
        "concrete_inputs:text": "Concrete Inputs",
        "autograd_sequence": "Sequence number",
        "forward_thread": "Fwd thread id",
        # of Python frames
        "python_id": "Python id",
        "python_parent": "Python parent id",
        "python_module": "Python module id",
        # of kernels
        "grid:text": "grid",
        "block:text": "block",
        "blocks_per_sm": "blocks per SM",
        "occupancy": "est. achieved occupancy %",
        "registers": "registers per thread",
        # of copies: GB/s, of durations that older traces round to µs
        "bandwidth": "memory bandwidth (GB/s)",
        # of syncs
        "wait_stream": "wait_on_stream",
        "wait_event_correlation": "wait_on_cuda_event_record_corr_id",
        "wait_event": "wait_on_cuda_event_id",
        # of memory
        "memory_bytes": "Bytes",
        "memory_allocated_bytes": "Total Allocated",
        "memory_reserved_bytes": "Total Reserved",
        "memory_device_type": "Device Type",
        "memory_device": "Device Id",
        # of hardware counters: all arguments of the event
        "counters:text": "",
    }
)
