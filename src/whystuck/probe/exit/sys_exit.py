"""``sys.exit``, replaced before the job can take it: what it took is pickled as what is there.

A process that turns out to be a rank later may have taken it already. There it stays as it is.
"""

from __future__ import annotations

import sys

from ..calling.unseen import replace_builtin, show_calls

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from typing import Callable

SEEN_BY: list[Callable[..., object]] = []
_PLACED: list[object] = []
# The interpreter's own, as nothing of the job has run yet.
_REFERENCES = sys.getrefcount(sys.exit)


def stand_before() -> None:
    """Show its calls to those who want to see them."""
    if _PLACED or sys.getrefcount(sys.exit) > _REFERENCES:
        return
    _PLACED.append(replace_builtin(sys, "exit", show_calls(sys.exit, _see)))


def _see(*args: object) -> None:
    for see in SEEN_BY:
        see(*args)
