"""When ops on the host end: a thread that asks the handles of pending ops again and again.

Nothing is waited for. The end of an op lies between the last look at which it was pending and the
first one at which it was not. The handle of an op on a device is neither asked nor held: that may
take seconds under the interpreter's lock, and it holds the tensors of the op.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from operator import itemgetter

from .. import progress
from ..breaker import PACE
from ..calling.interrupts import let_through
from ..mapped_log import PUT_TWO_TIMES
from ..threads import OwnThread
from . import ring as rings
from .handles import has_failed, make_unbox
from .ring import ASYNC, HOST, P2P, PUT_TIME, Ring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .backlog import Backlog

    _Pending = tuple[int, Any, bool, int, int]

THREAD_NAME = "whystuck-ops"
_LOOK_EVERY_S = 0.008
# A look costs 15 to 220 us of CPU, as caches are warm or cold. Where it costs more than this share
# of a core, looks are rarer, down to one in 64 ms: one look for more ops costs less.
_LOOK_SHARE, _MAX_STRETCH, _JUDGE_LOOKS = 0.0025, 8.0, 32
# Then an op is looked at right before the last one like it was over, and right after, if that is
# in less than this: two looks an op, which tell its end as exactly as a look every 64 ms would. Of
# so many ops at once, and of so many kinds of them, this is known.
_MAX_AHEAD_S, _FEW, _MAX_FORMS = 0.128, 8, 1024
# What no handle tells, such as a record that was written over, is found at one look in so many.
_FULL_LOOKS = 16
# Where ops come thick and fast, a look is made for many of them: a thread that waits for the
# interpreter makes each call of torch slower.
_MANY, _BUSY_LOOK_S = 64, 0.016
# Ops that nobody has looked at for so long are recorded by the thread that issues the next one.
_DUE_NS = 1_000_000_000
_NEVER_NS = (1 << 63) - 1
# Looks in vain before the thread waits until it is woken, which costs the job microseconds, and
# 100 of them where caches are cold. There it looks on for 1.5 s, each time twice as late, up to
# 128 ms: so long the handle of an op that is over, and with it its tensors, may be held.
_MAX_VAIN_LOOKS, _MAX_VAIN_LOOKS_COLD, _MAX_VAIN_REST_S = 2, 12, 0.128
# An op that takes this long may be told less exactly.
_LONG_NS, _VERY_LONG_NS = 5_000_000_000, 60_000_000_000
_LONG_LOOK_S, _VERY_LONG_LOOK_S = 0.016, 0.05
_BEAT_EVERY_NS = 200_000_000
_MAX_PENDING = 1024
_MAX_LOOKED_AT = 512
_MAX_UNWAITED = 128
_STOP_TIMEOUT_S = 2.0
# Asking costs more than all the rest; an op that fails at once raises where it is issued.
_LONG_ENOUGH_NS = 100_000_000


class Completion:
    """Watches the handles of ops; a handle is let go as soon as its op is over."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        # Record, handle, and whether it is a receive from any rank. Full, it drops the oldest.
        self.new: deque[tuple[int, Any, bool]] = deque(maxlen=_MAX_PENDING)
        # The same, and when it was issued and its form: to read its record takes microseconds.
        self._pending: list[_Pending] = []
        # Calls that are not on record yet, where hooks are used.
        self.backlog: Backlog | None = None
        # What the hooks of the extension have left, where these are used.
        self.native: Any = None
        self._vain_looks = 0
        # How many ops the last look was the first one for.
        self._taken = 0
        # Held while there is nothing to do; an Event costs the thread of the job more.
        self._gate = threading.Lock()
        self._gate.acquire()
        # What is asked again and again until it says that it is done.
        self._deferred: deque[Callable[[], bool]] = deque()
        self.is_idle = True
        self.is_over = False
        self.has_ended = False
        # Hooks whose clock is past this call :meth:`hasten`.
        self.due_ns = 0
        self._owner = os.getpid()
        self._thread: OwnThread | None = None
        self._last_look_ns = 0
        self._last_beat_ns = 0
        self._looks = 0
        # How many times longer than usual the thread rests, by the CPU time of its looks.
        self._stretch = 1.0
        self._judged = 0, 0
        self._pause_s = _LOOK_EVERY_S
        # How long the last op of each form took.
        self._took_ns: dict[int, int] = {}
        # The newest op of each thread, where the thread waits for it; 0 where not.
        self._waited_for: dict[int, int] = {}
        self._unbox = make_unbox()

    def start(self) -> None:
        """Start the thread, once; it never keeps the process alive."""
        if self._thread is None:
            self._thread = OwnThread(self._run, THREAD_NAME)
            self._thread.start()
            # Whatever becomes of the others: left running, it would let go of handles, and so end
            # the process, while the interpreter is taken down.
            atexit.register(self.stop)

    def stop(self) -> None:
        """End the thread, before the interpreter is taken down around it."""
        if os.getpid() != self._owner:
            return
        self.is_over = True
        self._open_gate()
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT_S)
        self._record(is_last=True)

    def wake(self) -> None:
        """Look at what is in ``new``; called by threads of the job when ``is_idle`` is true."""
        # At once: until the thread gets the interpreter, many ops may come.
        self.is_idle = False
        self._open_gate()

    def _open_gate(self) -> None:
        try:
            self._gate.release()
        except RuntimeError:  # it was open
            return

    def hasten(self, now_ns: int) -> None:
        """Have what hooks have seen recorded: by the thread if it waits, else here and now."""
        self._set_due(0 if self.is_over else now_ns + _DUE_NS)
        if self.is_idle and not self.is_over:
            self.wake()
        else:
            # Nobody has looked for long: at the way out, or because the thread gets no time.
            self._record()

    def defer(self, task: Callable[[], bool]) -> None:
        """Do a task when its data is there: now, or in this thread; tasks keep their order."""
        if not self._deferred and task():
            return
        self._deferred.append(task)
        self.wake()

    def _run(self) -> None:
        try:
            while not self.is_over:
                self._wait()
                self._look()
            # What came during the last one.
            self._look()
        except Exception:  # the job goes on without us
            self.is_over = True
        finally:
            self._set_due(0)
            self.has_ended = True
            self.new.clear()
            self._pending.clear()
            self._leave_native()

    def _wait(self) -> None:
        if self._has_work():
            self._vain_looks = 0
            self._rest(self._choose_pause_s())
            return
        while self._vain_looks < self._choose_vain_looks():
            rest_s = _LOOK_EVERY_S * self._stretch * 2**self._vain_looks
            time.sleep(min(rest_s, _MAX_VAIN_REST_S) * PACE.factor)
            self._vain_looks += 1
            if self._has_work() or self.is_over:
                return
        self.is_idle = True
        self._set_due(0)
        while not self._has_work() and not self.is_over:
            self._gate.acquire()
            # Whoever opened it took this back, for nothing if there is no work.
            self.is_idle = True
        self.is_idle = False
        self._set_due(time.monotonic_ns() + _DUE_NS)
        self._last_look_ns = 0
        if self._stretch > 1.0:
            self._vain_looks = 0
            self._take_new()  # to foresee its end, which spares the first look
        self._rest(_LOOK_EVERY_S)

    def _choose_vain_looks(self) -> int:
        if self.backlog is not None:
            return _MAX_VAIN_LOOKS
        return _MAX_VAIN_LOOKS_COLD if self._stretch > 1.0 else 0

    def _rest(self, usual_s: float) -> None:
        self._pause_s = usual_s * self._stretch * PACE.factor
        time.sleep(max(self._pause_s, self._foresee_s() - self._pause_s / 2))

    def _set_due(self, due_ns: int) -> None:
        self.due_ns = due_ns
        if self.native is not None:
            # Its records need nobody: when the thread is gone, nothing is to be hastened.
            self.native.due_ns = _NEVER_NS if self.is_over else due_ns

    def _leave_native(self) -> None:
        if self.native is not None:
            self.native.watches = False
            self.native.take()

    def _has_work(self) -> bool:
        if self._pending or self.new or self._deferred:
            return True
        if self.native is not None and (self.native.pending_count or self.native.open_count):
            return True
        return self.backlog is not None and self.backlog.oldest_ns() > 0

    def _record(self, *, is_last: bool = False) -> None:
        """Record what hooks have seen."""
        if self.backlog is not None:
            try:
                self.backlog.flush(is_last=is_last)
            except Exception as error:  # the job goes on
                let_through(error)
                return

    def _choose_pause_s(self) -> float:
        if self._taken > _MANY:
            return _BUSY_LOOK_S
        if self._pending:
            since_ns = self._pending[0][3]
        else:
            since_ns = 0 if self.backlog is None else self.backlog.oldest_ns()
        if not since_ns:
            return _LOOK_EVERY_S
        age_ns = time.monotonic_ns() - since_ns
        if age_ns > _VERY_LONG_NS:
            return _VERY_LONG_LOOK_S
        return _LONG_LOOK_S if age_ns > _LONG_NS else _LOOK_EVERY_S

    def _foresee_s(self) -> float:
        """Return in how many seconds the first of a few ops ends, by the last ones like them.

        0 where looks are cheap, or where that is not known.
        """
        if self._stretch == 1.0 or len(self._pending) > _FEW or self._deferred:
            return 0.0
        rest_s, now_ns = _MAX_AHEAD_S, time.monotonic_ns()
        for _, _, _, issued_ns, form in self._pending:
            took_ns = self._took_ns.get(form)
            if took_ns is None:
                return 0.0
            rest_s = min(rest_s, (issued_ns + took_ns - now_ns) / 1e9)
        return rest_s if self._pending else 0.0

    def _learn(self, form: int, took_ns: int) -> None:
        if len(self._took_ns) >= _MAX_FORMS:
            self._took_ns.clear()
        self._took_ns[form] = took_ns

    def _look(self) -> None:
        # Not later: what is recorded now may come to its end meanwhile.
        look_ns = time.monotonic_ns()
        if self.backlog is not None:
            self._set_due(look_ns + _DUE_NS)
            self._record()
        self._take_new()
        if len(self._pending) > _MAX_UNWAITED:
            self._let_go_of_unwaited()
        if self._deferred:
            self._do_deferred()
        looked, rest = self._pending, []
        if len(looked) > _MAX_LOOKED_AT:
            looked, rest = looked[:_MAX_LOOKED_AT], looked[_MAX_LOOKED_AT:]
        self._pending = self._settle_all(looked) + rest
        self._last_look_ns = look_ns
        self._judge_cost()
        if look_ns - self._last_beat_ns > _BEAT_EVERY_NS:
            self._last_beat_ns = look_ns
            self._ring.beat(progress.COUNTS.optimizer_steps)

    def _settle_all(self, entries: list[_Pending]) -> list[_Pending]:
        """Return those of which there is more to be learned."""
        self._looks += 1
        is_full = self._looks % _FULL_LOOKS == 0
        kept = []
        for entry in entries:
            try:
                is_pending = not entry[1].is_completed()
            except Exception:  # noted when it is settled
                is_pending = False
            if (is_pending and not is_full) or not self._settle(entry):
                kept.append(entry)
        return kept

    def _judge_cost(self) -> None:
        """Follow what looks cost with the time between them."""
        looks, used_ns = self._judged
        if self._looks - looks >= _JUDGE_LOOKS:
            now_ns = time.thread_time_ns()
            look_s = (now_ns - used_ns) / (self._looks - looks) / 1e9
            self._stretch = min(max(look_s / _LOOK_SHARE / _LOOK_EVERY_S, 1.0), _MAX_STRETCH)
            self._judged = self._looks, now_ns

    def _let_go_of_unwaited(self) -> None:
        """Keep few handles of sends and receives: gloo tells their ends only to who waits."""
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

    def _take_new(self) -> None:
        entries = []
        while self.new:
            entries.append(self.new.popleft())
        if self.native is not None:
            # Afterwards: what a thread issued before those above is among these.
            for number, args in self.native.take():
                entries.append((number, None if args is None else args.work, False))
            entries.sort(key=itemgetter(0))
        self._taken = len(entries)
        for entry in entries:
            self._take(*entry)

    def _take(self, number: int, work: Any, is_any: bool) -> None:  # noqa: FBT001
        kept, enqueue_ns, _, thread, flags = self._ring.read(number)
        if kept == number:
            self._settle_earlier(number, enqueue_ns, thread, flags)
            if work is not None:
                form = self._ring.read_form(number)
                self._pending.append((number, self._unbox(work), is_any, enqueue_ns, form))

    def _settle_earlier(self, number: int, enqueue_ns: int, thread: int, flags: int) -> None:
        """Settle what its thread has waited for before it issued the op of a record.

        Some handles, such as those of gloo's reduce_scatter, never tell that their op is over.
        """
        before = self._waited_for.get(thread, 0)
        self._waited_for[thread] = number if flags & (ASYNC | HOST) == HOST else 0
        if before:
            kept, _, done_ns, _, _ = self._ring.read(before)
            if kept == before and not done_ns:
                PUT_TIME(self._ring.map, self._ring.place(before) + rings.DONE, enqueue_ns)

    def _settle(self, entry: _Pending) -> bool:
        """Look at one op; return whether nothing more is to be learned of it."""
        number, work, is_any, issued_ns, form = entry
        ring = self._ring
        kept, _, done_ns, _, _ = ring.read(number)
        if kept != number:
            return True
        place = ring.place(number)
        try:
            if done_ns:
                if is_any:
                    PUT_TIME(ring.map, place + rings.EXTRA, work._source_rank() + 1)
                return True
            if not work.is_completed():
                return False
            done_ns = time.monotonic_ns()
            if self._last_look_ns > issued_ns:
                PUT_TWO_TIMES(ring.map, place + rings.PENDING, self._last_look_ns, done_ns)
            else:
                PUT_TIME(ring.map, place + rings.DONE, done_ns)
            # Half a rest before it was seen to be over: the next look at one is a rest earlier.
            pending_ns = max(self._last_look_ns, issued_ns, done_ns - int(self._pause_s * 1e9))
            self._learn(form, (pending_ns + done_ns) // 2 - issued_ns)
            if done_ns - issued_ns > _LONG_ENOUGH_NS and has_failed(work):
                ring.add_flag(number, rings.FAILED)
            elif is_any:
                PUT_TIME(ring.map, place + rings.EXTRA, work._source_rank() + 1)
        except Exception:  # a backend whose handles cannot be asked
            ring.add_flag(number, rings.NO_END)
        return True
