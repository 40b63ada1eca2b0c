"""Recording by kernels of the dispatcher, torch 2.9 to 2.13: all that issues an op comes by.

A kernel of ours stands in the place of torch's own, records, and calls it. This sees what Python
wrappers do not: DDP's reducer, functional collectives, compiled code.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections import deque

from .. import progress
from ..wanted import look
from .forms import SPECS, OpSpec, describe, make_key, never_tells_end
from .log import OpLog
from .ring import ASYNC, HOST, NO_END, P2P, PUT_RECORD, PUT_TIME, RECORD_BYTES, RETURNED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Callable

_DEVICE_KEYS = {"cpu": "CPU", "cuda": "CUDA", "xpu": "XPU", "mps": "MPS", "hpu": "HPU"}
_OTHER_KEY = "PrivateUse1"
_BLOCKING = ("send", "recv")
_C10D_FILE = "distributed_c10d.py"
# What stands between such a call and the op: isend, and the counting of ops by `progress`.
_MAX_WRAPPERS = 4
_get_frame = sys._getframe
_thread_id = threading.get_ident
_now_ns = time.monotonic_ns


class Dispatcher:
    """Our kernels, while they are in place."""

    def __init__(self, log: OpLog, names: tuple[str, ...] = tuple(SPECS)) -> None:
        self._log = log
        self._names = names
        self._library: Any = None
        self._keys: set[str] = set()
        # A thread may be on its way into a kernel that was taken out: the last ones are kept.
        self._old: deque[list[Any]] = deque(maxlen=2)

    def install(self, device_types: set[str]) -> None:
        """Put kernels in place for some types of devices; again for those that come later."""
        wanted = {_DEVICE_KEYS.get(device, _OTHER_KEY) for device in device_types} - self._keys
        if not wanted:
            return
        torch: Any = sys.modules["torch"]
        if self._library is None:
            self._library = torch.library.Library("c10d", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of what we do on purpose
            for name in self._names:
                for key in wanted:
                    self._install_one(torch, name, SPECS[name], key)
        self._keys |= wanted

    def remove(self) -> None:
        """Put torch's own kernels back."""
        if self._library is None:
            return
        torch: Any = sys.modules["torch"]
        self._old.append(
            [
                torch.library.get_kernel(f"c10d::{name}", key)
                for name in self._names
                for key in self._keys
                if _has_kernel(torch, name, key)
            ]
        )
        self._library._destroy()
        self._library = None
        self._keys = set()

    def _install_one(self, torch: Any, name: str, spec: OpSpec, key: str) -> None:
        if not _has_kernel(torch, name, key):
            return
        original = torch.library.get_kernel(f"c10d::{name}", key)
        names = [item.name for item in getattr(torch.ops.c10d, name).default._schema.arguments]
        placed = OpSpec(
            spec.name,
            names.index("process_group"),
            names.index("async_op") if "async_op" in names else -1,
            spec.plain_at,
            spec.read,
        )
        kernel = _make_kernel(original.call_boxed, placed, key, self._log)
        self._library.impl(name, kernel, key, with_keyset=True)


def _has_kernel(torch: Any, name: str, key: str) -> bool:
    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"c10d::{name}", key))
    except RuntimeError:  # an op or a key that this torch does not have
        return False


def _make_kernel(
    original: Callable[..., Any], spec: OpSpec, key: str, log: OpLog
) -> Callable[..., Any]:
    """Make the kernel of one op; it calls the original exactly once, whatever becomes of us."""
    begin, end, fail = _make_begin(spec, key, log), _make_end(spec, log), _make_fail(log)
    unbox = sys.modules["torch._C._distributed_c10d"].Work.unbox

    def kernel(keys: Any, *args: Any) -> Any:
        number, token, boxed = 0, None, None
        try:
            if log.is_open:
                number = begin(args, _get_frame(1))
        except Exception:  # the op is issued without a record
            pass
        if number and log.inspector is not None:
            token = look(log, "before", number, spec, args)
        try:
            result = original(keys, *args)
        except BaseException as error:
            _attempt(fail, number, token, error)
            raise
        try:
            if number:
                boxed = end(number, result)
        except Exception:  # as above
            pass
        if token is not None:
            look(log, "after", token, None if boxed is None else unbox(boxed))
        return result

    return kernel


