"""Recording by torch's own hooks of process groups, from torch 2.14 on.

Hooks are not told of tags and splits, and not called for a monitored barrier: for these ops the
kernels of `dispatcher` are used beside them.
"""

from __future__ import annotations

import os
import sys
import weakref

from ..wanted import look
from .completion import is_capturing
from .forms import describe_tensors, key_of_tensors, never_tells_end
from .log import OpLog
from .ring import ASYNC, HOST, NO_END

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Callable

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
LEFT_TO_DISPATCHER = (
    "alltoall_base_", "monitored_barrier_", "send", "recv_", "recv_any_source_",
)  # fmt: skip


def are_there() -> bool:
    """Tell whether this torch has hooks."""
    c10d = sys.modules["torch._C._distributed_c10d"]
    return hasattr(c10d, "HookOpName") and hasattr(c10d.ProcessGroup, "register_pre_hook")


_IN_PLACE = frozenset({"all_reduce", "all_reduce_coalesced", "broadcast", "reduce"})
_ROOTED = frozenset({"broadcast", "gather", "reduce", "scatter"})


class Hooks:
    """Our hooks, while they are on groups."""

    def __init__(self, log: OpLog) -> None:
        self._log = log
        # A hook with the number of another one would silently take its place.
        self._id = int.from_bytes(os.urandom(7), "little")
        # Weak: a group that the job has destroyed must go.
        self._hooked: list[weakref.ref[Any]] = []

    def install(self, groups: list[tuple[str, Any]]) -> None:
        """Hook groups, given with their names, that are not hooked yet."""
        self._hooked = [hooked for hooked in self._hooked if hooked() is not None]
        done = [hooked() for hooked in self._hooked]
        for name, group in groups:
            if any(group is one for one in done):
                continue
            before, after = _make_hooks(self._log, name)
            group.register_pre_hook(self._id, before)
            group.register_post_hook(self._id, after)
            self._hooked.append(weakref.ref(group))

    def remove(self) -> None:
        """Take the hooks off."""
        for hooked in self._hooked:
            group = hooked()
            if group is not None:
                group.unregister_pre_hook(self._id)
                group.unregister_post_hook(self._id)
        self._hooked = []


def _make_hooks(log: OpLog, name: str) -> tuple[Callable[[Any], None], Callable[[Any], None]]:
    """Make the two hooks of a group; they raise only what the user asked for."""
    names = sys.modules["torch._C._distributed_c10d"].HookOpName
    ops = {getattr(names, key): op for key, op in NAMES.items() if hasattr(names, key)}
    open_records: dict[int, tuple[int, bool]] = {}
    record = _make_record(log, name)

    def before(args: Any) -> None:
        try:
            op = ops.get(args.name)
            if op is None or not log.is_open:
                return
            number, flags = record(op, args, sys._getframe(1))
            open_records[args.op_id] = number, not flags & NO_END
        except Exception:  # the op is issued without a record
            return
        if log.inspector is not None:
            look(log, "before_hook", number, op, name, args)

    def after(args: Any) -> None:
        try:
            number, is_watched = open_records.pop(args.op_id, (0, False))
            if not number:
                return
            log.returned(number, args.work if is_watched else None)
        except Exception:  # as above
            return
        if log.inspector is not None:
            look(log, "after_hook", number, args.work)

    return before, after


def _make_record(log: OpLog, name: str) -> Callable[[str, Any, FrameType], tuple[int, int]]:
    """Make what records that an op of a group is about to be issued."""
    forms: dict[tuple[Any, ...], tuple[int, int]] = {}
    groups, find_site, put = log.groups, log.sites.find, log.put

    def record(op: str, args: Any, frame: FrameType) -> tuple[int, int]:
        inputs, outputs = args.input_tensors, args.output_tensors
        root = args.root if op in _ROOTED else None
        if len(inputs) == 1 and not outputs:
            one = inputs[0]
            key: tuple[Any, ...] = (op, root, one.shape, one.dtype, one.is_cpu)
        else:
            key = (op, root, *key_of_tensors(inputs), None, *key_of_tensors(outputs))
        found = forms.get(key)
        if found is None:
            value = describe_hooked(op, inputs, outputs, root)
            found = forms[key] = log.learn_form(key, value), _choose_flags(op, inputs)
        form, flags = found
        if args.async_op:
            flags |= ASYNC
        if not flags & HOST and is_capturing():
            flags |= NO_END
        group = groups.get(name) or log.learn_group(name)
        return put(group, form, find_site(frame), flags), flags

    return record


def _choose_flags(op: str, inputs: list[Any]) -> int:
    """Return the flags that all ops of a form have."""
    if not inputs or not inputs[0].is_cpu:
        return 0
    return HOST | (NO_END if never_tells_end(op) else 0)


def describe_hooked(
    op: str, inputs: list[Any], outputs: list[Any], root: int | None
) -> dict[str, Any]:
    """Describe a form; ops that work in place give their tensors as inputs only."""
    results = inputs if op in _IN_PLACE and not outputs else outputs
    more = {} if root is None else {"root": int(root)}
    return describe_tensors(op, inputs, results, more)
