"""Whether the cause of an end is waited for although the watcher hangs."""

from __future__ import annotations

from dataclasses import dataclass

from whystuck.launch.background import say

_SAID = (
    "whystuck: a file system does not answer; why the job failed is waited for, as a restart "
    "depends on it\n"
)


@dataclass
class CauseWait:
    """What is known of the cause; this node, and others with it, may decide on a restart by it."""

    may_restart: bool
    is_known: bool = False
    _is_told: bool = False

    def goes_on(self, code: int) -> bool:
        """Return whether the cause of this exit code is still to be waited for, and say so once."""
        if not code or self.is_known or not self.may_restart:
            return False
        if not self._is_told:
            say(_SAID)
        self._is_told = True
        return True
