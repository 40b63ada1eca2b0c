"""For sinks that want fewer rounds than there are."""

from __future__ import annotations

import time

# Rounds come on a grid of their own; one that is a little early is still the one meant.
_EARLY = 0.9


class Pace:
    """Lets one round pass in every ``every_s``."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._passed_s = float("-inf")

    def is_due(self) -> bool:
        """Tell whether this round is to be taken."""
        now_s = time.monotonic()
        if now_s - self._passed_s < self._every_s * _EARLY:
            return False
        self._passed_s = now_s
        return True
