"""What the time on a critical path was spent on, and how events tell it by their names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from whystuck.tracing.classes import KernelClass


class PathKind(IntEnum):
    """What a part of the path is."""

    HOST = 0  # a thread of the host ran
    LAUNCH = 1  # from a launch to the start of its work, and between two pieces of work
    COMPUTE = 2
    COMM = 3
    MEMORY = 4
    SYNC = 5  # the host came back from waiting for the device
    DATA_LOADING = 6
    UNKNOWN = 7  # nothing in the trace explains it


class EdgeKind(IntEnum):
    """Why a node of the graph cannot be earlier; of two that bind alike, the smaller one counts."""

    WORK = 0  # from the start of device work to its end
    SYNC = 1  # the end of device work lets a call of the host return
    STREAM = 2  # work of one stream runs in its order
    EVENT = 3  # a stream waits for an event of another one
    LAUNCH = 4  # from the call of the host to its work
    HANDOVER = 5  # the backward thread starts, or the thread that waits for it goes on
    CHAIN = 6  # a thread of the host, from one of its nodes to the next
    INFERRED = 7  # work began just when work of another stream ended
    SOURCE = 8  # nothing before it is known


KIND_NAMES = {kind: kind.name.lower() for kind in PathKind}
CLASS_KINDS = {
    KernelClass.COMPUTE: PathKind.COMPUTE,
    KernelClass.COMM: PathKind.COMM,
    KernelClass.MEMORY: PathKind.MEMORY,
}

# Calls that return only when work of a device has ended.
_SYNC_CALL = re.compile(
    r"(?:cuda|cu|hip|mtia|musa|aclrt)(?=\w*Synchronize)\w+"
    r"|(?:cuda|hip|musa)Memcpy(?:2D|3D|Peer|ToSymbol|FromSymbol|WithStream)?(?:_v\w+)?"
    r"|(?:cu|hip)Memcpy(?:DtoH|HtoD|DtoD|2D|3D)(?:_v\w+)?"
)
# Freeing memory waits for all work, but has much to do itself.
_FREE_CALL = re.compile(
    r"(?:cuda|cu|hip|musa)(?:Mem)?(?:Free|FreeHost|HostFree|HostUnregister)(?:_v\w+)?"
)
# A collective of the host. That of a device is only enqueued by the host.
_HOST_COMM = re.compile(r"(?:gloo|mpi):.*")
_BACKWARD = re.compile(r"autograd::engine::evaluate_function.*")


def _match(pattern: re.Pattern[str], names: Sequence[str]) -> NDArray[np.bool_]:
    hits = (bool(pattern.fullmatch(name)) for name in names)
    return np.fromiter(hits, dtype=np.bool_, count=len(names))


def are_sync_calls(names: Sequence[str]) -> NDArray[np.bool_]:
    """Tell which calls of a runtime wait for the device."""
    return _match(_SYNC_CALL, names)


def are_free_calls(names: Sequence[str]) -> NDArray[np.bool_]:
    """Tell which calls of a runtime free memory, and may wait for the device."""
    return _match(_FREE_CALL, names)


def are_host_comm(names: Sequence[str]) -> NDArray[np.bool_]:
    """Tell which events of the host communicate themselves, as gloo does."""
    return _match(_HOST_COMM, names)


def are_backward(names: Sequence[str]) -> NDArray[np.bool_]:
    """Tell which events of the host are steps of autograd's engine."""
    return _match(_BACKWARD, names)
