"""Imports what a report needs while the job runs, so that its end does not wait for that.

It takes 0.4 s of CPU once, and 32 MB.
"""

from __future__ import annotations

import time

# A job without ranks is no longer starting then, which takes all cores where there are few.
_START_UP_S = 10.0


class ReportImports:
    """Imports once, in the thread that asks, and not beside a report that is being made."""

    def __init__(self) -> None:
        """Import nothing yet."""
        self._is_done = False
        self._due_s = time.monotonic() + _START_UP_S

    def look(self, *, has_ranks: bool) -> None:
        """Import when the job has started: when ranks say what they do, which have imported torch.

        Called again and again, while no report is made.
        """
        if not self._is_done and (has_ranks or time.monotonic() >= self._due_s):
            from whystuck.pipeline import prepare_report

            self._is_done = True
            prepare_report()
