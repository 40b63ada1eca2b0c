"""CUDA of the job, as far as we touch it: never before the job has, and never in its way.

The first call of CUDA in a process settles which devices it sees, and forked children cannot use
CUDA after it. The first one in a thread makes a context on device 0, of 500 MiB on some devices,
unless the thread has another device. An event that is asked ends the capture of a CUDA graph in
another thread, unless the thread that asks is in the relaxed mode. All calls here are made without
the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import weakref

from . import progress
from .calling.unseen import call_before, hide_from_warnings, leave_out

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from typing import Any, Callable

_RELAXED = 2  # cudaStreamCaptureModeRelaxed
_NOT_READY = 600  # cudaErrorNotReady
_RUNTIME, _DRIVER = "libcudart.so", "libcuda.so"
_MAX_DEVICES = 64
_LIBRARIES: dict[str, Any] = {}
# Graphs of torch that are being captured. Weak: one that is given up must not stay here.
CAPTURES: weakref.WeakSet[Any] = weakref.WeakSet()


def is_used() -> bool:
    """Return whether the job has initialised CUDA; nothing of CUDA is called."""
    cuda: Any = sys.modules.get("torch.cuda")
    return cuda is not None and bool(cuda.is_initialized())


class Asking:
    """While it lasts, this thread may have events asked; entering returns whether it may.

    It may not while a graph is captured. A thread without a context gets a device that has one,
    and one that has a context keeps it. The mode of the thread is as before when it ends.
    """

    def __init__(self) -> None:
        self._mode: int | None = None

    def __enter__(self) -> bool:
        if not is_used():
            return True  # there are no events
        if CAPTURES:
            return False
        if _has_context() or _take_device():
            self._mode = _exchange_mode(_RELAXED)
        return True

    def __exit__(self, *error: object) -> None:
        if self._mode is not None:
            _exchange_mode(self._mode)


def has_passed(event: Any) -> bool:
    """Return whether the device is past an event of torch, False while that must not be asked."""
    with Asking() as may_ask:
        return may_ask and ask(event)


def ask(event: Any) -> bool:
    """Return whether the device is past an event of torch, within :class:`Asking`."""
    runtime = _find_library(_RUNTIME)
    if runtime is None or not hasattr(event, "cuda_event"):
        return bool(event.query())
    with _ErrorKept(runtime):
        found = runtime.cudaEventQuery(ctypes.c_void_p(event.cuda_event))
    return bool(found != _NOT_READY)


def measure_ms(first: Any, last: Any) -> float | None:
    """Return the time between two events that the device is past, within :class:`Asking`."""
    runtime = _find_library(_RUNTIME)
    if runtime is None or not hasattr(first, "cuda_event"):
        return float(first.elapsed_time(last))
    events, found = (first.cuda_event, last.cuda_event), ctypes.c_float()
    failed = runtime.cudaEventElapsedTime(ctypes.byref(found), *map(ctypes.c_void_p, events))
    return None if failed else found.value


def may_record(stream: Any) -> bool:
    """Return whether an event may be recorded on a stream of torch: not into a graph."""
    if CAPTURES:
        return False
    if not hasattr(stream, "cuda_stream"):
        return True
    runtime, status = _find_library(_RUNTIME), ctypes.c_int()
    if not is_used() or runtime is None:
        return False
    with _ErrorKept(runtime):
        failed = runtime.cudaStreamIsCapturing(
            ctypes.c_void_p(stream.cuda_stream), ctypes.byref(status)
        )
    return not failed and not status.value


def watch_graphs() -> None:
    """Note which graphs are being captured, and count replays, of which torch records nothing.

    Graphs that are captured or replayed by other means than torch's class are not seen.
    """
    kind: Any = sys.modules["torch.cuda.graphs"].CUDAGraph
    kind.capture_begin = _apart_from_compiler(_noting_begin(kind.capture_begin))
    kind.capture_end = _apart_from_compiler(_noting_end(kind.capture_end))
    kind.replay = _apart_from_compiler(call_before(kind.replay, _count_replay))


def _noting_begin(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
        CAPTURES.add(graph)
        try:
            return original(graph, *args, **kwargs)
        except BaseException as error:
            CAPTURES.discard(graph)
            leave_out(error)
            raise

    return capture_begin


def _noting_end(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(graph, *args, **kwargs)
        except BaseException as error:
            leave_out(error)
            raise
        finally:
            CAPTURES.discard(graph)

    return capture_end


def _count_replay(*_: object) -> None:
    progress.COUNTS.replays += 1


def _apart_from_compiler(function: Any) -> Any:
    """Keep the compiler from tracing a function; this is what torch.compiler.disable sets."""
    hide_from_warnings(function)
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = None
    return function


# --------------------------------------------------------------------------- calls of CUDA


class _ErrorKept:
    """CUDA keeps no error that a call of ours gets: where torch launches a kernel, it asks for one.

    One that the job has left there before stays: it is to come up.
    """

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime

    def __enter__(self) -> None:
        self._had_error = bool(self._runtime.cudaPeekAtLastError())

    def __exit__(self, *_: object) -> None:
        if not self._had_error:
            self._runtime.cudaGetLastError()


def _has_context() -> bool:
    """Return whether this thread has a context; that makes none."""
    driver, context = _find_library(_DRIVER), ctypes.c_void_p()
    if driver is None or driver.cuCtxGetCurrent(ctypes.byref(context)):
        return False
    return bool(context.value)


def _take_device() -> bool:
    """Give this thread a device on which the job has a context; return whether there is one."""
    driver, runtime = _find_library(_DRIVER), _find_library(_RUNTIME)
    count, flags, is_active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
    if None in (driver, runtime) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return False
    for device in range(min(count.value, _MAX_DEVICES)):
        failed = driver.cuDevicePrimaryCtxGetState(
            device, ctypes.byref(flags), ctypes.byref(is_active)
        )
        if not failed and is_active.value:
            return not runtime.cudaSetDevice(device)
    return False


def _exchange_mode(mode: int) -> int | None:
    """Set how this thread gets along with captures; return the mode before, None on failure."""
    runtime, value = _find_library(_RUNTIME), ctypes.c_int(mode)
    if runtime is None or runtime.cudaThreadExchangeStreamCaptureMode(ctypes.byref(value)):
        return None
    return value.value


def _find_library(name: str) -> Any:
    """Return a library that the process has loaded, None where it has not."""
    if name not in _LIBRARIES:
        path = _find_path(name)
        if not path:
            return None
        try:
            _LIBRARIES[name] = ctypes.CDLL(path)
        except OSError:  # replaced on disk since
            _LIBRARIES[name] = None
    return _LIBRARIES[name]


def _find_path(name: str) -> str:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line[line.find("/") :].strip() if "/" in line else ""
            if os.path.basename(path).startswith(name):
                return path
    return ""
