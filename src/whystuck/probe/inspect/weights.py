"""Watching parameters: checksums after optimizer steps and before the next ones."""

from __future__ import annotations

import base64
import struct
import sys
import weakref

from .. import progress
from ..calling.interrupts import let_through
from .checksums import Checksums, as_unsigned
from .names import list_parameters, local_part, name_parameters
from .tensors import Later, describe, is_captured, quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .lines import Lines
    from .spec import Weights

BEFORE, AFTER, GRADS = "before", "after", "grads"


class _Watched:
    """One optimizer: its number, its steps since we look, and what was last seen."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.steps = 0
        self.set = 0
        self.count = -1
        # After the last step, when it was due; None while nothing is to be compared.
        self.sums: list[int] | None = None
        self.has_to_compare = False


class WeightWatch:
    """Looks at the parameters of all optimizers of this process."""

    def __init__(self, wanted: Weights, lines: Lines, defer: Callable[[Later], None]) -> None:
        self._wanted = wanted
        self._lines = lines
        self._defer = defer
        self._checksums = Checksums()
        self._watched: weakref.WeakKeyDictionary[Any, _Watched] = weakref.WeakKeyDictionary()
        self._number = 0
        self._sets = 0

    def install(self) -> None:
        """Watch all steps from now on."""
        progress.COUNTS.before_step = _make_safe(self._before_step)
        progress.COUNTS.after_step = _make_safe(self._after_step)

    def remove(self) -> None:
        """Watch no longer."""
        progress.COUNTS.before_step = progress.COUNTS.after_step = None

    def close(self) -> None:
        """Write nothing more: each look was written when it was made."""

    def _before_step(self, optimizer: Any) -> None:
        watched = self._find(optimizer)
        if watched.has_to_compare or not watched.steps:
            watched.has_to_compare = False
            self._see(watched, optimizer, BEFORE, list_parameters(optimizer))
        if self._wanted.grads and self._is_due(watched):
            grads = [tensor.grad for tensor in list_parameters(optimizer)]
            self._see(watched, optimizer, GRADS, grads)

    def _after_step(self, optimizer: Any) -> None:
        watched = self._find(optimizer)
        is_due = self._is_due(watched)
        watched.steps += 1
        if is_due:
            watched.has_to_compare = True
            self._see(watched, optimizer, AFTER, list_parameters(optimizer))

    def _is_due(self, watched: _Watched) -> bool:
        return watched.steps % self._wanted.every == 0

    def _find(self, optimizer: Any) -> _Watched:
        watched = self._watched.get(optimizer)
        if watched is None:
            watched = self._watched[optimizer] = _Watched(self._number)
            self._number += 1
        return watched

    def _see(self, watched: _Watched, optimizer: Any, when: str, tensors: list[Any]) -> None:
        if any(tensor is not None and is_captured(local_part(tensor)) for tensor in tensors[:1]):
            return  # a step in a CUDA graph
        self._tell_names(watched, optimizer)
        sums = [self._sum_up(tensor) for tensor in tensors]
        step = progress.COUNTS.optimizer_steps
        head = {"kind": "weights", "opt": watched.number, "set": watched.set, "step": step}
        present = [one for one in sums if one is not None]

        def write(values: list[list[float]]) -> None:
            numbers = iter(value for row in values for value in row)
            self._write(
                watched,
                {**head, "when": when},
                [0 if one is None else as_unsigned(int(next(numbers))) for one in sums],
            )

        rows = _stack_by_device(present)
        self._defer(Later([row for row, _ in rows], lambda got: write(_in_order(got, rows))))

    def _write(self, watched: _Watched, line: dict[str, Any], sums: list[int]) -> None:
        """Write checksums; those before a step in full only where the parameters have changed."""
        if line["when"] == AFTER:
            watched.sums = sums
        elif line["when"] == BEFORE and watched.sums is not None and watched.sums == sums:
            self._lines.put({**line, "same": True})
            return
        packed = base64.b64encode(struct.pack(f"<{len(sums)}Q", *sums)).decode()
        self._lines.put({**line, "sums": packed})

    def _sum_up(self, tensor: Any) -> Any:
        if tensor is None:
            return None
        part = local_part(tensor)
        if part.layout != sys.modules["torch"].strided or part.is_meta:
            return None
        return self._checksums.sum_up(part)

    def _tell_names(self, watched: _Watched, optimizer: Any) -> None:
        """Write the names, again when parameters were added."""
        parameters = list_parameters(optimizer)
        if watched.count == len(parameters):
            return
        watched.count, watched.sums = len(parameters), None
        self._sets += 1
        watched.set = self._sets
        about = [describe(local_part(tensor)) for tensor in parameters]
        self._lines.put(
            {
                "kind": "tensors",
                "opt": watched.number,
                "set": watched.set,
                "names": name_parameters(optimizer),
                "shapes": [one["shape"] for one in about],
                "dtypes": [one["dtype"] for one in about],
            }
        )


def _stack_by_device(sums: list[Any]) -> list[tuple[Any, list[int]]]:
    """Stack the sums of each device, with their places: one copy for each device."""
    torch: Any = sys.modules["torch"]
    places: dict[str, list[int]] = {}
    for place, one in enumerate(sums):
        places.setdefault(str(one.device), []).append(place)
    return [(torch.stack([sums[place] for place in row]), row) for row in places.values()]


def _in_order(values: list[list[float]], rows: list[tuple[Any, list[int]]]) -> list[list[float]]:
    """Return the values in the order of the tensors, as one row."""
    found = {
        place: value for got, (_, places) in zip(values, rows) for place, value in zip(places, got)
    }
    return [[found[place] for place in sorted(found)]]


def _make_safe(see: Callable[[Any], None]) -> Callable[[Any], None]:
    def safely(optimizer: Any) -> None:
        try:
            with quiet():
                see(optimizer)
        except Exception as error:  # the step is made without us
            let_through(error)
            return

    return safely
