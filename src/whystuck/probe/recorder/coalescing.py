"""Collectives that torch never issues, because a coalescing manager before them has failed.

torch keeps the ops of a ``_coalescing_manager`` in a list, in ``_world.pg_coalesce_state`` under
the group, and issues them when its ``with`` block ends. An error on the way, such as that of a
backend which cannot coalesce, leaves the list there. From then on ``all_reduce``,
``all_gather_single`` and ``reduce_scatter_single`` of that group only add to it, and return as if
they had been issued.

The dict is replaced by one whose lists know the managers that they were made for. An op that comes
when the generator of each of them has ended is lost, and is noted with its call site. torch's own
code runs as before: the dict and the lists only add notes to what ``dict`` and ``list`` do.

Where torch keeps no such dict, or somebody else has replaced it, nothing is noted.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from typing import Any

from .. import files, progress
from ..calling.interrupts import let_through
from . import peers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, GeneratorType
    from typing import Callable

_STATE = "_pg_coalesce_state"
_MANAGER = "_coalescing_manager"
_MAX_DEPTH = 64
_MAX_SITES = 64
_MAX_FAILURES = 32


class _Calls:
    """The calls of one line that were lost; times are of the wall clock."""

    def __init__(self, op: str, site: list[tuple[str, str, int]]) -> None:
        self.op = op
        self.site = site
        self.count = 0
        self.first_ns = time.time_ns()
        self.first_step = progress.COUNTS.optimizer_steps
        self.last_ns = self.first_ns
        self.last_step = self.first_step

    def add(self) -> None:
        """Count one more."""
        self.count += 1
        self.last_ns = time.time_ns()
        self.last_step = progress.COUNTS.optimizer_steps

    def describe(self) -> dict[str, object]:
        """Return it as plain values."""
        return {
            "op": self.op,
            "count": self.count,
            "first_ns": self.first_ns,
            "last_ns": self.last_ns,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "site": peers.name_frames(self.site),
        }


class _Failure:
    """A manager that failed, and what was lost after it."""

    def __init__(self, group: str, members: list[int], site: list[tuple[str, str, int]]) -> None:
        self.group = group
        self.members = members
        self.site = site
        self.count = 0
        self.calls: dict[tuple[object, ...], _Calls] = {}

    def add(self, op: str, site: list[tuple[str, str, int]]) -> None:
        """Note one lost call; of lines beyond the first ones only the number is kept."""
        self.count += 1
        key = (op, *site)
        calls = self.calls.get(key)
        if calls is None:
            if len(self.calls) >= _MAX_SITES:
                return
            calls = self.calls[key] = _Calls(op, site)
        calls.add()

    def describe(self) -> dict[str, object]:
        """Return it as plain values; the first call that was lost comes first."""
        return {
            "group": self.group,
            "members": self.members,
            "count": self.count,
            "site": peers.name_frames(self.site),
            "calls": [calls.describe() for calls in list(self.calls.values())],
        }


_FAILURES: list[_Failure] = []


class _Ops(list):  # type: ignore[type-arg] # of whatever torch puts there
    """The ops of one group that wait for the end of a ``with`` block."""

    def __init__(self, group: object) -> None:
        super().__init__()
        self._group = weakref.ref(group)
        self._managers: list[weakref.ref[GeneratorType[Any, Any, Any]]] = []
        self._is_known = True
        self._site: list[tuple[str, str, int]] = []
        self._failure: _Failure | None = None

    def open(self, frame: FrameType) -> None:
        """Note the manager whose generator runs in ``frame``."""
        manager = _find_generator(frame)
        if manager is None:
            # Whoever uses the list in a way of his own may issue what is in it.
            self._is_known = False
            return
        self._managers = [known for known in self._managers if _is_open(known)]
        if not self._managers and not self:
            # What failed before, if anything, did no harm: this one takes the list over.
            self._site = _find_site(_leave_contextlib(frame))
        self._managers.append(weakref.ref(manager))

    def is_over(self) -> bool:
        """Tell whether there were managers, and the generator of each of them has ended."""
        is_open = any(_is_open(known) for known in self._managers)
        return self._is_known and bool(self._managers) and not is_open

    def append(self, op: Any) -> None:
        """Add an op, as ``list`` does."""
        super().append(op)
        try:
            if self.is_over():
                self._note(op, sys._getframe(1))
        except Exception as error:  # the call returns as it would without us
            let_through(error)
            return

    def _note(self, op: Any, frame: FrameType) -> None:
        if self._failure is None:
            if len(_FAILURES) >= _MAX_FAILURES:
                return
            self._failure = _Failure(*_describe_group(self._group()), self._site)
            _FAILURES.append(self._failure)
        name = getattr(getattr(op, "op", None), "__name__", frame.f_code.co_name)
        self._failure.add(str(name), _find_site(frame))


class _State(dict):  # type: ignore[type-arg] # of groups and lists
    """What torch reads and writes as ``_world.pg_coalesce_state``."""

    # torch's own function, set by `watch`: the compiler, which reads this code, knows it.
    is_compiling: Callable[[], bool]

    def setdefault(self, group: Any, default: Any = None) -> Any:
        """Do what ``dict`` does, with a list that takes notes in place of an empty one."""
        if self.is_compiling():
            # In a graph nothing is added to the list, and notes would break the graph.
            return super().setdefault(group, default)
        try:
            if type(default) is list and not default and group not in self:
                default = _Ops(group)
        except Exception as error:  # the list that torch gave does as well
            let_through(error)
        ops = super().setdefault(group, default)
        try:
            if type(ops) is _Ops:
                ops.open(sys._getframe(1))
        except Exception as error:  # as above
            let_through(error)
        return ops


def watch() -> None:
    """Put our dict in the place of torch's; leave it where it is not what we know."""
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    world = c10d._world
    state = vars(world).get(_STATE)
    if type(state) is dict and not state and hasattr(c10d, _MANAGER):
        _State.is_compiling = staticmethod(sys.modules["torch"].compiler.is_compiling)
        setattr(world, _STATE, _State())


