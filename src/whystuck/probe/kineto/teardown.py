"""Having CUPTI leave the process after a trace: it stays otherwise, and slows the job for good.

Kineto reads a variable for that at the end of each trace. CUPTI comes back at the next one, also
where the job uses CUDA graphs, from CUDA 12.6 on.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from typing import Any

    from .library import Library

TEARDOWN_ENV = "TEARDOWN_CUPTI"
_FIRST_CUDA = (12, 6)


class Teardown:
    """The variable, set while a trace is asked for; one of the job's own stays as it is."""

    def __init__(self) -> None:
        self._is_able = _read_cuda_version() >= _FIRST_CUDA
        self._is_set = False

    def follow(self, library: Library, *, is_tracing: bool) -> None:
        """Set the variable, or take it back; ``is_tracing`` from before the end of a trace."""
        if is_tracing == self._is_set or not self._is_able:
            return
        if TEARDOWN_ENV in os.environ:
            return  # ours is not there: only C sees it
        self._is_set = is_tracing
        if is_tracing:
            library.set_variable(TEARDOWN_ENV, "1")
        else:
            library.drop_variable(TEARDOWN_ENV)


def _read_cuda_version() -> tuple[int, ...]:
    """Return the version of CUDA that torch was built for, nothing where it was for none."""
    version: Any = getattr(sys.modules.get("torch"), "version", None)
    try:
        return tuple(int(part) for part in str(getattr(version, "cuda", "")).split(".")[:2])
    except ValueError:
        return ()