def _make_begin(spec: OpSpec, key: str, log: OpLog) -> Callable[[tuple[Any, ...], FrameType], int]:
    """Make what records that an op is about to be issued.

    All is in one function, and what it needs in its closure: this runs for each op of the job, and
    a call or an attribute takes as long as any of the steps here.
    """
    c10d: Any = sys.modules["torch._C._distributed_c10d"]
    unbox, group_at, async_at = c10d.ProcessGroup.unbox, spec.group_at, spec.async_at
    ring, numbers = log.ring, log.ring.numbers
    mapped, offset, capacity = ring.map, ring.offset, ring.capacity
    groups, threads, sites, counts = log.groups, log.threads, log.sites, progress.COUNTS
    forms: dict[tuple[Any, ...], int] = {}
    is_p2p, is_simple = spec.is_p2p, spec.is_simple
    plain_flags = P2P if is_p2p else 0
    if key == "CPU":
        plain_flags |= HOST | (NO_END if never_tells_end(spec.name) else 0)

    def begin(args: tuple[Any, ...], frame: FrameType) -> int:
        name = unbox(args[group_at]).group_name
        group = groups.get(name) or log.learn_group(name)
        tensors = args[0]
        if is_simple and len(tensors) == 1:
            shapes: tuple[Any, ...] = (tensors[0].shape, tensors[0].dtype)
        else:
            shapes = make_key(spec, args)
        form = forms.get(shapes)
        if form is None:
            form = forms[shapes] = log.learn_form((spec.name, shapes), describe(spec, args))
        site = sites.find(frame)
        thread = threads.get(_thread_id()) or log.learn_thread()
        flags = plain_flags
        if is_p2p:
            flags |= 0 if _is_waited_for(frame) else ASYNC
        # Arguments at the end that have their default, which is true, are left out.
        elif async_at >= 0 and (len(args) <= async_at or args[async_at]):
            flags |= ASYNC
        number = next(numbers)
        PUT_RECORD(
            mapped, offset + (number - 1) % capacity * RECORD_BYTES,
            number, _now_ns(), 0, 0, 0, 0, next(group.p2p if is_p2p else group.collectives),
            form, site, group.number, thread, flags, counts.optimizer_steps, 0, number,
        )  # fmt: skip
        return number

    return begin


def _is_waited_for(frame: FrameType) -> bool:
    """Tell whether a send or receive is ``dist.send`` or ``dist.recv``, which wait for its end.

    Nothing but the function that was called tells: below, both are the same op.
    """
    at: FrameType | None = frame
    for _ in range(_MAX_WRAPPERS):
        if at is None:
            return False
        if at.f_code.co_name in _BLOCKING and at.f_code.co_filename.endswith(_C10D_FILE):
            return True
        at = at.f_back
    return False


def _make_end(spec: OpSpec, log: OpLog) -> Callable[[int, Any], Any]:
    """Make what records that an op was issued, and returns its handle, in the dispatcher's box."""
    completion, watch = log.completion, log.completion.new.append
    ring = log.ring
    mapped, offset, capacity = ring.map, ring.offset + RETURNED, ring.capacity
    is_any = spec.name == "recv_any"

    def end(number: int, result: Any) -> Any:
        PUT_TIME(mapped, offset + (number - 1) % capacity * RECORD_BYTES, _now_ns())
        boxed = result[-1] if isinstance(result, tuple) else result
        if boxed is None:
            log.is_over(number)
            return None
        # Taken out of its box by the thread that looks at it.
        watch((number, boxed, is_any))
        if completion.is_idle:
            completion.wake()
        return boxed

    return end


def _make_fail(log: OpLog) -> Callable[[int, Any, BaseException], None]:
    """Make what records that an op could not be issued."""

    def fail(number: int, token: Any, error: BaseException) -> None:
        if number:
            log.fail(number)
        if token is not None:
            look(log, "failed", token, error)

    return fail


def _attempt(call: Callable[..., Any], *args: Any) -> None:
    try:
        call(*args)
    except Exception:  # the error of the job is the one that counts
        return