class Writer:
    """Writes ``skipped-PID``, at a beat and at the end, which may come at once."""

    def __init__(self) -> None:
        self._written = 0
        # A signal handler that calls `os._exit` may come in the thread that has it.
        self._lock = threading.RLock()

    def write_if_changed(self) -> None:
        """Write all that is known, when more calls were lost since the last time."""
        with self._lock:
            failures = list(_FAILURES)
            count = sum(failure.count for failure in failures)
            if count == self._written:
                return
            found = [failure.describe() for failure in failures]
            files.write_json(files.path_of("skipped"), {"pid": os.getpid(), "failures": found})
            self._written = count


WRITER = Writer()


def _find_generator(frame: FrameType) -> GeneratorType[Any, Any, Any] | None:
    """Find the generator of a manager, which ``contextlib`` holds; None when it is not one."""
    if frame.f_code.co_name != _MANAGER:
        return None
    found = getattr(frame, "f_generator", None)  # since Python 3.14
    if found is None and frame.f_back is not None:
        found = getattr(frame.f_back.f_locals.get("self"), "gen", None)
    return found if found is not None and found.gi_frame is frame else None


def _is_open(known: weakref.ref[GeneratorType[Any, Any, Any]]) -> bool:
    """Tell whether the generator of a manager has not ended."""
    manager = known()
    return manager is not None and manager.gi_frame is not None


def _leave_contextlib(frame: FrameType) -> FrameType | None:
    """Return the frame that has the ``with`` statement of a manager."""
    library = sys.modules["contextlib"].__file__
    caller = frame.f_back
    while caller is not None and caller.f_code.co_filename == library:
        caller = caller.f_back
    return caller


def _find_site(frame: FrameType | None) -> list[tuple[str, str, int]]:
    return peers.find_site(frame, _MAX_DEPTH)


def _describe_group(group: object) -> tuple[str, list[int]]:
    world: Any = sys.modules["torch.distributed.distributed_c10d"]._world
    name = str(world.pg_names.get(group, ""))
    return name, sorted(int(rank) for rank in world.pg_group_ranks.get(group, ()))
