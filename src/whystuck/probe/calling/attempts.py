"""Steps that may fail alone."""

from __future__ import annotations

from .interrupts import let_through

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from typing import Callable


def attempt(step: Callable[[], object]) -> None:
    """Do one step; a part that fails must not take the others with it."""
    try:
        step()
    except Exception as error:  # the job goes on without this part
        let_through(error)
        return
