"""A line on standard error for each op."""

from __future__ import annotations

from .calls import say
from .tensors import Later, describe, flatten, is_captured, measure, name_figures

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .op import Op
    from .spec import Print


class Printer:
    """Prints ops of this rank; counts them by name."""

    def __init__(self, wanted: list[Print]) -> None:
        self._wanted = wanted
        self._counts: dict[str, int] = {}

    def takes(self, op: Op) -> bool:
        """Tell whether an op is printed on this rank."""
        return any(
            (one.ranks is None or op.rank in one.ranks) and (not one.ops or op.name in one.ops)
            for one in self._wanted
        )

    def show(self, op: Op, defer: Callable[[Later], None]) -> None:
        """Print one op with what it sends; of what it will receive, the shape only."""
        count = self._counts[op.name] = self._counts.get(op.name, 0) + 1
        sent = list(flatten(op.inputs))
        tensors = sent or list(flatten(op.outputs))
        parts = [f"rank {op.rank} step {op.step} {op.name} {op.seq} of group {op.group}"]
        about = [describe(tensor) for tensor in tensors[:1]]
        parts += [f"{one['shape']} {one['dtype']}" for one in about]
        if len(tensors) > 1:
            parts.append(f"and {len(tensors) - 1} more")
        figures = measure(sent[0]) if sent and not is_captured(sent[0]) else None
        if figures is None:
            say(f"{' '.join(parts)}, call {count}")
            return

        def finish(got: list[list[float]]) -> None:
            mean = name_figures(got[0], about[0]["count"])["mean"]
            shown: Any = "unknown" if mean is None else f"{mean:.6g}"
            say(f"{' '.join(parts)}, mean {shown}, call {count}")

        defer(Later([figures], finish))
