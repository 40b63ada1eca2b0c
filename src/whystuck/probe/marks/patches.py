"""Functions of torch and of libraries whose calls are phases, replaced while marks are on.

What the job has replaced itself meanwhile is left: our function below it goes on, and marks
nothing while marks are off.
"""

from __future__ import annotations

import functools
import sys

from ..import_watch import ImportWatch
from .compiler import hide_functions
from .phases import Phases
from .ring import BACKWARD, CHECKPOINT, DATALOADER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

_MISSING = object()
# Module, class or nothing, function, kind, name. Those that a job imports later are found then.
# Backward at the place that all ways to it go through: also `Tensor.backward`, `autograd.grad`.
TARGETS = (
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter", "__next__", DATALOADER, "next"),
    ("torch.utils.data.dataloader", "DataLoader", "__iter__", DATALOADER, "iter"),
    ("torch.autograd", "", "_engine_run_backward", BACKWARD, "backward"),
    ("megatron.core.pipeline_parallel.schedules", "", "custom_backward", BACKWARD, "backward"),
    ("torch.serialization", "", "save", CHECKPOINT, "torch.save"),
    ("torch", "", "save", CHECKPOINT, "torch.save"),
    ("torch.distributed.checkpoint", "", "save", CHECKPOINT, "dcp.save"),
    ("torch.distributed.checkpoint", "", "async_save", CHECKPOINT, "dcp.async_save"),
    ("torch.distributed.checkpoint.state_dict_saver", "", "save", CHECKPOINT, "dcp.save"),
    (
        "torch.distributed.checkpoint.state_dict_saver", "", "async_save", CHECKPOINT,
        "dcp.async_save",
    ),
    ("megatron.core.dist_checkpointing", "", "save", CHECKPOINT, "dist_checkpointing.save"),
    ("deepspeed.runtime.engine", "DeepSpeedEngine", "save_checkpoint", CHECKPOINT, "deepspeed"),
)  # fmt: skip

_PACKAGES = {
    "torch.distributed.checkpoint.state_dict_saver": "torch.distributed.checkpoint",
    "nvtx.nvtx": "nvtx",
}


class Patch:
    """One function, and what stands in its place."""

    def __init__(
        self, phases: Phases, target: tuple[str, str, str, int, str], known: dict[Any, Any]
    ) -> None:
        """Prepare it.

        Args:
            phases: Where calls are marked.
            target: One of `TARGETS`.
            known: What stands in the place of each function: one that has two places is the same
                in both, as it is pickled by one of them.
        """
        self._phases = phases
        self._known = known
        self.module, self._class, self._attribute, self.kind, self._name = target
        self._original: Any = None
        self._ours: Any = None

    def place(self) -> bool:
        """Put ours in its place; return whether the function is there at all."""
        owner = self._find_owner()
        found: Any = _MISSING if owner is None else owner.__dict__.get(self._attribute, _MISSING)
        is_static = isinstance(found, staticmethod)
        function: Any = found.__func__ if is_static else found
        if found is _MISSING or not callable(function):
            return False
        if found is not self._ours:
            if found not in self._known:
                made = self._wrap(function)
                hide_functions(made)
                self._known[found] = staticmethod(made) if is_static else made
            self._original, self._ours = found, self._known[found]
            setattr(owner, self._attribute, self._ours)
        return True

    def remove(self) -> None:
        """Put back what was there, unless somebody has put something else there."""
        owner = self._find_owner()
        if owner is not None and owner.__dict__.get(self._attribute) is self._ours is not None:
            setattr(owner, self._attribute, self._original)
            self._ours = self._original = None

    def _find_owner(self) -> Any:
        module = sys.modules.get(self.module)
        return getattr(module, self._class, None) if self._class else module

    def _wrap(self, original: Callable[..., object]) -> Callable[..., object]:
        phases, kind = self._phases, self.kind
        name = phases.ring.learn_name(self._name)

        @functools.wraps(original)
        def call(*args: object, **kwargs: object) -> object:
            number = phases.enter(kind, name)
            if not number:
                return original(*args, **kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                phases.leave(number)

        return call


class Patches:
    """All of them."""

    def __init__(self, phases: Phases, more: Callable[[dict[Any, Any]], list[Patch]]) -> None:
        self._phases = phases
        known: dict[Any, Any] = {}
        self._all = [*(Patch(phases, target, known) for target in TARGETS), *more(known)]
        # Of modules that the job has not imported yet.
        self._watch: ImportWatch | None = None

    def follow(self) -> None:
        """Put those in place whose kind is marked, and take out the others."""
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        absent = set()
        for one in self._all:
            if not self._phases.on[one.kind]:
                one.remove()
            elif not one.place() and one.module not in sys.modules:
                # Of a package, all are put in place at once: it takes functions from its parts.
                absent.add(_PACKAGES.get(one.module, one.module))
        if absent:
            self._watch = ImportWatch(absent, self._follow_import)
            self._watch.start()

    def _follow_import(self, name: str) -> None:
        for one in self._all:
            if _PACKAGES.get(one.module, one.module) == name and self._phases.on[one.kind]:
                one.place()
