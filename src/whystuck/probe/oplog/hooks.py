"""Recording by torch's own hooks of process groups, from torch 2.14 on.

Hooks are not told of tags and splits, and not called for a monitored barrier: for these ops the
kernels of `dispatcher` are used beside them. What hooks keep is recorded by `backlog`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref

from .. import progress
from ..breaker import HOOKS
from ..calling.interrupts import let_through
from ..calling.wanted import look
from .backlog import Backlog, HookedGroup
from .delayed_errors import HELD
from .log import has_devices
from .native import Native
from .sites import NOWHERE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .log import OpLog

    Hook = Callable[[Any], None]

LEFT_TO_DISPATCHER = (
    "alltoall_base_", "monitored_barrier_", "send", "recv_", "recv_any_source_",
)  # fmt: skip


def are_there() -> bool:
    """Tell whether this torch has hooks."""
    c10d = sys.modules["torch._C._distributed_c10d"]
    return hasattr(c10d, "HookOpName") and hasattr(c10d.ProcessGroup, "register_pre_hook")


class Hooks:
    """Our hooks, while they are on groups."""

    def __init__(self, log: OpLog, module: Any = None) -> None:
        """``module`` is the extension, None where it is not to be used."""
        self._log = log
        self._backlog = log.backlog = log.completion.backlog = Backlog(log)
        self.native = self._make_native(module)
        # A hook with the number of another one would silently take its place.
        self._id = int.from_bytes(os.urandom(7), "little")
        # Weak: a group that the job has destroyed must go.
        self._hooked: list[tuple[weakref.ref[Any], HookedGroup]] = []

    def install(self, groups: list[tuple[str, Any]]) -> None:
        """Hook groups, given with their names, that are not hooked yet."""
        self._backlog.flush()
        self._hooked = [one for one in self._hooked if one[0]() is not None]
        done = [hooked() for hooked, _ in self._hooked]
        for name, group in groups:
            if not any(group is one for one in done):
                left = HookedGroup(name, has_devices=_has_devices(group))
                self._backlog.groups.append(left)
                self._hooked.append((weakref.ref(group), left))
                self._put_on(group, left)
        kept = [left for _, left in self._hooked]
        self._backlog.groups = kept

    def exchange(self) -> str:
        """Put on the hooks that are needed now: others while ops are looked into."""
        for hooked, left in self._hooked:
            group = hooked()
            if group is not None and self.native is not None:
                self.native.look_into(left)
            elif group is not None:
                self._put_on(group, left)
        return ""

    def remove(self) -> None:
        """Take the hooks off, and record what they have left."""
        self.take_off()
        self._backlog.flush()
        self._backlog.groups = []
        self._hooked = []

    def name_recorder(self) -> str:
        """Return what the header of the op log calls what records here."""
        return "python" if self.native is None else self.native.name()

    def take_off(self) -> None:
        """Take the hooks off, and do no more."""
        for hooked, _ in self._hooked:
            group = hooked()
            if group is not None:
                group.unregister_pre_hook(self._id)
                group.unregister_post_hook(self._id)

    def _make_native(self, module: Any) -> Native | None:
        if module is None:
            return None
        try:
            made = Native(module, self._log, self._backlog)
        except Exception:  # not for this torch
            return None
        self._log.completion.native = made.writer
        return made

    def _put_on(self, group: Any, left: HookedGroup) -> None:
        plain, looking = _make_hooks(self._log, self._backlog, left)
        if self.native is not None:
            before, after = self.native.hook(left, plain, looking)
        else:
            before, after = plain if self._log.inspector is None else looking
        group.register_pre_hook(self._id, before)
        group.register_post_hook(self._id, after)


def _make_hooks(
    log: OpLog, backlog: Backlog, left: HookedGroup
) -> tuple[tuple[Hook, Hook], tuple[Hook, Hook]]:
    """Make the two hooks of a group, and those for the time that ops are looked into.

    They raise only what the user asked for.
    """
    before = _make_before(log, backlog, left)
    # Not a function of ours: that alone would take a tenth of a microsecond.
    after: Hook = left.returned.append
    looking = _look_into(log, backlog, left, before)
    if not left.has_devices:
        return (before, after), looking
    at_once = _make_at_once(backlog)
    return (at_once(before), at_once(after)), (looking[0], at_once(looking[1]))


def _make_at_once(backlog: Backlog) -> Callable[[Hook], Hook]:
    """Make what turns a hook into one that keeps nothing: it would hold memory of a device."""

    def at_once(keep: Hook) -> Hook:
        def hook(args: Any) -> None:
            keep(args)
            try:
                HOOKS.call(backlog.flush)
            except Exception as error:  # the op goes on without a record
                HELD.keep(error)
                return

        return hook

    return at_once


# All is in one function, and what it needs in its closure: this runs in the thread that trains.
def _make_before(log: OpLog, backlog: Backlog, left: HookedGroup) -> Hook:
    """Make what keeps that an op is about to be issued."""
    keep, completion, threads, sites = backlog.calls.extend, log.completion, log.threads, log.sites
    users, counts = sites.users, progress.COUNTS
    get_frame, now_ns, thread_id = sys._getframe, time.monotonic_ns, threading.get_ident
    wrapper = _find_wrapper()

    def before(args: Any) -> None:
        now = now_ns()
        try:
            frame: Any = get_frame(2)
            frame = frame.f_back if frame.f_code is wrapper else get_frame(1)
            code = frame.f_code
            thread = threads.get(thread_id()) or log.learn_thread()
            if id(code) not in users:
                keep((args, now, thread, counts.optimizer_steps, left, *sites.walk(frame)))
            elif (back := frame.f_back) is None:
                at = frame.f_lasti
                keep((args, now, thread, counts.optimizer_steps, left, code, at, None, 0, None))
            else:
                further = None if back.f_back is None else sites.go_on(back)
                keep((
                    args, now, thread, counts.optimizer_steps, left,
                    code, frame.f_lasti, back.f_code, back.f_lasti, further,
                ))  # fmt: skip
        except Exception as error:  # above all: there is no second frame
            keep((args, now, *_look_closer(log, left)))
            HELD.keep(error)
        if now > completion.due_ns:
            completion.hasten(now)

    return before


def _look_closer(log: OpLog, left: HookedGroup) -> tuple[Any, ...]:
    """Return the rest of what a hook keeps, where the quick way did not do."""
    thread, places = 0, NOWHERE
    try:
        thread = log.threads.get(threading.get_ident()) or log.learn_thread()
        places = log.sites.walk(sys._getframe(1).f_back)
    except Exception as error:  # better than no record
        let_through(error)
    return (thread, progress.COUNTS.optimizer_steps, left, *places)


def _look_into(log: OpLog, backlog: Backlog, left: HookedGroup, keep: Hook) -> tuple[Hook, Hook]:
    """Make the hooks of a group for the time that ops are looked into, which needs the record."""

    def before(args: Any) -> None:
        keep(args)
        number, name = 0, ""
        try:
            backlog.flush()
            issued = left.issued.get(args.op_id)
            if issued is not None:
                number, name = issued.number, backlog.ops[args.name.value]
        except Exception as error:  # the op is issued without a look into it
            let_through(error)
            return
        if number and log.inspector is not None:
            look(log, "before_hook", number, name, left.name, args)

    def after(args: Any) -> None:
        left.returned.append(args)
        issued = left.issued.get(args.op_id)
        if issued is not None and log.inspector is not None:
            look(log, "after_hook", issued.number, args.work)

    return before, after


def _has_devices(group: Any) -> bool:
    """Return whether a group may work on tensors that are not on the host."""
    world = sys.modules["torch.distributed.distributed_c10d"]._world
    return has_devices(str(world.pg_map.get(group, ("?",))[0]))


def _find_wrapper() -> Any:
    """Return the code that torch puts around its functions, None where it does not."""
    logger = sys.modules.get("torch.distributed.c10d_logger")
    wrap = getattr(logger, "_exception_logger", None)
    return None if wrap is None else wrap(_find_wrapper).__code__
