"""The op log of this process: numbers for groups, forms, sites and threads, and records of ops."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time

from .. import progress
from .completion import Completion
from .forms import list_runs, without_sizes
from .ring import (
    DONE,
    FORM,
    GROUP,
    HOST,
    ISSUE_FAILED,
    NO_END,
    NOTE,
    P2P,
    PUT_RECORD,
    PUT_TIME,
    RETURNED,
    SPARE_BYTES,
    THREAD,
    Ring,
)
from .sites import Sites

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .backlog import Backlog

_MAX_FORMS = 16384
_MAX_UNSIZED = 1024
# Members of a larger group are told as runs: 2,900 ranks, one by one, are more than a value holds.
_MAX_LISTED = 512
_MAX_THREADS = 65535
# The last two are torch's own for tests, which have no device.
_HOST_BACKENDS = frozenset({"", "gloo", "mpi", "undefined", "fake"})
# Which network interface ranks talk over, where that is chosen.
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_now_ns = time.monotonic_ns
_thread_id = threading.get_ident


class Group:
    """A process group: its number in the log, and counters of its ops since recording began."""

    __slots__ = ("collectives", "has_devices", "number", "p2p")

    def __init__(
        self,
        number: int,
        make_counter: Callable[[int], Any] = itertools.count,
        *,
        has_devices: bool = False,
    ) -> None:
        self.number = number
        # Whether ops without tensors may be ops of a device.
        self.has_devices = has_devices
        self.collectives = make_counter(1)
        self.p2p = make_counter(1)


class OpLog:
    """Records ops into a ring; every method may be called by any thread of the job."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.completion = Completion(ring)
        self.generation = 0
        # What looks at the tensors of each op, None while nobody asked for that.
        self.inspector: Any = None
        # Called when there is another inspector, or none; hooks are others then.
        self.on_inspector: Callable[[], None] | None = None
        # What is not on record yet, where hooks are used.
        self.backlog: Backlog | None = None
        self.groups: dict[str, Group] = {}
        self._forms: dict[tuple[Any, ...], int] = {}
        # Those of ops whose sizes did not fit, by what is told of them.
        self._unsized: dict[tuple[Any, ...], int] = {}
        self.sites = Sites(ring)
        self.threads: dict[int, int] = {}
        # Of these, ops were issued before anybody counted.
        self._old_names: set[str] = set()
        self._seen: dict[int, str] = {}
        # False in a forked child, which shares the file with us.
        self.is_open = True

    def start(self, generation: int) -> None:
        """Begin to record; ops of groups are counted anew."""
        self.generation = generation
        self.groups.clear()
        self._seen = _name_groups()
        self._old_names = set(self._seen.values())
        self._note("on")
        self.ring.set_state(generation, is_on=True)
        self.completion.start()

    def stop(self, generation: int) -> None:
        """Record nothing from now on."""
        self.flush()
        self.generation = generation
        self._note("off")
        self.ring.set_state(generation, is_on=False)

    def flush(self) -> None:
        """Have all ops on record that were issued."""
        if self.backlog is not None:
            self.backlog.flush()

    def inspect(self, inspector: Any) -> None:
        """Have the tensors of each op looked at from now on, or no longer."""
        self.inspector = inspector
        if self.on_inspector is not None:
            self.on_inspector()

    def groups_changed(self) -> None:
        """Look at groups again: a new one may have the name of one that is gone."""
        self.flush()
        now = _name_groups()
        for identity, name in now.items():
            if self._seen.get(identity) != name:
                self.groups.pop(name, None)
                self._old_names.discard(name)
        for name in set(self._seen.values()).difference(now.values()):
            # A job may make groups, and destroy them, as long as it runs.
            self.groups.pop(name, None)
            self._old_names.discard(name)
        self._seen = now

    def put(
        self, group: Group, form: int, site: int, flags: int, moment: tuple[int, int, int]
    ) -> int:
        """Write the record of an op, and return its number.

        ``moment`` is the number of the thread that was about to issue it, when that was, and the
        optimizer steps made before.
        """
        thread, time_ns, step = moment
        ring = self.ring
        number: int = next(ring.numbers)
        PUT_RECORD(
            ring.map, ring.place(number),
            number, time_ns, 0, 0, 0, 0, next(group.p2p if flags & P2P else group.collectives),
            form, site, group.number, thread, flags, step, 0, number,
        )  # fmt: skip
        return number

    def returned(self, number: int, time_ns: int, work: Any, flags: int = HOST) -> None:
        """Record that an op was issued, and watch its handle where there is one.

        ``flags`` are those of its record: nobody looks again at an op on a device.
        """
        PUT_TIME(self.ring.map, self.ring.place(number) + RETURNED, time_ns)
        if not self.completion.has_ended and flags & (HOST | NO_END) != NO_END:
            self.completion.new.append((number, work, False))

    def is_over(self, number: int) -> None:
        """Record that an op was over when the call that issued it came back."""
        PUT_TIME(self.ring.map, self.ring.place(number) + DONE, _now_ns())

    def fail(self, number: int, time_ns: int) -> None:
        """Record that issuing an op has raised."""
        PUT_TIME(self.ring.map, self.ring.place(number) + RETURNED, time_ns)
        self.ring.add_flag(number, ISSUE_FAILED)

    def learn_group(self, name: str) -> Group:
        """Give a group a number."""
        value: dict[str, Any] = {
            "name": name,
            "desc": "",
            "ranks": [],
            "backend": "",
            "base": -1 if name in self._old_names else 0,
            "generation": self.generation,
            "step": progress.COUNTS.optimizer_steps,
        }
        world = sys.modules["torch.distributed.distributed_c10d"]._world
        for group, other in list(world.pg_names.items()):
            if other == name:
                ranks = world.pg_group_ranks.get(group, {})
                members = sorted(ranks, key=lambda rank: int(ranks[rank]))
                is_large = len(members) > _MAX_LISTED
                value |= {"runs": list_runs(members)} if is_large else {"ranks": members}
                value["desc"] = str(getattr(group, "group_desc", ""))
                value["backend"] = str(world.pg_map.get(group, ("",))[0])
        made = self.groups[name] = Group(
            self.ring.add(GROUP, value),
            self.ring.make_counter,
            has_devices=has_devices(value["backend"]),
        )
        return made

    def learn_form(self, key: tuple[Any, ...], value: dict[str, Any]) -> int:
        """Give a form a number; without its sizes when there are too many, 0 when it has none."""
        number = self._forms.get(key)
        has_room = len(self._forms) < _MAX_FORMS and self.ring.has_room(SPARE_BYTES)
        if number is None and has_room:
            number = self.ring.add(FORM, value, spare_bytes=SPARE_BYTES)
            if number:
                self._forms[key] = number
        return number or self._learn_unsized(without_sizes(value))

    def _learn_unsized(self, value: dict[str, Any]) -> int:
        key = tuple(value.items())
        number = self._unsized.get(key)
        if number is None and len(self._unsized) < _MAX_UNSIZED:
            number = self._unsized[key] = self.ring.add(FORM, value)
        return number or 0

    def learn_thread(self) -> int:
        """Give the thread that calls a number."""
        value = {"name": _name_thread(), "id": threading.get_native_id()}
        number = self.threads[_thread_id()] = min(self.ring.add(THREAD, value), _MAX_THREADS)
        return number

    def _note(self, what: str) -> None:
        self.ring.add(
            NOTE,
            {
                "what": what,
                "step": progress.COUNTS.optimizer_steps,
                "generation": self.generation,
                "time_ns": _now_ns(),
            },
        )


