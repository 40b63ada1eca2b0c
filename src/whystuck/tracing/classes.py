"""Tells communication from computation by the names of kernels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


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
    r"^(?:nccl|rccl|hccl|oneccl|xccl|mccl)",
    r"ncclKernel|ncclDevKernel|rcclGenericKernel",
    r"deep_ep::|dpsk::ep::",
    r"nvshmem",
    r"symm_mem|symmetric_memory|multimem_|one_shot_all_reduce|two_shot_all_reduce",
    r"cross_device_reduce|custom_all_?reduce|all_reduce_(?:one|two)_?shot",
)


def classify_names(names: Sequence[str], extra: Sequence[str] = ()) -> NDArray[np.uint8]:
    """Tell the class of a kernel from its name.

    Args:
        names: Names of kernels, or of any events.
        extra: Further regular expressions of kernels that communicate.

    Returns:
        A `KernelClass` for each name: ``COMM`` or ``COMPUTE``.

    Raises:
        re.error: An expression of the user is none.
    """
    pattern = re.compile("|".join(f"(?:{one})" for one in (*COMM_PATTERNS, *extra)))
    hits = (bool(pattern.search(name)) for name in names)
    return np.fromiter(
        (KernelClass.COMM if hit else KernelClass.COMPUTE for hit in hits),
        dtype=np.uint8,
        count=len(names),
    )
