"""Recording by kernels of the dispatcher: all that issues an op of c10d comes by.

The kernels stand at the key BackendSelect, which is on for every call, and right above the keys of
the devices: they record, and pass the call on. This sees what Python wrappers do not: DDP's
reducer, functional collectives, compiled code. To take the place of the kernels of the devices
themselves would be faster, but torch calls those with the GIL held when Python passes a call on.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from itertools import count, starmap

from .. import progress
from ..breaker import EVERY, HOOKS
from ..calling.unseen import leave_out
from ..calling.wanted import look
from .delayed_errors import HELD, begin_unchecked
from .forms import (
    SPECS,
    KnownForms,
    OpSpec,
    choose_flags,
    describe,
    find_tensor,
    make_key,
)
from .log import OpLog
from .ring import ASYNC, HOST, NO_END, P2P, PUT_RECORD, PUT_TIME, RECORD_BYTES, RETURNED
from .uncompiled import leave_uncompiled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Callable

_KEY = "BackendSelect"
_BLOCKING = ("send", "recv")
_C10D_FILE = "distributed_c10d.py"
# What stands between such a call and the op: isend, and the counting of ops by `progress`.
_MAX_WRAPPERS = 4
# The number of a form whose ops are not real: those of a compiler that traces.
_TRACED = -1
_get_frame = sys._getframe
_thread_id = threading.get_ident
_now_ns = time.monotonic_ns


def can_install() -> bool:
    """Tell whether this torch has what is needed to stand in between."""
    torch: Any = sys.modules["torch"]
    try:
        # All that a kernel will need: once in place, it must not fail.
        after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        keys = torch._C._dispatch_keys(torch.empty(0))
        tools = (
            torch.ops.c10d.allreduce_.default._handle.redispatch_boxed,
            _find_class("ProcessGroup").unbox,
            _find_class("Work").unbox,
        )
        leave_uncompiled(_find_caller)
        return bool(keys.raw_repr()) and (keys & after) is not None and all(tools)
    except (AttributeError, RuntimeError, TypeError):
        return False


class Dispatcher:
    """Our kernels, while they are in place."""

    def __init__(self, log: OpLog, names: tuple[str, ...] = tuple(SPECS)) -> None:
        self._log = log
        self._names = names
        self._library: Any = None
        # A thread may be on its way out of a kernel that was taken out: the last ones are kept.
        self._old: deque[list[Any]] = deque(maxlen=2)
        self._kernels: list[Any] = []

    def install(self) -> None:
        """Put the kernels in place."""
        if self._library is not None:
            return
        torch: Any = sys.modules["torch"]
        self._library = torch.library.Library("c10d", "IMPL")
        for name in self._names:
            packet = getattr(torch.ops.c10d, name, None)
            if packet is not None:
                kernel = _make_kernel(packet.default, SPECS[name], self._log)
                self._library.impl(name, kernel, _KEY, with_keyset=True)
                self._kernels.append(kernel)

    def remove(self) -> None:
        """Take the kernels out."""
        if self._library is None:
            return
        self._old.append(self._kernels)
        self._kernels = []
        self._library._destroy()
        self._library = None


def _make_kernel(op: Any, spec: OpSpec, log: OpLog) -> Callable[..., Any]:
    """Make the kernel of one op; it passes the call on exactly once, whatever becomes of us."""
    names = [item.name for item in op._schema.arguments]
    # Before 2.8 an op does not tell whether its caller waits: the flag is far behind the last.
    async_at = names.index("async_op") if "async_op" in names else len(names)
    begin = _make_begin(spec, names.index("process_group"), async_at, log)
    return _stand_between(op._handle.redispatch_boxed, begin, spec, log)


def _stand_between(
    pass_on: Any, begin: Callable[..., tuple[int, int]], spec: OpSpec, log: OpLog
) -> Callable[..., Any]:
    """Make the kernel; ``pass_on`` calls the next one, and ``begin`` records the op."""
    end, fail, unbox = _make_end(spec, log), _make_fail(log), _find_class("Work").unbox
    torch: Any = sys.modules["torch"]
    after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    # By the bits of all keys of a call: those that come after ours.
    below: dict[int, Any] = {}

    turns, timed = count(1).__next__, HOOKS.sample

    # A signal handler of the job may run, and raise, after each call in here, but not within an
    # instruction: the op is issued by the one that unpacks `issue`, and its result is kept.
    def kernel(keys: Any, *args: Any) -> Any:
        try:
            number = flags = 0
            bits = keys.raw_repr()
            lower = below.get(bits) or below.setdefault(bits, keys & after)
            issue = starmap(pass_on, ((lower, *args),))
            if log.is_open:
                frame = _find_caller()
                number, flags = begin(args, frame) if turns() % EVERY else timed(begin, args, frame)
        except BaseException as error:  # the op is issued without a record
            HELD.keep(error)
            number = flags = 0
            issue = starmap(pass_on, ((keys & after, *args),))
        token = boxed = None
        if number and log.inspector is not None:
            token = look(log, "before", number, spec, args)
        try:
            (result,) = issue
        except BaseException as error:
            _attempt(fail, number, token, error)
            leave_out(error)
            raise
        try:
            if number:
                boxed = end(number, flags, result)
        except BaseException as error:  # as above
            HELD.keep(error)
        if token is not None:
            look(log, "after", token, None if boxed is None else unbox(boxed))
        return result

    begin_unchecked(kernel)
    return kernel


def _find_caller() -> FrameType | None:
    """Return the frame that called a kernel; None in a thread of C++, such as that of backward."""
    try:
        return _get_frame(2)
    except ValueError:
        return None


def _find_class(name: str) -> Any:
    return getattr(sys.modules["torch._C._distributed_c10d"], name)


# All is in one function, and what it needs in its closure: this runs for each op of the job, and a
# call or an attribute takes as long as any of the steps here.
def _make_begin(
    spec: OpSpec, group_at: int, async_at: int, log: OpLog
) -> Callable[[tuple[Any, ...], FrameType | None], tuple[int, int]]:
    """Make what records that an op is about to be issued; it returns the record and its flags."""
    unbox = _find_class("ProcessGroup").unbox
    names = sys.modules["torch.distributed.distributed_c10d"]._world.pg_names
    ring, numbers = log.ring, log.ring.numbers
    mapped, offset, capacity = ring.map, ring.offset, ring.capacity
    groups, threads, sites, counts = log.groups, log.threads, log.sites, progress.COUNTS
    forms = KnownForms()
    is_p2p, is_simple = spec.is_p2p, spec.is_simple
    can_be_async, is_barrier = spec.name != "monitored_barrier", spec.name == "barrier"

    def begin(args: tuple[Any, ...], frame: FrameType | None) -> tuple[int, int]:
        tensors = args[0]
        if is_simple and len(tensors) == 1:
            one = tensors[0]
            shapes: tuple[Any, ...] = (one.shape, one.dtype, one.is_cpu, one.__class__)
        else:
            shapes = make_key(spec, args)
        found = forms.get(shapes) or forms.keep(shapes, _learn(spec, shapes, args, log))
        form, flags = found
        if form == _TRACED:
            return 0, 0
        # To look into the box takes a microsecond; where there is one group, it is that one.
        try:
            (name,) = names.values() if len(names) == 1 else (unbox(args[group_at]).group_name,)
        except ValueError:  # another thread makes a group
            name = unbox(args[group_at]).group_name
        group = groups.get(name) or log.learn_group(name)
        site = 0 if frame is None else sites.find(frame)
        thread = threads.get(_thread_id()) or log.learn_thread()
        if is_p2p:
            flags |= 0 if _is_waited_for(frame) else ASYNC
        # Arguments at the end that have their default, which is true, are left out.
        elif can_be_async and (len(args) <= async_at or args[async_at]):
            flags |= ASYNC
        if is_barrier and group.has_devices:
            flags = flags & ASYNC | NO_END  # its tensor, a dummy, may be on the host all the same
        if log.backlog is not None:  # what hooks saw comes first
            log.backlog.flush()
        number = next(numbers)
        PUT_RECORD(
            mapped, offset + (number - 1) % capacity * RECORD_BYTES,
            number, _now_ns(), 0, 0, 0, 0, next(group.p2p if is_p2p else group.collectives),
            form, site, group.number, thread, flags, counts.optimizer_steps, 0, number,
        )  # fmt: skip
        return number, flags

    return begin


def _learn(
    spec: OpSpec, shapes: tuple[Any, ...], args: tuple[Any, ...], log: OpLog
) -> tuple[int, int]:
    """Return the number of a new form, and the flags that all its ops have."""
    tensor = find_tensor(args[: max(1, spec.group_at)])
    if tensor is not None and (tensor.is_meta or tensor.__class__.__name__ == "FakeTensor"):
        return _TRACED, 0
    flags = P2P if spec.is_p2p else 0
    flags |= choose_flags(spec.name, is_on_host=tensor is not None and tensor.is_cpu)
    return log.learn_form((spec.name, shapes), describe(spec, args)), flags


def _is_waited_for(frame: FrameType | None) -> bool:
    """Tell whether a send or receive is ``dist.send`` or ``dist.recv``, which wait for its end.

    Nothing but the function that was called tells: below, both are the same op.
    """
    at = frame
    for _ in range(_MAX_WRAPPERS):
        if at is None:
            return False
        if at.f_code.co_name in _BLOCKING and at.f_code.co_filename.endswith(_C10D_FILE):
            return True
        at = at.f_back
    return False


def _make_end(spec: OpSpec, log: OpLog) -> Callable[[int, int, Any], Any]:
    """Make what records that an op was issued, and returns its handle, in the dispatcher's box."""
    completion, watch = log.completion, log.completion.new.append
    ring = log.ring
    mapped, offset, capacity = ring.map, ring.offset + RETURNED, ring.capacity
    is_any = spec.name == "recv_any"

    def end(number: int, flags: int, result: Any) -> Any:
        PUT_TIME(mapped, offset + (number - 1) % capacity * RECORD_BYTES, _now_ns())
        boxed = result[-1] if isinstance(result, tuple) else result
        if boxed is None:
            log.is_over(number)
            return None
        # Of an op on a device there is nothing to ask, and its tensors would be held with it.
        if completion.is_over or not flags & HOST:
            return boxed
        # Taken out of its box by the thread that looks at it; one that tells nothing is not held.
        watch((number, None if flags & NO_END else boxed, is_any))
        if completion.is_idle:
            completion.wake()
        return boxed

    return end


def _make_fail(log: OpLog) -> Callable[[int, Any, BaseException], None]:
    """Make what records that an op could not be issued."""

    def fail(number: int, token: Any, error: BaseException) -> None:
        if number:
            log.fail(number, _now_ns())
        if token is not None:
            look(log, "failed", token, error)

    return fail


def _attempt(call: Callable[..., Any], *args: Any) -> None:
    try:
        call(*args)
    except Exception:  # the error of the job is the one that counts
        return