def has_devices(backend: str) -> bool:
    """Return whether groups of a backend, e.g. ``cpu:gloo,cuda:nccl``, may work on devices."""
    names = [part.rpartition(":")[2] for part in backend.split(",")]
    return any(name not in _HOST_BACKENDS for name in names)


def _name_thread() -> str:
    """Return the name of the thread that calls.

    ``threading.current_thread`` would list a thread of C++ among those of Python, for good.
    """
    known = threading._active.get(_thread_id())  # type: ignore[attr-defined]
    if known is not None:
        return str(known.name)
    try:
        path = f"/proc/self/task/{threading.get_native_id()}/comm"
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _name_groups() -> dict[int, str]:
    world = sys.modules["torch.distributed.distributed_c10d"]._world
    return {id(group): str(name) for group, name in list(world.pg_names.items())}


def about(rank: int, world_size: int, method: str, recorder: str) -> dict[str, Any]:
    """Describe this process for the header of the ring."""
    torch = sys.modules["torch"]
    return {
        "rank": rank,
        "world_size": world_size,
        "host": os.uname().nodename,
        "network": _name_network(),
        "interface": next(filter(None, map(os.environ.get, _INTERFACES)), ""),
        "pid": os.getpid(),
        "python": sys.version.split()[0],
        "torch": str(torch.__version__),
        "method": method,
        "recorder": recorder,
    }


def _name_network() -> str:
    """Return the network namespace: ranks of one have no link between them."""
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:
        return ""
