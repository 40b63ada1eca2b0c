"""What cuda-gdb prints for ``info cuda kernels``: the kernels that a device was running."""

from __future__ import annotations

import re

from whystuck.evidence.nodes.devices import RunningKernel

_MAX_KERNELS = 128
_MAX_LINE = 4096
_MAX_NAME = 200
_MAX_LINES = 10_000
# Kernel, parent, device, grid, status, mask of SMs, sizes of grid and blocks, invocation.
_ROW = re.compile(
    r"\s{0,9}\*?\s{0,9}[0-9]{1,9}\s+\S{1,20}\s+([0-9]{1,4})\s+[0-9]{1,19}\s+(\w{1,20})"
    r"\s+0x[0-9a-fA-F]{1,64}\s+\([0-9,]{1,40}\)\s+\([0-9,]{1,40}\)\s+(\S.*)"
)


def parse_gpu_kernels(text: str, *, rank: int, artifact: str = "") -> list[RunningKernel]:
    """Read the table; a text without one gives nothing.

    Args:
        text: The output.
        rank: Whose device it was.
        artifact: The path to cite.

    Returns:
        The kernels, in the order of the table.
    """
    found: list[RunningKernel] = []
    for row, line in enumerate(text.splitlines()[:_MAX_LINES]):
        match = _ROW.match(line[:_MAX_LINE])
        if match is not None and len(found) < _MAX_KERNELS:
            name = _drop_arguments(match[3])[:_MAX_NAME]
            found.append(RunningKernel(rank, int(match[1]), name, match[2], artifact, row))
    return found


def _drop_arguments(invocation: str) -> str:
    """Return the name of a kernel: ``f<(int)4>`` of ``f<(int)4>(long *)=(0x7f)``."""
    name = invocation.partition("<<<")[0].rstrip()
    while name.endswith(")"):
        depth = 0
        for place in range(len(name) - 1, 0, -1):
            depth += (name[place] == ")") - (name[place] == "(")
            if depth == 0:
                break
        else:
            break  # all of it is in brackets, or they do not match
        name = name[:place].rstrip("= ")
    return name
