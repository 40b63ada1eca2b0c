"""Updates that a check in the job skips: gradients that are not finite are dropped, not used."""

from __future__ import annotations

import functools
import math
import sys
import weakref

from .. import progress
from ..calling.interrupts import let_through
from ..calling.unseen import hide_from_warnings, leave_out
from .names import list_parameters, local_part
from .tensors import Later, is_captured, quiet
from .updates import Updates

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .lines import Lines
    from .scaler import ScalerWatch

_SOURCE = "guard"


class GuardWatch:
    """Looks at gradients that are cleared with no optimizer step since they were cleared before.

    Only then are they read. An accumulation of gradients clears them after its step, and a step of
    an attack on the inputs drops finite ones: neither is a skipped update.
    """

    def __init__(
        self,
        lines: Lines,
        defer: Callable[[Callable[[], bool]], None],
        newest: Callable[[], int],
        scalers: ScalerWatch,
    ) -> None:
        self._updates = Updates(lines, _SOURCE)
        self._defer = defer
        self._newest = newest
        self._scalers = scalers
        self._is_on = True
        self._originals: list[tuple[Any, Any, Any]] = []
        # What was decided until gradients were cleared last, by whose gradients they are.
        self._before: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()
        self._last = self._count()
        self._counted = self._last[0]
        self._from = newest() + 1

    def install(self) -> None:
        """Follow all calls that clear gradients from now on."""
        torch: Any = sys.modules["torch"]
        self._patch(torch.optim.Optimizer, list_parameters)
        self._patch(torch.nn.Module, lambda module: list(module.parameters()))

    def remove(self) -> None:
        """Put torch's own functions back, unless somebody has put others over ours."""
        for owner, original, made in self._originals:
            if owner.zero_grad is made:
                owner.zero_grad = original
        self._is_on = False
        self.close()

    def close(self) -> None:
        """Tell how many updates there were in all."""
        self._count_made(progress.COUNTS.optimizer_steps)
        self._updates.write()

    def _patch(self, owner: Any, list_all: Callable[[Any], list[Any]]) -> None:
        original = owner.zero_grad
        is_compiling = sys.modules["torch"].compiler.is_compiling

        @functools.wraps(original)
        def zero_grad(cleared: Any, *args: Any, **kwargs: Any) -> Any:
            # The compiler takes this for true, and sees no more than torch's own function.
            if is_compiling():
                return original(cleared, *args, **kwargs)
            if self._is_on:
                self._see_safely(cleared, list_all)
            try:
                return original(cleared, *args, **kwargs)
            except BaseException as error:
                leave_out(error)
                raise

        hide_from_warnings(zero_grad)
        owner.zero_grad = zero_grad
        self._originals.append((owner, original, zero_grad))

    def _see_safely(self, cleared: Any, list_all: Callable[[Any], list[Any]]) -> None:
        try:
            with quiet():
                self._see(cleared, list_all)
        except Exception as error:  # the gradients are cleared without us
            let_through(error)
            return

    def _count(self) -> tuple[int, int]:
        """Return what tells a decision: optimizer steps, and updates of scalers."""
        return progress.COUNTS.optimizer_steps, self._scalers.decisions

    def _see(self, cleared: Any, list_all: Callable[[Any], list[Any]]) -> None:
        now, last = self._count(), self._before.get(cleared, self._last)
        ops = self._from, self._newest()
        self._before[cleared] = self._last = now
        self._from = ops[1] + 1
        if now != last:
            self._defer(lambda: self._count_made(now[0]))
            return
        grads = [local_part(one.grad) for one in list_all(cleared) if one.grad is not None]
        grads = [one.detach() for one in grads if _is_readable(one)]
        if not grads or is_captured(grads[0]):
            return
        sizes = _measure_largest(grads)
        self._defer(Later(sizes, lambda got: self._write(now[0], ops, got)))

    def _write(self, step: int, ops: tuple[int, int], got: list[list[float]]) -> None:
        if not all(math.isfinite(size) for row in got for size in row):
            self._count_made(step)
            self._updates.add(step, ops, is_skipped=True)

    def _count_made(self, step: int) -> bool:
        """Count the steps that were made since this was done before; return that it is done."""
        made, self._counted = step - self._counted, max(step, self._counted)
        if not self._updates.skips:
            self._updates.updates += max(made, 0)
            return True
        for _ in range(made):
            self._updates.add(step, None, is_skipped=False)
        return True


def _is_readable(grad: Any) -> bool:
    return bool(
        grad.layout == sys.modules["torch"].strided
        and grad.is_floating_point()
        and grad.numel()
        and not grad.is_meta
    )


def _measure_largest(grads: list[Any]) -> list[Any]:
    """Return the largest size in each gradient: a row for each device, NaN where there is one."""
    torch: Any = sys.modules["torch"]
    by_kind: dict[tuple[str, str], list[Any]] = {}
    for grad in grads:
        by_kind.setdefault((str(grad.device), str(grad.dtype)), []).append(grad)
    return [torch.stack(torch._foreach_norm(row, math.inf)) for row in by_kind.values()]
