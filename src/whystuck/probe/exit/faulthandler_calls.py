"""What the job asks of ``faulthandler`` itself, told apart from what we do with it.

Its functions are replaced before the job can take them: from then on it is known whether the job
has enabled it, and how.
"""

from __future__ import annotations

import faulthandler
import sys

from ..unseen import leave_out, replace_builtin

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from typing import Any, Callable

enable, disable, is_enabled = faulthandler.enable, faulthandler.disable, faulthandler.is_enabled
# Enables faulthandler as the job did last.
OF_THE_JOB: list[Callable[[], None]] = []
# What faulthandler writes to where we have enabled it; empty where we have not.
FILES: list[Any] = []
_PLACED: list[object] = []


def stand_before() -> None:
    """Learn when the job has the stacks written to a file of its own, and hide that we have."""
    if not _PLACED:
        for name, call in (
            ("enable", _enable_here),
            ("is_enabled", _is_enabled_here),
            ("disable", _disable_here),
        ):
            _PLACED.append(replace_builtin(faulthandler, name, call))


def _enable_here(*args: Any, **keywords: Any) -> None:
    file = args[0] if args else keywords.pop("file", sys.stderr)
    rest = args[1:]
    try:
        enable(file, *rest, **keywords)
    except BaseException as error:
        leave_out(error)
        raise
    OF_THE_JOB[:] = [lambda: enable(file, *rest, **keywords)]


def _is_enabled_here() -> bool:
    return bool(OF_THE_JOB) if FILES else is_enabled()


def _disable_here() -> bool:
    if FILES and not OF_THE_JOB:
        return False  # it has nothing to disable
    OF_THE_JOB.clear()
    return bool(disable())
