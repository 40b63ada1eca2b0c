"""The environment of CUDA's core dumps on demand (``--gpu-coredump``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_FLAGS = (
    "skip_nonrelocated_elf_images", "skip_global_memory", "skip_shared_memory",
    "skip_local_memory", "skip_constbank_memory", "skip_abort",
)  # fmt: skip


def coredump_environment(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return what lets a dump of a device be asked for; what the environment has stays.

    Args:
        environment: The environment that the job would have without us.
        folder: Where pipes and dumps go.

    Returns:
        The variables to add. CUDA puts host and pid for ``%h`` and ``%p``.
    """
    place = str(folder).replace("%", "%%")
    wanted = {
        "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1",
        "CUDA_COREDUMP_PIPE": f"{place}/gpu-pipe.%h.%p",
        "CUDA_COREDUMP_FILE": f"{place}/gpu-core.%h.%p",
        # Neither tensors nor an abort of the rank after it (CUDA 12.5).
        "CUDA_COREDUMP_GENERATION_FLAGS": ",".join(_FLAGS),
    }
    return {name: value for name, value in wanted.items() if name not in environment}
