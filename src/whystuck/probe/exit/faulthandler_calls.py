"""What the job asks of ``faulthandler``, which we use ourselves until then.

Its functions are replaced before the job can take them.
"""

from __future__ import annotations

import faulthandler

from ..calling.attempts import attempt
from ..calling.unseen import leave_out, replace_builtin

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from typing import Any, Callable

    from ..descriptors import Descriptor

enable, disable, is_enabled = faulthandler.enable, faulthandler.disable, faulthandler.is_enabled
# What faulthandler writes to while it is ours.
FILES: list[Descriptor] = []
# Called before the job enables it: all is to be there as it would be without us.
LEAVE: list[Callable[[], None]] = []
_PLACED: list[object] = []


def stand_before() -> None:
    """Give it up when the job enables it, and hide from the job that we have."""
    if not _PLACED:
        for name, call in (
            ("enable", _enable_here),
            ("is_enabled", _is_enabled_here),
            ("disable", _disable_here),
        ):
            _PLACED.append(replace_builtin(faulthandler, name, call))


def _enable_here(*args: Any, **keywords: Any) -> None:
    for leave in LEAVE:
        attempt(leave)
    try:
        enable(*args, **keywords)
    except BaseException as error:
        leave_out(error)
        raise


def _is_enabled_here() -> bool:
    return False if FILES else is_enabled()


def _disable_here() -> bool:
    return False if FILES else bool(disable())
