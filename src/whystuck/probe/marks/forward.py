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
import threading
import weakref

from ..calling.interrupts import let_through
from ..calling.unseen import hide_from_warnings, leave_out
from .call_line import CallLine
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
# Of torch, what asks.
_CALLER = "_wrapped_call_impl"
# Whatever the class of a class does where somebody changes that.
_set, _delete = type.__setattr__, type.__delattr__


class Forward:
    """The descriptor, and where it stands.

    torch asks twice what a module is to be called by: whether there is anything, and for it. What
    was answered first is kept until the call is made, and the descriptor goes nowhere meanwhile.
    Before it goes, it answers as if it were not there, so that nobody else comes to wait for.
    """

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self._line = CallLine()
        # The number of the name of each class whose modules were outermost. Weak, as its methods
        # may hold whatever was around the class where it was made.
        self._classes: weakref.WeakKeyDictionary[type, int] = weakref.WeakKeyDictionary()
        self._placed: tuple[weakref.ref[type], ...] = ()
        self._steps_left = 0
        self._every, self._looks = _EVERY, 0
        self._is_on = self._is_wide = False
        # False while it is to go, or is nowhere.
        self._stays = False
        # What the callers were told that are to ask once more.
        self._promised: dict[FrameType, Any] = {}
        # Those of them that were there a second ago.
        self._old: set[FrameType] = set()
        # Held, and never waited for, by who moves the descriptor.
        self._lock = threading.Lock()

    def __get__(self, module: Any, owner: object = None) -> Any:
        """Return what a module is to be called by; None where that is its own way."""
        if module is None:
            return None
        caller = sys._getframe(1)
        if self._promised:
            promised = self._promised.get(caller)
            if promised is not None:
                return promised
        own = module.__dict__.get(_NAME)
        if not self._stays or caller.f_code.co_name != _CALLER:
            return own
        if not self._phases.is_free(FORWARD):
            return own
        made = self._promised[caller] = functools.partial(self._call, caller, module, own)
        # Whoever moves it may not have seen the promise, or may have moved it before that.
        if not self._stays or not self._is_found(type(module)):
            self._promised.pop(caller, None)
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

    def __reduce__(self) -> tuple[type, tuple[()]]:
        """Be None where a class is copied or pickled with all that it has, as by cloudpickle."""
        return type(None), ()

    def start(self) -> None:
        """Look at all modules, and at those that turn out to be outermost from then on."""
        self._is_on = self._is_wide = True
        self._steps_left = _FIRST_STEPS
        self._follow()

    def step_ended(self) -> None:
        """Look at fewer modules, or at all of them once more."""
        if not self._is_on:
            return
        self._steps_left -= 1
        if self._steps_left == 0 and self._classes:
            self._is_wide = False
            self._follow()
        elif self._steps_left <= -self._every:
            self._steps_left = 1
            self._looks += 1
            if self._looks > _OFTEN:
                self._every = min(2 * self._every, _SELDOM)
            self._is_wide = True
            self._follow()
        elif not self._stays:  # somebody was to ask once more
            self._follow()

    def stop(self) -> None:
        """Look at none any more; `look` does what cannot be done now."""
        self._is_on = False
        self._follow()

    def look(self) -> None:
        """Do what could not be done while somebody was to ask once more; called once a second."""
        if self._promised or self._old:
            self._forget_ended()
        self._follow()

    def _is_found(self, kind: type) -> bool:
        for one in kind.__mro__:
            if _NAME in one.__dict__:
                return one.__dict__[_NAME] is self
        return False

    def _forget_ended(self) -> None:
        """Forget callers that will not ask again: a signal handler raised in between."""
        old = self._old & self._promised.keys()
        self._old = set(self._promised)
        if old:
            for top in sys._current_frames().values():
                frame: FrameType | None = top
                while frame is not None:
                    old.discard(frame)
                    frame = frame.f_back
        for frame in old:
            self._promised.pop(frame, None)

    def _choose(self) -> tuple[weakref.ref[type], ...]:
        if not self._is_on:
            return ()
        # There is one such reference of a class, the same one each time.
        return tuple(map(weakref.ref, (_module_class(),) if self._is_wide else list(self._classes)))

    def _follow(self) -> None:
        """Go where it is wanted; not while a caller is to ask once more."""
        # Once more after each time: what is wanted may have changed while it moved.
        while self._choose() != self._placed and self._lock.acquire(False):
            try:
                self._stays = False
                if self._promised:
                    return
                self._move(self._choose())
            finally:
                self._lock.release()

    def _move(self, wanted: tuple[weakref.ref[type], ...]) -> None:
        base = _module_class()
        old, self._placed = self._placed, (*self._placed, *wanted)
        for known in wanted:
            one = known()
            if one is not None and (one is base or _NAME not in one.__dict__):
                _set(one, _NAME, self)
        for known in old:
            one = known()
            if one is not None and known not in wanted and one.__dict__.get(_NAME) is self:
                if one is base:
                    _set(one, _NAME, None)
                else:
                    _delete(one, _NAME)
        self._placed = wanted
        self._stays = bool(wanted)

    def _call(
        self,
        caller: FrameType,
        module: Any,
        own: Callable[..., Any] | None,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        call = module._call_impl if own is None else own
        self._promised.pop(caller, None)
        number = self._phases.enter(FORWARD, self._name(type(module)))
        try:
            return call(*args, **kwargs)
        except BaseException as error:
            leave_out(error)
            if own is None:
                self._line.mend(error, caller)
            raise
        finally:
            if number:
                self._phases.leave(number)

    def _name(self, one: type) -> int:
        try:
            name = self._classes.get(one)
            if name is None:
                if len(self._classes) >= _MAX_CLASSES:
                    return 0
                name = self._classes[one] = self._phases.ring.learn_name(one.__name__)
        except Exception as error:  # a class that cannot be a key
            let_through(error)
            return 0
        return name


hide_from_warnings(Forward._call)


def _module_class() -> type:
    found: type = sys.modules["torch.nn.modules.module"].Module
    return found
