"""Updates that a gradient scaler skips because gradients are not finite."""

from __future__ import annotations

import sys
import weakref

from .. import progress
from ..calling.unseen import call_before
from .tensors import Later, is_host, quiet
from .updates import Updates

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .lines import Lines

_SOURCE = "scaler"


class ScalerWatch:
    """Follows the updates of ``torch.amp.GradScaler`` and of classes derived from it.

    ``newest`` returns the number of the newest recorded op. What belongs to a skipped update is no
    fault: that gradients overflow is how the scale is found.
    """

    def __init__(
        self, lines: Lines, defer: Callable[[Callable[[], bool]], None], newest: Callable[[], int]
    ) -> None:
        self._lines = lines
        self._defer = defer
        self._newest = newest
        self._patched: Any = None
        self._original: Any = None
        self._made: Any = None
        self._is_on = True
        self._series: weakref.WeakKeyDictionary[Any, Updates] = weakref.WeakKeyDictionary()
        self._all: list[Updates] = []
        # How many updates scalers of this process have decided on.
        self.decisions = 0
        self._not_finite = lines.not_finite
        self._from = newest() + 1

    def install(self) -> None:
        """Follow all scalers of this process from now on.

        Each of them checks its own state as the first thing of an update, also that of FSDP, which
        has an update of its own.
        """
        module = sys.modules.get("torch.amp.grad_scaler")
        if module is None:
            return
        self._patched = module.GradScaler
        original = self._original = self._patched._check_scale_growth_tracker

        def see(scaler: Any, funcname: str, *_: object) -> None:
            if funcname == "update" and self._is_on:
                with quiet():
                    self._see(scaler)

        self._made = self._patched._check_scale_growth_tracker = call_before(original, see)

    def remove(self) -> None:
        """Put torch's own function back, unless somebody has put another one over ours."""
        if self._patched is not None and self._patched._check_scale_growth_tracker is self._made:
            self._patched._check_scale_growth_tracker = self._original
        self._is_on = False
        self.close()

    def close(self) -> None:
        """Tell how many updates there were in all."""
        for series in self._all:
            series.write()

    def take_ops(self) -> tuple[int, int]:
        """Count an update; return the first and the last op since the one before."""
        self.decisions += 1
        ops = self._from, self._newest()
        self._from = ops[1] + 1
        return ops

    def has_seen(self) -> bool:
        """Return whether an op since the last call had values that are not finite."""
        before, self._not_finite = self._not_finite, self._lines.not_finite
        return before != self._not_finite

    def _see(self, scaler: Any) -> None:
        """Look before the update, which forgets what was found and changes the scale."""
        found = [
            flag
            for state in scaler._per_optimizer_states.values()
            for flag in state["found_inf_per_device"].values()
        ]
        if scaler._scale is None or not found:
            return
        series, ops = self._find(scaler), self.take_ops()
        step = progress.COUNTS.optimizer_steps

        def write(got: list[list[float]]) -> None:
            self._write(series, step, ops, got)

        def write_now() -> bool:
            write(values)
            return True

        numbers = [scaler._scale, *found]
        if all(is_host(one) for one in numbers):
            values = [[float(one)] for one in numbers]
            self._defer(write_now)
            return
        self._defer(Later([one.detach().clone().reshape(1) for one in numbers], write))

    def _find(self, scaler: Any) -> Updates:
        series = self._series.get(scaler)
        if series is None:
            series = self._series[scaler] = Updates(self._lines, _SOURCE, len(self._all))
            series.init = float(scaler._init_scale)
            self._all.append(series)
        return series

    def _write(
        self, series: Updates, step: int, ops: tuple[int, int], got: list[list[float]]
    ) -> None:
        series.add(
            step,
            ops,
            is_skipped=any(flag[0] for flag in got[1:]),
            scale=got[0][0],
            is_telling=self.has_seen(),
        )
