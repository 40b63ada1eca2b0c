"""Counts updates of the parameters, and those that are skipped as gradients are not finite."""

from __future__ import annotations

import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .lines import Lines

# Each skip has a line of its own up to so many; then a line stands for so many updates.
_MAX_SINGLE = 2000
_BATCH = 20
# For so many updates after a skip, every twentieth has a line: the share of skips in the last 100
# is known from it. Else few have one: that nothing was skipped is of use beside what peers say.
_RECENT = 200
_QUIET = 500


class Updates:
    """The updates that one scaler, or the checks of the job, decide on."""

    def __init__(self, lines: Lines, source: str, series: int = 0) -> None:
        self._lines = lines
        self._head = {"kind": "amp", "source": source, "series": series}
        self.updates = 0
        self.skips = 0
        # The scale that the scaler began with.
        self.init: float | None = None
        self._scale: float | None = None
        self._last_skip = 0
        self._last_written = 0
        self._open: dict[str, Any] | None = None

    def add(
        self,
        step: int,
        ops: tuple[int, int] | None,
        *,
        is_skipped: bool,
        scale: float | None = None,
        is_telling: bool = False,
    ) -> None:
        """Take one more update, with its first and last op where these are known.

        ``is_telling`` has it written even when it was made.
        """
        has_changed, self._scale = scale != self._scale, scale
        self.updates += 1
        if is_skipped:
            self.skips += 1
            self._last_skip = self.updates
        is_single = self.skips <= _MAX_SINGLE
        before = None if is_single else self._open
        first, last = ops or (1, 0)
        if before and before["last_op"]:
            first, last = before["first_op"], max(last, before["last_op"])
        self._open = {
            **self._head,
            "step": step,
            "scale": _known(scale),
            "init": _known(self.init),
            "skipped": is_skipped or bool(before and before["skipped"]),
            "skips": self.skips,
            "updates": self.updates,
            "first_op": first,
            "last_op": last,
        }
        is_recent = self.skips > 0 and self.updates - self._last_skip <= _RECENT
        is_due = self.updates - self._last_written >= (_BATCH if is_recent else _QUIET)
        if is_due or (is_single and (is_skipped or has_changed or is_telling)):
            self.write()

    def write(self) -> None:
        """Write the newest update, and so how many there were, unless that is done."""
        if self._open is not None:
            line, self._open = self._open, None
            self._last_written = self.updates
            self._lines.put(line)


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
