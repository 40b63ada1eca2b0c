"""Steps that a gradient scaler skips because gradients are not finite."""

from __future__ import annotations

import functools
import sys

from .. import progress
from .tensors import Later, quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .lines import Lines


class ScalerWatch:
    """Follows ``GradScaler.update``; ``newest`` tells the number of the newest recorded op.

    What belongs to a skipped step is no fault: that gradients overflow is how the scale is found.
    """

    def __init__(
        self, lines: Lines, defer: Callable[[Later], None], newest: Callable[[], int]
    ) -> None:
        self._lines = lines
        self._defer = defer
        self._newest = newest
        self._scaler: Any = None
        self._original: Any = None
        self._made: Any = None
        self._is_on = True
        self._updates = 0
        self._skips = 0
        self._scale = 0.0
        self._not_finite = lines.not_finite
        self._from = newest() + 1

    def install(self) -> None:
        """Follow all scalers of this process from now on."""
        module = sys.modules.get("torch.amp.grad_scaler")
        if module is None:
            return
        self._scaler = module.GradScaler
        original = self._original = self._scaler.update

        @functools.wraps(original)
        def update(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                if self._is_on:
                    self._see(scaler)
            except Exception:  # the scaler goes on without us
                pass
            return original(scaler, *args, **kwargs)

        self._made = self._scaler.update = update

    def remove(self) -> None:
        """Put torch's own function back, unless somebody has put another one over ours."""
        if self._scaler is not None and self._scaler.update is self._made:
            self._scaler.update = self._original
        self._is_on = False

    def _see(self, scaler: Any) -> None:
        """Look before the update, which forgets what was found and changes the scale."""
        if not scaler.is_enabled() or scaler._scale is None:
            return
        found = [
            flag
            for state in scaler._per_optimizer_states.values()
            for flag in state["found_inf_per_device"].values()
        ]
        first, last = self._from, self._newest()
        self._from = last + 1
        step = progress.COUNTS.optimizer_steps
        with quiet():
            numbers = [one.detach().clone().reshape(1) for one in (scaler._scale, *found)]
            later = Later(numbers, lambda got: self._write(step, first, last, got))
        self._defer(later)

    def _write(self, step: int, first: int, last: int, got: list[list[float]]) -> None:
        scale, is_skipped = got[0][0], any(flag[0] for flag in got[1:])
        self._updates += 1
        self._skips += int(is_skipped)
        is_seen = self._lines.not_finite != self._not_finite
        self._not_finite = self._lines.not_finite
        if not (is_skipped or is_seen or scale != self._scale):
            return
        self._scale = scale
        self._lines.put(
            {
                "kind": "amp",
                "step": step,
                "scale": scale,
                "skipped": is_skipped,
                "skips": self._skips,
                "updates": self._updates,
                "first_op": first,
                "last_op": last,
            }
        )
