"""Steps that may fail alone."""

from __future__ import annotations

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from typing import Callable


def attempt(step: Callable[[], object]) -> None:
    """Do one step; a part that fails must not take the others with it."""
    try:
        step()
    except Exception:  # the job goes on without this part
        return
