"""Handles of ops: out of the dispatcher's box, and whether what they are of has failed."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


def make_unbox() -> Callable[[Any], Any]:
    """Make what returns the handle of an op; from the dispatcher it comes in a box."""
    kind = sys.modules["torch._C._distributed_c10d"].Work
    return lambda work: work if isinstance(work, kind) else kind.unbox(work)


def has_failed(work: Any) -> bool:
    """Ask by the future of an op: the plain questions of torch print a warning."""
    try:
        future = work.get_future()
    except Exception:  # gloo's sends and receives have none
        return False
    try:
        future.value()
    except Exception:
        return True
    return False
