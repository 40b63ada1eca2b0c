"""What hooks leave behind: calls of ops that are not on record yet.

Torch calls a hook in the thread that trains, so a hook only keeps what it was given. All that takes
longer is done here: by the op log's thread a few milliseconds later, or by a thread that needs the
records at once.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque

from ..breaker import HOOKS
from ..calling.interrupts import let_through
from ..mapped_log import LOOKED
from .forms import KnownForms, choose_flags, describe_tensors, key_of_tensors
from .ring import ASYNC, NO_END, PUT_TIME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

    from .log import OpLog
    from .sites import Places

# The hook's name of an op, and that of the op log; others are left to the dispatcher.
NAMES = {
    "ALLGATHER": "all_gather",
    "ALLGATHER_BASE": "all_gather_base",
    "ALLGATHER_COALESCED": "all_gather_coalesced",
    "ALLGATHER_INTO_TENSOR_COALESCED": "all_gather_base_coalesced",
    "ALLREDUCE": "all_reduce",
    "ALLREDUCE_COALESCED": "all_reduce_coalesced",
    "ALLTOALL": "all_to_all",
    "BARRIER": "barrier",
    "BROADCAST": "broadcast",
    "GATHER": "gather",
    "REDUCE": "reduce",
    "REDUCE_SCATTER": "reduce_scatter",
    "REDUCE_SCATTER_BASE": "reduce_scatter_base",
    "REDUCE_SCATTER_TENSOR_COALESCED": "reduce_scatter_base_coalesced",
    "SCATTER": "scatter",
}
# What is kept of a call: what the hook was given, when, the number of its thread, the optimizer
# steps made before, the group, and five places.
_FIELDS = 10
# What the two hooks of an op cost where it was measured, see docs/op-log.md.
_HOOK_NS = 2000
_WAIT_S = 1.0
# A call that is inside for so long may have raised.
_LONG_NS = 50_000_000
_JUDGE_EVERY_NS = 200_000_000
_IN_PLACE = frozenset({"all_reduce", "all_reduce_coalesced", "broadcast", "reduce"})
_ROOTED = frozenset({"broadcast", "gather", "reduce", "scatter"})
_now_ns = time.monotonic_ns


class Issued:
    """An op whose call has not come back, as far as we know."""

    __slots__ = (
        "flags", "group", "is_passed", "issued_ns", "number", "places", "thread", "until_ns",
    )  # fmt: skip

    def __init__(self, number: int, group: HookedGroup, places: Places) -> None:
        self.number = number
        self.group = group
        self.places = places
        self.flags = 0
        self.thread = 0
        self.issued_ns = 0
        # When its thread issued the next op, 0 before that, and whether that was of this group.
        self.until_ns = 0
        self.is_passed = False


class HookedGroup:
    """A group with hooks, and what these have left."""

    def __init__(self, name: str, *, has_devices: bool = False) -> None:
        self.name = name
        self.has_devices = has_devices
        # What hooks were given after ops.
        self.returned: deque[Any] = deque()
        self.issued: dict[int, Issued] = {}
        self.forms = KnownForms()
        # The hooks of the extension, where it is there: only what it cannot tell comes to us.
        self.native: Any = None


class Backlog:
    """Calls of the hooks of all groups; :meth:`flush` records them in their order."""

    def __init__(self, log: OpLog) -> None:
        self._log = log
        names = sys.modules["torch._C._distributed_c10d"].HookOpName
        # By the numbers that torch has for them: to look up its names takes a microsecond.
        self.ops = {
            int(getattr(names, key).value): op for key, op in NAMES.items() if hasattr(names, key)
        }
        self.rooted = {code for code, op in self.ops.items() if op in _ROOTED}
        # Whether ops are recorded at looks only; the extension records each as it is issued.
        self.tells_looks = True
        # The fields of calls, one after the other: an object for each would be one more to make,
        # and one for the garbage collector to look at.
        self.calls: list[Any] = []
        self.groups: list[HookedGroup] = []
        # A signal handler of the job may issue an op in the thread that has it.
        self._lock = threading.RLock()
        self._is_busy = self._is_stuck = False
        self._newest = 0
        self._last_of: dict[int, Issued] = {}
        self._last_judged_ns = 0

    def flush(self, *, is_last: bool = False) -> None:
        """Record all calls that were made before this one; ``is_last`` if no more are to come."""
        if not self._lock.acquire(timeout=0 if self._is_stuck else _WAIT_S):
            # Whoever has it does not come on: the job goes on without the records, and must not
            # keep the tensors of all ops for them.
            self._is_stuck = True
            self.calls.clear()
            for group in self.groups:
                group.returned.clear()
            return
        self._is_stuck = False
        if self._is_busy:
            self._lock.release()
            return
        self._is_busy = True
        try:
            self._flush(_now_ns(), is_last=is_last)
        finally:
            self._is_busy = False
            self._lock.release()

    def oldest_ns(self) -> int:
        """Return since when there has been something to do or to wait for, 0 when there is none."""
        for group in self.groups:
            for issued in list(group.issued.values())[:1]:
                return issued.issued_ns
            if group.native is not None and (found := group.native.list_open(_now_ns())):
                return min(int(one[-1]) for one in found)
        return _now_ns() if self.calls else 0

    def _flush(self, look_ns: int, *, is_last: bool) -> None:
        # A call is there before it comes back: what has by now is among the calls.
        counts = [(group, len(group.returned)) for group in self.groups]
        self._record_all()
        returned = []
        for group, count in counts:
            for _ in range(count):
                args = group.returned.popleft()
                issued = group.issued.pop(args.op_id, None)
                if issued is not None:
                    returned.append((issued.number, issued, args))
        if len(counts) > 1:
            returned.sort(key=lambda one: one[0])
        for number, issued, args in returned:
            # Within one look, a small ring may come round.
            if self._newest - number >= self._log.ring.capacity:
                continue
            work = None if issued.flags & NO_END else args.work
            self._log.returned(number, issued.until_ns or look_ns, work, issued.flags)
            if args.work is None:
                self._log.ring.add_flag(number, NO_END)
        if is_last or look_ns - self._last_judged_ns > _JUDGE_EVERY_NS:
            self._last_judged_ns = look_ns
            self._find_failed(look_ns, 0 if is_last else _LONG_NS)
        if self.tells_looks:
            PUT_TIME(self._log.ring.map, LOOKED, look_ns)

    def _record_all(self) -> None:
        count = len(self.calls)
        calls = self.calls[:count]
        del self.calls[:count]
        HOOKS.count(count // _FIELDS, _HOOK_NS)
        for at in range(0, count, _FIELDS):
            try:
                self._record(*calls[at : at + _FIELDS])
            except Exception as error:  # the op stays without a record
                let_through(error)

    def _record(
        self,
        args: Any,
        time_ns: int,
        thread: int,
        step: int,
        group: HookedGroup,
        *places: Any,
    ) -> None:
        found = self.find_form(args, group)
        if found is None:
            return
        form, flags = found
        if args.async_op:
            flags |= ASYNC
        log = self._log
        named = log.groups.get(group.name) or log.learn_group(group.name)
        site = log.sites.number(places)
        number = log.put(named, form, site, flags, (thread, time_ns, step))
        before = self._last_of.get(thread)
        if before is not None and not before.until_ns:
            before.until_ns, before.is_passed = time_ns, before.group is group
        issued = Issued(number, group, places)
        issued.flags, issued.thread, issued.issued_ns = flags, thread, time_ns
        self._newest = number
        self._last_of[thread] = group.issued[args.op_id] = issued

    def find_form(self, args: Any, group: HookedGroup) -> tuple[int, int] | None:
        """Return the number of a form, and the flags that all its ops have."""
        code = args.name.value
        root = args.root if code in self.rooted else None
        inputs, outputs = args.input_tensors, args.output_tensors
        if len(inputs) == 1 and not outputs:
            one = inputs[0]
            key: tuple[Any, ...] = (code, root, one.shape, one.dtype, one.is_cpu)
        else:
            key = (code, root, *key_of_tensors(inputs), None, *key_of_tensors(outputs))
        found = group.forms.get(key)
        if found is None and (op := self.ops.get(code)) is not None:
            value = describe_hooked(op, inputs, outputs, root)
            number = self._log.learn_form(key, value)
            found = group.forms.keep(key, (number, _choose_flags(op, inputs, group)))
        return found

    def _find_failed(self, look_ns: int, long_ns: int) -> None:
        """Tell the ops whose calls have raised: torch calls no hook after these."""
        for group in self.groups:
            for op_id, issued in list(group.issued.items()):
                if look_ns - issued.issued_ns < long_ns:
                    continue
                is_out = issued.is_passed or self._is_out(issued.thread, *issued.places[:2])
                # Whatever has come back before we looked is in the list by now.
                if is_out and not group.returned:
                    del group.issued[op_id]
                    self._log.fail(issued.number, issued.until_ns or look_ns)
            if group.native is not None:
                open_ops = group.native.list_open(look_ns - long_ns)
                for op_id, code, at, thread, is_passed, _ in open_ops:
                    if is_passed or self._is_out(thread, code, at):
                        group.native.fail(op_id, look_ns)

    def _is_out(self, thread: int, code: CodeType | None, at: int) -> bool:
        """Tell whether a thread is not where it issued an op."""
        if code is None:
            return False
        idents = [ident for ident, number in self._log.threads.items() if number == thread]
        if len(idents) != 1:
            return False
        frame = sys._current_frames().get(idents[0])
        while frame is not None:
            if frame.f_code is code and frame.f_lasti == at:
                return False
            frame = frame.f_back
        return True


def _choose_flags(op: str, inputs: list[Any], group: HookedGroup) -> int:
    """Return the flags that all ops of a form have in a group."""
    if not inputs:
        return NO_END if group.has_devices else 0
    return choose_flags(op, is_on_host=inputs[0].is_cpu)


def describe_hooked(
    op: str, inputs: list[Any], outputs: list[Any], root: int | None
) -> dict[str, Any]:
    """Describe a form; ops that work in place give their tensors as inputs only."""
    results = inputs if op in _IN_PLACE and not outputs else outputs
    more = {} if root is None else {"root": int(root)}
    return describe_tensors(op, inputs, results, more)
