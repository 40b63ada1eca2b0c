"""Ranges that the job makes with other libraries: they are read as marks of its own.

They are NVTX, ITT, mstx and torch's `record_function`. The functions are replaced while marks are
on, and called as before, whatever tool listens to them. Ranges that torch makes itself are left.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import deque

from ..calling.interrupts import let_through
from ..calling.unseen import leave_out
from . import user
from .patches import Patch
from .ring import USER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Callable

    from .phases import Phases

    Original = Callable[..., Any]

PUSH, POP, START, END, INSTANT, ENTER, EXIT = range(7)
# Ranges that have no end, of one handle or of one thread: the oldest is forgotten. Some jobs push
# them in one thread, and pop them in that of autograd.
_MAX_OPEN = 1024
_RECORD = "torch.autograd.profiler", "record_function"
# The innermost code around a range of torch's, which says nothing about who made it.
_WRAPPERS = ("torch.autograd.profiler", "torch.utils._contextlib", "contextlib")
# Module, class or nothing, function, what it does. What one library pushes, it pops.
TARGETS = (
    (*_RECORD, "__enter__", ENTER),
    (*_RECORD, "__exit__", EXIT),
    ("torch.cuda.nvtx", "", "range_push", PUSH),
    ("torch.cuda.nvtx", "", "range_pop", POP),
    ("torch.cuda.nvtx", "", "range_start", START),
    ("torch.cuda.nvtx", "", "range_end", END),
    ("torch.cuda.nvtx", "", "mark", INSTANT),
    ("torch.profiler.itt", "", "range_push", PUSH),
    ("torch.profiler.itt", "", "range_pop", POP),
    ("torch.profiler.itt", "", "mark", INSTANT),
    ("nvtx.nvtx", "annotate", "__enter__", ENTER),
    ("nvtx.nvtx", "annotate", "__exit__", EXIT),
    ("nvtx", "", "push_range", PUSH),
    ("nvtx", "", "pop_range", POP),
    ("nvtx", "", "start_range", START),
    ("nvtx", "", "end_range", END),
    ("nvtx", "", "mark", INSTANT),
    ("torch_npu.npu.mstx", "mstx", "range_start", START),
    ("torch_npu.npu.mstx", "mstx", "range_end", END),
    ("torch_npu.npu.mstx", "mstx", "mark", INSTANT),
)


class Ranges:
    """The ranges that are open, by library."""

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self.forget()

    def forget(self) -> None:
        """Forget what is open: marks were off, and its end may have been missed."""
        self._pushed = threading.local()
        self._started: dict[Any, list[user.Mark]] = {}

    def list_patches(self) -> list[Patch]:
        """Return what is to be put in place."""
        return [RangePatch(self, self._phases, target) for target in TARGETS]

    def note(self, role: int, library: str, subject: Any, result: Any) -> None:
        """Take note of a call that was made; never raises.

        Args:
            role: What the function does.
            library: Whose it is.
            subject: Its first argument: a message, a handle, or the object of a ``with``.
            result: What it has returned.
        """
        try:
            if not self._phases.on[USER]:
                return
            if role in (POP, EXIT):
                self._end_last(library)
            elif role == END:
                self._end(library, subject)
            elif role == START:
                self._start(library, result, user.Mark(self._phases, subject).begin())
            elif role == INSTANT:
                user.Mark(self._phases, subject)
            elif role == PUSH:
                self._push(library, user.Mark(self._phases, subject).begin())
            else:
                self._enter(library, subject)
        except Exception as error:  # the job goes on without us
            let_through(error)
            return

    def _enter(self, library: str, subject: Any) -> None:
        is_ours = library == _RECORD[0] and _is_of_torch(sys._getframe(3))
        # One that is left has its place all the same, for its end.
        mark = None if is_ours else user.Mark(self._phases, _find_name(subject)).begin()
        self._push(library, mark)

    def _push(self, library: str, mark: user.Mark | None) -> None:
        self._stack(library).append(mark)

    def _end_last(self, library: str) -> None:
        stack = self._stack(library)
        # It may have begun before marks were on.
        if stack and (mark := stack.pop()) is not None:
            mark.end()

    def _start(self, library: str, handle: Any, mark: user.Mark) -> None:
        if len(self._started) >= _MAX_OPEN:
            self._started.pop(next(iter(self._started)), None)
        # Without a tool that listens, some libraries give the same handle to all.
        same = self._started.setdefault((library, handle), [])
        if len(same) < _MAX_OPEN:
            same.append(mark)

    def _end(self, library: str, handle: Any) -> None:
        same = self._started.get((library, handle))
        if same:
            same.pop().end()
            if not same:
                self._started.pop((library, handle), None)

    def _stack(self, library: str) -> deque[user.Mark | None]:
        stacks: dict[str, deque[user.Mark | None]] = self._pushed.__dict__
        return stacks.setdefault(library, deque(maxlen=_MAX_OPEN))


class RangePatch(Patch):
    """One function of such a library."""

    def __init__(self, ranges: Ranges, phases: Phases, target: tuple[str, str, str, int]) -> None:
        super().__init__(phases, (*target[:3], USER, ""))
        self._ranges, self._role = ranges, target[3]

    def _wrap(self, original: Original) -> Original:
        note, role, library = self._ranges.note, self._role, self.module.partition(".nvtx")[0]

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                leave_out(error)
                raise
            subject = args[0] if args else next(iter(kwargs.values()), "")
            note(role, library, subject, result)
            return result

        return call


def _find_name(subject: Any) -> object:
    """Return what the object of a ``with`` calls its range."""
    if isinstance(name := getattr(subject, "name", None), str):
        return name
    # Of `nvtx.annotate`.
    return (getattr(subject, "init_args", None) or ("",))[0] or "annotate"


def _is_of_torch(frame: FrameType | None) -> bool:
    """Return whether the code that makes a range is torch's own, such as that of its optimizers."""
    while frame is not None:
        name = frame.f_globals.get("__name__")
        if name not in _WRAPPERS:
            return isinstance(name, str) and name.startswith("torch.")
        frame = frame.f_back
    return False
