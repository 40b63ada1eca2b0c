"""Turning the op log on and off: the ring is made once, and hooks or kernels come and go."""

from __future__ import annotations

import itertools
import os
import sys

from .. import files, progress
from ..threads import is_main
from . import hooks, native
from .dispatcher import Dispatcher, can_install
from .hooks import Hooks
from .log import OpLog, about
from .main_thread import run_in_main_thread
from .ring import DEFAULT_CAPACITY, Ring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..identity import Identity

BUFFER_ENV = "WHYSTUCK_OPS_BUFFER"
FILE_KIND = "ops"


class Recorder:
    """The op log of this process, on or off; every call comes from a thread that holds no lock."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._owner = os.getpid()
        self.log: OpLog | None = None
        self._hooks: Hooks | None = None
        self._dispatcher: Dispatcher | None = None
        # The extension, where it is there.
        self._native: Any = None
        self.is_on = False
        self._has_fork_guard = False

    def switch(self, generation: int, *, on: bool) -> str:
        """Turn recording on or off; return one sentence when that cannot be done, else nothing."""
        if on == self.is_on or os.getpid() != self._owner:
            return ""
        if is_main() or not _list_groups():
            return self._switch(generation, on=on)
        return run_in_main_thread(lambda: self._switch(generation, on=on))

    def _switch(self, generation: int, *, on: bool) -> str:
        if not on:
            self._stop(generation)
            return ""
        if not can_install():
            return "this torch does not let others stand between a call and its kernel"
        if self.log is None:
            self._native = native.load() if hooks.are_there() else None
            counter = itertools.count if self._native is None else self._native.Counter
            self.log = OpLog(Ring(files.path_of(FILE_KIND), _read_capacity(), counter))
            self.log.on_inspector = self._exchange_hooks
            self._describe()
            self._guard_forks()
        self.is_on = True
        self.log.start(generation)
        self._watch()
        return ""

    def groups_changed(self) -> None:
        """Watch groups that are new; from the first one on, the rank is known for sure."""
        if self.log is None or os.getpid() != self._owner:
            return
        self._describe()
        if not self.is_on:
            return
        self.log.groups_changed()
        self._watch()

    def beat(self) -> None:
        """Note the clocks; called once a second by the probe's thread."""
        if self.log is not None and os.getpid() == self._owner:
            self.log.flush()
            self.log.ring.beat(progress.COUNTS.optimizer_steps)
            progress.COUNTS.recorded = self.log.ring.count_records() if self.is_on else -1

    def close(self) -> None:
        """End the thread that looks at pending ops; the process is on its way out."""
        if self.log is not None and os.getpid() == self._owner:
            self.log.completion.stop()

    def _stop(self, generation: int) -> None:
        self.is_on = False
        if self._hooks is not None:
            self._hooks.remove()
        if self._dispatcher is not None:
            self._dispatcher.remove()
        if self.log is not None:
            self.log.stop(generation)

    def _watch(self) -> None:
        """Put hooks on all groups, and kernels in place for what hooks do not tell."""
        assert self.log is not None  # noqa: S101 - the caller has made it
        if hooks.are_there():
            self._hooks = self._hooks or self._make_hooks(self.log)
            self._hooks.install(_list_groups())
            names = hooks.LEFT_TO_DISPATCHER
            self._dispatcher = self._dispatcher or Dispatcher(self.log, names)
        self._dispatcher = self._dispatcher or Dispatcher(self.log)
        self._dispatcher.install()

    def _make_hooks(self, log: OpLog) -> Hooks:
        made = self._hooks = Hooks(log, self._native)
        if made.native is not None:
            made.native.on_reason = self._describe
        self._describe()
        return made

    def _exchange_hooks(self) -> None:
        hooks = self._hooks
        if hooks is None or not self.is_on:
            return
        if is_main():
            hooks.exchange()
        else:
            run_in_main_thread(hooks.exchange)

    def _describe(self) -> None:
        assert self.log is not None  # noqa: S101 - as above
        method = "hooks" if hooks.are_there() else "dispatcher"
        one = self._identity
        recorder = "python" if self._hooks is None else self._hooks.name_recorder()
        self.log.ring.describe(about(one.rank, one.world_size, method, recorder))

    def _guard_forks(self) -> None:
        """Record nothing in a forked child, which shares the mapped file with us.

        Taking out the kernels there could wait for a lock that no thread of the child will free;
        what hooks would keep, nobody would take from them.
        """
        if not self._has_fork_guard:
            self._has_fork_guard = True
            os.register_at_fork(after_in_child=self._leave_child)

    def _leave_child(self) -> None:
        if self.log is not None:
            self.log.is_open = False
            try:
                if self._hooks is not None:
                    self._hooks.take_off()
            except Exception:  # it would be printed
                return


def _list_groups() -> list[tuple[str, Any]]:
    world = sys.modules["torch.distributed.distributed_c10d"]._world
    return [(str(name), group) for group, name in list(world.pg_names.items())]


def _read_capacity() -> int:
    try:
        return int(os.environ[BUFFER_ENV])
    except (KeyError, ValueError):
        return DEFAULT_CAPACITY
