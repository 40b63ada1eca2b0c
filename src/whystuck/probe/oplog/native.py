"""Recording by the extension `whystuck_native`, where it is installed beside the job's torch.

Its hooks write the record of an op themselves, at once. Here is what they ask for when they see
something for the first time, and what takes the ops that they cannot tell. The extension reads
torch's arguments where torch keeps them: each kind of op is compared with what Python sees before
its records are believed, and nothing of the extension is used any more when the two differ.
"""

from __future__ import annotations

import importlib
import os
import sys

from .. import progress
from ..calling.interrupts import let_through
from ..calling.wanted import look
from .backlog import HookedGroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any, Callable

    from .backlog import Backlog
    from .log import Group, OpLog

    Hook = Callable[[Any], None]

MODULE = "whystuck_native"
SWITCH_ENV = "WHYSTUCK_NATIVE"
# What the extension and this file agree on.
_PROTOCOL = 2
# Of more tensors than this, the extension tells the first and the last.
_MAX_TENSORS = 16


def load() -> Any:
    """Return the extension, None when it is not there or does not suit this Python."""
    if os.environ.get(SWITCH_ENV) == "0":
        return None
    try:
        module = importlib.import_module(MODULE)
        return module if module.PROTOCOL == _PROTOCOL and _reads_frames(module) else None
    except Exception:  # not installed, or built for something else
        return None


def _reads_frames(module: Any) -> bool:
    """Tell whether the extension sees the frames of this thread as Python does."""
    seen = module.frames()
    frame: Any = sys._getframe()
    for at, (code, place) in enumerate(seen):
        if frame is None or code is not frame.f_code or (at and place != frame.f_lasti):
            return False
        frame = frame.f_back
    return bool(seen) and frame is None


class Native:
    """The extension at work, and what its hooks ask for; these methods may raise."""

    def __init__(self, module: Any, log: OpLog, backlog: Backlog) -> None:
        self._module = module
        self._log = log
        self._backlog = backlog
        # Forms are the same in all groups.
        self._any_group = HookedGroup("")
        # Why its hooks are no longer used, and what is called when there is a reason.
        self.reason = ""
        self.on_reason: Callable[[], None] | None = None
        ring = log.ring
        self.writer = module.Writer(
            ring.map, ring.offset, ring.capacity, ring.numbers, progress.COUNTS, self
        )
        self._use_torch()
        backlog.tells_looks = False

    def _use_torch(self) -> None:
        c10d = sys.modules["torch._C._distributed_c10d"]
        libraries = os.path.join(os.path.dirname(sys.modules["torch"].__file__ or ""), "lib")
        self.writer.use_torch(
            c10d.PreHookArgs,
            c10d.PostHookArgs,
            os.path.join(libraries, "libtorch_cpu.so"),
            os.path.join(libraries, "libc10.so"),
            sum(1 << code for code in self._backlog.ops),
            sum(1 << code for code in self._backlog.rooted),
        )

    def name(self) -> str:
        """Return what the header of the op log calls this recorder."""
        return "python" if self.reason else f"native {self._module.__version__}"

    def hook(
        self,
        left: HookedGroup,
        plain: tuple[Hook, Hook],
        looking: tuple[Hook, Hook],
    ) -> tuple[Hook, Hook]:
        """Return the two hooks of a group.

        ``plain`` are those of Python, ``looking`` those for the time that ops are looked into.
        """
        before, after = (self._make_fallback(*pair) for pair in zip(plain, looking))
        left.native = self._module.Hooked(self.writer, left.name, left.has_devices, before, after)
        self.look_into(left)
        return left.native.before, left.native.after

    def look_into(self, left: HookedGroup) -> None:
        """Have ops of a group looked into while there is an inspector."""
        log, ops = self._log, self._backlog.ops
        if left.native is None:
            return
        left.native.look_before = left.native.look_after = None
        if log.inspector is None:
            return

        def before(args: Any, number: int) -> None:
            if log.inspector is not None:
                look(log, "before_hook", number, ops[args.name.value], left.name, args)

        def after(args: Any, number: int) -> None:
            if log.inspector is not None:
                look(log, "after_hook", number, args.work)

        left.native.look_before, left.native.look_after = before, after

    def _make_fallback(self, plain: Hook, looking: Hook) -> Hook:
        """Make what takes an op that the extension cannot tell: it is recorded at once too."""
        log, backlog = self._log, self._backlog

        def take(args: Any) -> None:
            (plain if log.inspector is None else looking)(args)
            if not backlog.tells_looks:
                try:
                    backlog.flush()
                except Exception as error:  # the job goes on
                    let_through(error)
                    return

        return take

    # ------------------------------------------------------------- what the extension asks for

    def is_user(self, code: CodeType) -> bool:
        """Tell whether a code object is the user's."""
        return self._log.sites.is_user(code)

    def learn_site(self, flat: tuple[Any, ...]) -> int:
        """Give a site a number: code objects and places, innermost first."""
        first = flat[:4] if len(flat) > 2 else (*flat, None, 0)  # noqa: PLR2004
        code, *rest = first
        known = None if code is None else code
        return self._log.sites.number((known, *rest, flat[4:] or None))

    def learn_thread(self) -> int:
        """Return the number of the thread that calls."""
        import threading

        return self._log.threads.get(threading.get_ident()) or self._log.learn_thread()

    def learn_group(self, name: str) -> Group:
        """Return the group of a name."""
        return self._log.groups.get(name) or self._log.learn_group(name)

    def learn_form(self, args: Any, words: tuple[int, ...]) -> tuple[int, int] | None:
        """Return the number of a form and its flags, None when the extension sees it wrongly."""
        if words != _describe(args, is_rooted=args.name.value in self._backlog.rooted, told=words):
            return None
        return self._backlog.find_form(args, self._any_group)

    def check_before(self, args: Any, raw: tuple[Any, ...]) -> bool:
        """Tell whether the extension sees what a hook is given as Python does."""
        return raw == (
            args.name.value,
            int(args.async_op),
            args.root,
            args.op_id,
            tuple(tensor._cdata for tensor in args.input_tensors),
            tuple(tensor._cdata for tensor in args.output_tensors),
        )

    def check_after(self, args: Any, raw: tuple[Any, ...]) -> bool:
        """Tell the same of what a hook is given after an op."""
        work = int(args.work is not None)
        return raw == (args.name.value, int(args.async_op), work, args.op_id)

    def hasten(self, now_ns: int) -> None:
        """Wake the thread that looks for the ends of ops."""
        self._log.completion.hasten(now_ns)

    def give_up(self, reason: str) -> None:
        """Record by Python from now on."""
        if not self.reason:
            self.reason = reason
            self._backlog.tells_looks = True
            if self.on_reason is not None:
                self.on_reason()


def _describe(args: Any, *, is_rooted: bool, told: tuple[int, ...]) -> tuple[int, ...]:
    """Return the words that tell a form apart as the extension has them.

    The numbers that torch has for dtypes and devices are not seen here, and taken from ``told``.
    """
    words = [args.name.value, args.root if is_rooted else 0]
    for tensors in (args.input_tensors, args.output_tensors):
        words.append(len(tensors))
        for tensor in tensors if len(tensors) <= _MAX_TENSORS else (tensors[0], tensors[-1]):
            shape = [int(extent) for extent in tensor.shape]
            kind = told[len(words)] & ~0xFFFF if len(words) < len(told) else 0
            words += [kind | int(tensor.is_cpu) << 8 | len(shape), *shape]
    return tuple(words)
