"""Marks of forward: calls of the outermost modules, whatever the job made of them.

Hooks on modules are not used: global ones slow down all modules and make ``torch.compile`` warn,
and those of one module are pickled with it and traced by the compiler. `Module._compiled_call_impl`
is what a module is called by where ``Module.compile`` has set it: the compiler never looks at it,
nor does anything keep what it is. A descriptor in its place sees each call before it happens. It
stands in `torch.nn.Module` itself, where each module's call costs 0.1 us, for a step or two; then
only in the classes whose modules were outermost.
"""

from __future__ import annotations

import functools
import sys
from threading import get_ident

from .phases import Phases
from .ring import FORWARD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Callable

_NAME = "_compiled_call_impl"
# So many steps are looked at first, and one of so many later: a job may call another model. Then
# it is one of more and more: from Python 3.13 on, a class that has changed 1,000 times, and each
# class below it, has its attributes looked up without a cache for good.
_FIRST_STEPS, _EVERY, _SELDOM = 2, 256, 1 << 20
_OFTEN = 100
_MAX_CLASSES = 64
# Looks after which nobody can be between two questions any more.
_PATIENCE = 16


class Forward:
    """The descriptor, and where it stands."""

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        # The number of the name of each class whose modules were outermost.
        self._classes: dict[type, int] = {}
        self._placed: list[type] = []
        self._steps_left = 0
        self._every, self._looks = _EVERY, 0
        self._is_on = False
        # The frame of each thread that was told what to call, and asks once more before it does
        # so: the answer must be the same then, whatever other threads have done in between.
        self._promised: dict[int, tuple[FrameType, Any]] = {}
        self._patience = 0

    def __get__(self, module: Any, owner: object = None) -> Any:
        """Return what a module is to be called by; None where that is its own way."""
        if module is None:
            return None
        if self._promised:
            promised = self._promised.get(get_ident())
            if promised is not None and promised[0] is sys._getframe(1):
                return promised[1]
        own = module.__dict__.get(_NAME)
        if not self._is_on or not self._phases.is_free(FORWARD):
            return own
        made = functools.partial(self._call, module, own)
        self._promised[get_ident()] = sys._getframe(1), made
        if not self._is_on:  # turned off by another thread, which may not have seen the promise
            self._promised.pop(get_ident(), None)
            return own
        return made

    def __set__(self, module: Any, value: Any) -> None:
        """Set what this module is called by, as without us."""
        module.__dict__[_NAME] = value

    def __delete__(self, module: Any) -> None:
        """Delete that, as without us."""
        if _NAME not in module.__dict__:
            raise AttributeError(_NAME)
        del module.__dict__[_NAME]

    def start(self) -> None:
        """Look at all modules, and at those that turn out to be outermost from then on."""
        self._is_on = True
        self._steps_left = _FIRST_STEPS
        self._place([_module_class()])

    def step_ended(self) -> None:
        """Look at fewer modules, or at all of them once more."""
        if not self._is_on:
            return
        self._steps_left -= 1
        if self._steps_left == 0 and self._classes:
            self._place(list(self._classes))
        elif self._steps_left <= -self._every:
            self._steps_left = 1
            self._looks += 1
            if self._looks > _OFTEN:
                self._every = min(2 * self._every, _SELDOM)
            self._place([_module_class()])

    def stop(self) -> None:
        """Look at none any more; `clear` does what cannot be done now."""
        self._is_on = False
        self._patience = _PATIENCE
        self.clear()

    def clear(self) -> None:
        """Go where nothing is to be marked; not while a thread is about to ask once more."""
        if self._is_on or not self._placed:
            return
        self._patience -= 1
        if self._patience < 0:
            self._promised.clear()  # of a call that a signal has ended
        self._place([])

    def _place(self, classes: list[type]) -> None:
        if self._promised:
            return
        for one in classes:
            setattr(one, _NAME, self)
        old, self._placed = self._placed, classes
        for one in old:
            if one not in classes and one.__dict__.get(_NAME) is self:
                if one is _module_class():
                    setattr(one, _NAME, None)
                else:
                    delattr(one, _NAME)

    def _call(self, module: Any, own: Callable[..., Any] | None, *args: Any, **kwargs: Any) -> Any:
        call = module._call_impl if own is None else own
        self._promised.pop(get_ident(), None)
        number = self._phases.enter(FORWARD, self._name(type(module)))
        if not number:
            return call(*args, **kwargs)
        try:
            return call(*args, **kwargs)
        finally:
            self._phases.leave(number)

    def _name(self, one: type) -> int:
        name = self._classes.get(one)
        if name is None:
            if len(self._classes) >= _MAX_CLASSES:
                return 0
            name = self._classes[one] = self._phases.ring.learn_name(one.__name__)
        return name


def _module_class() -> type:
    found: type = sys.modules["torch.nn.modules.module"].Module
    return found
