"""How many elements of the tensors of ops are NaN, Inf, subnormal or zero: sums over all ops."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .lines import Lines
    from .op import Op

_COUNTS = ("nan", "inf", "subnormal", "saturated", "zero")
# Sums are written now and then, for a process that is killed, and at the end.
_WRITE_EVERY = 2000
# Groups come and go in some jobs.
_MAX_KINDS = 1000

Kind = tuple[str, str, str, str]


class Shares:
    """The sums for each side, name, group and type."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        # Elements looked at, those of them whose subnormal numbers were counted, and the counts.
        self._sums: dict[Kind, list[int]] = {}
        self._unwritten = 0

    def add(
        self, op: Op, side: str, about: dict[str, Any], values: list[float], *, is_full: bool
    ) -> None:
        """Add the figures of one tensor; without ``is_full`` these are NaN and Inf only."""
        kind = side, op.name, op.group, str(about["dtype"])
        sums = self._sums.get(kind)
        if sums is None:
            if len(self._sums) >= _MAX_KINDS:
                return
            sums = self._sums[kind] = [0] * (2 + len(_COUNTS))
        sums[0] += about["count"]
        sums[1] += about["count"] if is_full else 0
        for place, value in enumerate(values[: len(_COUNTS)], 2):
            sums[place] += int(value)
        self._unwritten += 1
        if self._unwritten >= _WRITE_EVERY:
            self.write()

    def write(self) -> None:
        """Write all sums so far; later ones take their place."""
        if not self._unwritten:
            return
        self._unwritten = 0
        for (side, name, group, dtype), sums in list(self._sums.items()):
            kind = {"side": side, "name": name, "group": group, "dtype": dtype}
            counts = dict(zip(_COUNTS, sums[2:]))
            self._lines.put(
                {"kind": "shares", **kind, "count": sums[0], "counted": sums[1], **counts}
            )
