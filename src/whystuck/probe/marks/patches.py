"""Functions of torch and of libraries whose calls are phases, replaced while marks are on.

What the job has replaced itself meanwhile is left: our function below it goes on, and marks
nothing while marks are off.
"""

from __future__ import annotations

import functools
import sys
import weakref

from ..calling.unseen import hide_from_warnings, leave_out
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
# Where a function has two places, it is pickled by the one that is not here: a job may have taken
# it before it was replaced.
TARGETS = (
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter", "__next__", DATALOADER, "next"),
    ("torch.utils.data.dataloader", "DataLoader", "__iter__", DATALOADER, "iter"),
    ("torch.autograd", "", "_engine_run_backward", BACKWARD, "backward"),
    ("megatron.core.pipeline_parallel.schedules", "", "custom_backward", BACKWARD, "backward"),
    ("torch", "", "save", CHECKPOINT, "torch.save"),
    ("torch.distributed.checkpoint", "", "save", CHECKPOINT, "dcp.save"),
    ("torch.distributed.checkpoint", "", "async_save", CHECKPOINT, "dcp.async_save"),
    ("megatron.core.dist_checkpointing", "", "save", CHECKPOINT, "dist_checkpointing.save"),
    ("deepspeed.runtime.engine", "DeepSpeedEngine", "save_checkpoint", CHECKPOINT, "deepspeed"),
)

_PACKAGES = {"nvtx.nvtx": "nvtx"}


class Patch:
    """One function, and what stands in its place."""

    def __init__(self, phases: Phases, target: tuple[str, str, str, int, str]) -> None:
        """Prepare it.

        Args:
            phases: Where calls are marked.
            target: One of `TARGETS`.
        """
        self._phases = phases
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
            made = self._wrap(function)
            if not self._class:
                made.__module__, made.__qualname__ = self.module, self._attribute
            hide_from_warnings(made)
            hide_functions(made)
            self._original, self._ours = found, staticmethod(made) if is_static else made
            setattr(owner, self._attribute, self._ours)
        return True

    def remove(self) -> None:
        """Put back what was there, unless somebody has put something else there.

        A function of ours that the job has taken from its place stays there: by that it is pickled.
        """
        owner, ours, original = self._find_owner(), self._ours, self._original
        if owner is None or ours is None or owner.__dict__.get(self._attribute) is not ours:
            return
        setattr(owner, self._attribute, original)
        self._ours = self._original = None
        if self._class or self._attribute.startswith("_"):
            return
        known, ours = weakref.ref(ours), None
        if (held := known()) is not None:
            self._ours, self._original = held, original
            setattr(owner, self._attribute, held)

    def _find_owner(self) -> Any:
        module = sys.modules.get(self.module)
        return getattr(module, self._class, None) if self._class else module

    def _wrap(self, original: Callable[..., object]) -> Callable[..., object]:
        phases, kind = self._phases, self.kind
        name = phases.ring.learn_name(self._name)

        @functools.wraps(original)
        def call(*args: object, **kwargs: object) -> object:
            number = phases.enter(kind, name)
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                leave_out(error)
                raise
            finally:
                if number:
                    phases.leave(number)

        return call


class Patches:
    """All of them."""

    def __init__(self, phases: Phases, more: list[Patch]) -> None:
        self._phases = phases
        self._all = [*(Patch(phases, target) for target in TARGETS), *more]
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
