"""When ops end: a thread that asks the handles of pending ops again and again.

A device is never synchronised, and nothing is waited for. The end of an op lies between the last
look at which it was pending and the first one at which it was not.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
from collections import deque

from .. import progress
from . import ring as rings
from .ring import ASYNC, ENQUEUE, HOST, P2P, PUT_TIME, PUT_TWO_TIMES, Ring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

THREAD_NAME = "whystuck-ops"
_LOOK_EVERY_S = 0.004
# An op that takes this long may be told less exactly.
_LONG_NS, _VERY_LONG_NS = 5_000_000_000, 60_000_000_000
_LONG_LOOK_S, _VERY_LONG_LOOK_S = 0.008, 0.05
_BEAT_EVERY_NS = 200_000_000
_MAX_PENDING = 1024
_MAX_LOOKED_AT = 512
_MAX_UNWAITED = 128
_STOP_TIMEOUT_S = 2.0
# Asking costs more than all the rest; an op that fails at once raises where it is issued.
_LONG_ENOUGH_NS = 20_000_000


class Completion:
    """Watches the handles of ops; a handle is let go as soon as its op is over."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        # Record, handle, and whether it is a receive from any rank. Full, it drops the oldest.
        self.new: deque[tuple[int, Any, bool]] = deque(maxlen=_MAX_PENDING)
        self._pending: list[tuple[int, Any, bool]] = []
        self._wake = threading.Event()
        # What is asked again and again until it says that it is done.
        self._deferred: deque[Callable[[], bool]] = deque()
        self.is_idle = True
        self.is_over = False
        self._owner = os.getpid()
        self._thread: threading.Thread | None = None
        self._last_look_ns = 0
        self._last_beat_ns = 0
        self._newest = 0
        self._newest_of: dict[int, int] = {}
        self._has_durations = True

    def start(self) -> None:
        """Start the thread, once; it never keeps the process alive."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
            self._thread.start()
            # Whatever becomes of the others: left running, it would let go of handles, and so end
            # the process, while the interpreter is taken down.
            atexit.register(self.stop)

    def stop(self) -> None:
        """End the thread, before the interpreter is taken down around it."""
        if os.getpid() != self._owner:
            return
        self.is_over = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT_S)

    def wake(self) -> None:
        """Look at what is in ``new``; called by threads of the job when ``is_idle`` is true."""
        self._wake.set()

    def defer(self, task: Callable[[], bool]) -> None:
        """Do a task when its data is there: now, or in this thread; tasks keep their order."""
        if not self._deferred and task():
            return
        self._deferred.append(task)
        self.wake()

    def _run(self) -> None:
        try:
            _name_thread()
            _allow_captures()
            while not self.is_over:
                self._wait()
                self._look()
        except Exception:  # the job goes on without us
            self.is_over = True
        finally:
            self.new.clear()
            self._pending.clear()

    def _wait(self) -> None:
        if self._pending or self.new or self._deferred:
            time.sleep(self._choose_pause_s())
            return
        self.is_idle = True
        if not self.new and not self._deferred and not self.is_over:
            self._wake.wait()
        self._wake.clear()
        self.is_idle = False
        self._last_look_ns = 0
        time.sleep(_LOOK_EVERY_S)

    def _choose_pause_s(self) -> float:
        if not self._pending:
            return _LOOK_EVERY_S
        age_ns = time.monotonic_ns() - self._ring.read_time(self._pending[0][0], ENQUEUE)
        if age_ns > _VERY_LONG_NS:
            return _VERY_LONG_LOOK_S
        return _LONG_LOOK_S if age_ns > _LONG_NS else _LOOK_EVERY_S

    def _look(self) -> None:
        while self.new:
            entry = self.new.popleft()
            self._newest = max(self._newest, entry[0])
            self._settle_earlier(entry[0])
            if entry[1] is not None:
                self._pending.append((entry[0], _unbox(entry[1]), entry[2]))
        self._let_go_of_unwaited()
        self._do_deferred()
        now_ns = time.monotonic_ns()
        looked, rest = self._pending[:_MAX_LOOKED_AT], self._pending[_MAX_LOOKED_AT:]
        self._pending = [entry for entry in looked if not self._settle(entry)] + rest
        self._last_look_ns = now_ns
        if now_ns - self._last_beat_ns > _BEAT_EVERY_NS:
            self._last_beat_ns = now_ns
            self._ring.beat(progress.COUNTS.optimizer_steps)

    def _let_go_of_unwaited(self) -> None:
        """Keep few handles of sends and receives that nobody may ever wait for.

        gloo says of such an op that it is over only to who waits for it.
        """
        if len(self._pending) <= _MAX_UNWAITED:
            return
        kind = ASYNC | HOST | P2P
        unwaited = [e for e in self._pending if self._ring.read_flags(e[0]) & kind == kind]
        gone = {entry[0] for entry in unwaited[:-_MAX_UNWAITED]}
        self._pending = [entry for entry in self._pending if entry[0] not in gone]

    def _do_deferred(self) -> None:
        while self._deferred:
            try:
                if not self._deferred[0]():
                    return
            except Exception:  # the next one may work
                pass
            self._deferred.popleft()

    def _settle_earlier(self, number: int) -> None:
        """Settle what its thread has waited for before it issued the op of a record.

        Some handles, such as those of gloo's reduce_scatter, never tell that their op is over.
        """
        ring = self._ring
        thread = ring.read_thread(number)
        before, self._newest_of[thread] = self._newest_of.get(thread, 0), number
        if not before or not ring.is_kept(before, self._newest):
            return
        if ring.read_flags(before) & (ASYNC | HOST) == HOST and not ring.read_time(
            before, rings.DONE
        ):
            PUT_TIME(ring.map, ring.place(before) + rings.DONE, ring.read_time(number, ENQUEUE))

    def _settle(self, entry: tuple[int, Any, bool]) -> bool:
        """Look at one op; return whether nothing more is to be learned of it."""
        number, work, is_any = entry
        ring = self._ring
        if not ring.is_kept(number, self._newest):
            return True
        place = ring.place(number)
        try:
            if ring.read_time(number, rings.DONE):
                if is_any:
                    PUT_TIME(ring.map, place + rings.EXTRA, work._source_rank() + 1)
                return True
            if not work.is_completed():
                return False
            done_ns, issued_ns = time.monotonic_ns(), ring.read_time(number, ENQUEUE)
            if self._last_look_ns > issued_ns:
                PUT_TWO_TIMES(ring.map, place + rings.PENDING, self._last_look_ns, done_ns)
            else:
                PUT_TIME(ring.map, place + rings.DONE, done_ns)
            flags = ring.read_flags(number)
            if flags & HOST == 0:
                self._keep_start(work, place, done_ns)
            if done_ns - issued_ns > _LONG_ENOUGH_NS and _has_failed(work):
                ring.add_flag(number, rings.FAILED)
            elif is_any:
                PUT_TIME(ring.map, place + rings.EXTRA, work._source_rank() + 1)
        except Exception:  # a backend whose handles cannot be asked
            ring.add_flag(number, rings.NO_END)
        return True

    def _keep_start(self, work: Any, place: int, done_ns: int) -> None:
        """Note when an op began on the device, where torch takes the time of that."""
        if self._has_durations:
            try:
                duration_ns = int(work._get_duration() * 1e6)
                PUT_TIME(self._ring.map, place + rings.START, done_ns - duration_ns)
            except Exception:  # TORCH_NCCL_ENABLE_TIMING is not set, or another backend
                self._has_durations = False


def is_capturing() -> bool:
    """Tell whether the calls of this thread go into a CUDA graph instead of to the device.

    Events of such calls must not be asked: that would end the capture.
    """
    cuda: Any = sys.modules.get("torch.cuda")
    return cuda is not None and cuda.is_initialized() and cuda.is_current_stream_capturing()


def _unbox(work: Any) -> Any:
    """Return the handle of an op; from the dispatcher it comes in a box."""
    kind = sys.modules["torch._C._distributed_c10d"].Work
    return work if isinstance(work, kind) else kind.unbox(work)


def _has_failed(work: Any) -> bool:
    """Ask by the future of an op: the plain questions of torch print a warning."""
    try:
        future = work.get_future()
    except Exception:  # gloo's sends and receives have none
        return False
    try:
        future.value()
    except Exception:
        return True
    return False


def _name_thread() -> None:
    """Give the thread its name in the kernel too, so that ``top -H`` tells whose it is."""
    ctypes.CDLL(None).prctl(15, THREAD_NAME.encode(), 0, 0, 0)


def _allow_captures() -> None:
    """Let this thread ask about events while another one captures a CUDA graph.

    In the mode that threads begin with, such a question ends the capture of the other thread.
    """
    path = _find_cuda_runtime()
    if path:
        relaxed = ctypes.c_int(2)  # cudaStreamCaptureModeRelaxed
        ctypes.CDLL(path).cudaThreadExchangeStreamCaptureMode(ctypes.byref(relaxed))


def _find_cuda_runtime() -> str:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line[line.find("/") :].strip() if "/" in line else ""
            if os.path.basename(path).startswith("libcudart.so"):
                return path
    return ""
