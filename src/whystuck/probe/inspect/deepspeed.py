"""Updates that DeepSpeed skips, which has scalers of its own and knows on the host what they do."""

from __future__ import annotations

import sys
import weakref

from .. import progress
from ..calling.unseen import call_before
from .updates import Updates

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .lines import Lines
    from .scaler import ScalerWatch

_SOURCE = "deepspeed"
_PLACE = "deepspeed.runtime.fp16."
# What each class calls once for each update, with whether it is skipped.
_METHODS = (
    ("loss_scaler", "LossScalerBase", "update_scale"),
    ("loss_scaler", "DynamicLossScaler", "update_scale"),
    ("fused_optimizer", "FP16_Optimizer", "_update_scale"),
    ("unfused_optimizer", "FP16_UnfusedOptimizer", "_update_scale"),
)


class DeepSpeedWatch:
    """Follows the scalers of DeepSpeed, once the job has imported them."""

    def __init__(
        self, lines: Lines, defer: Callable[[Callable[[], bool]], None], scalers: ScalerWatch
    ) -> None:
        self._lines = lines
        self._defer = defer
        self._scalers = scalers
        self._is_on = True
        self._patched: dict[tuple[str, str, str], tuple[Any, Any, Any]] = {}
        self._series: weakref.WeakKeyDictionary[Any, Updates] = weakref.WeakKeyDictionary()
        self._all: list[Updates] = []

    def install(self) -> None:
        """Follow what is there already."""
        self.look()

    def look(self) -> None:
        """Follow what was imported since the last look."""
        for key in _METHODS:
            module, name, method = key
            owner = getattr(sys.modules.get(_PLACE + module), name, None)
            original = vars(owner).get(method) if isinstance(owner, type) else None
            if self._is_on and key not in self._patched and callable(original):
                made = self._make(original)
                setattr(owner, method, made)
                self._patched[key] = owner, original, made

    def remove(self) -> None:
        """Put the functions of DeepSpeed back, unless somebody has put others over ours."""
        self._is_on = False
        for (_, _, method), (owner, original, made) in self._patched.items():
            if vars(owner).get(method) is made:
                setattr(owner, method, original)
        self.close()

    def close(self) -> None:
        """Tell how many updates there were in all."""
        for series in self._all:
            series.write()

    def _make(self, original: Any) -> Any:
        def see(scaler: Any, *args: Any, **kwargs: Any) -> None:
            if self._is_on:
                self._see(scaler, next(iter([*args, *kwargs.values()]), None))

        return call_before(original, see)

    def _see(self, scaler: Any, overflow: Any) -> None:
        if not isinstance(overflow, (bool, int)):
            return  # a tensor may be on a device
        scale = getattr(scaler, "cur_scale", None)
        ops, step = self._scalers.take_ops(), progress.COUNTS.optimizer_steps
        series = self._series.get(scaler)
        if series is None:
            series = self._series[scaler] = Updates(self._lines, _SOURCE, len(self._all))
            self._all.append(series)
        known = float(scale) if isinstance(scale, (int, float)) else None
        series.init = known if series.init is None else series.init

        def write() -> bool:
            series.add(
                step,
                ops,
                is_skipped=bool(overflow),
                scale=known,
                is_telling=self._scalers.has_seen(),
            )
            return True

        self._defer(write)
