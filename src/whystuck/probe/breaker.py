"""The probe looks at what it costs itself, and does without most of its parts where that is much.

What has been disarmed stays so while the process lives. Only beats go on, some tens of
microseconds a second: a rank whose beat is old looks like one that keeps the interpreter.
"""

from __future__ import annotations

import os
import threading
import time

from . import files

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Callable

# The budget of a rank, as docs/security.md has it.
MAX_CPU_SHARE = 0.01
MAX_BYTES = 64 << 20
WINDOW_S = 10.0
# A window may hold one costly moment, such as a dump that was asked for.
_WINDOWS = 2
_MAX_FACTOR = 16
_RECORD_BYTES = 96
_THREAD_PREFIX = "whystuck"
# Of 64 calls in threads of the job, one is timed.
EVERY = 64


class Meter:
    """What hooks cost in threads of the job, by a sample of their calls."""

    def __init__(self) -> None:
        self.sampled_ns = 0
        self._turn = 0

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a hook, and take the CPU time of every 64th call."""
        self._turn = turn = self._turn + 1
        if turn % EVERY:
            return function(*args)
        begin_ns = time.thread_time_ns()
        try:
            return function(*args)
        finally:
            self.sampled_ns += time.thread_time_ns() - begin_ns

    def count(self, calls: int, each_ns: int) -> None:
        """Add calls whose cost is known from elsewhere."""
        self.sampled_ns += calls * each_ns // EVERY

    @property
    def cost_s(self) -> float:
        """CPU seconds of all calls so far, as the sample tells."""
        return self.sampled_ns * EVERY / 1e9


HOOKS = Meter()


class Pace:
    """How many times longer than usual threads of the probe rest between two looks."""

    def __init__(self) -> None:
        self.factor = 1

    def follow(self, share: float) -> bool:
        """Adapt to a share of a core; return whether all that could be done was done before."""
        if share > MAX_CPU_SHARE:
            is_spent = self.factor >= _MAX_FACTOR
            self.factor = min(self.factor * 2, _MAX_FACTOR)
            return is_spent
        if share < MAX_CPU_SHARE / 4:
            self.factor = max(self.factor // 2, 1)
        return False


PACE = Pace()
# What the user asked for and pays for: while there is any, the CPU budget does not hold.
WAIVED: set[str] = set()


class Breaker:
    """Looked at once a second by the probe's thread."""

    def __init__(self, disarm: Callable[[], None]) -> None:
        """Watch the budget of this process; ``disarm`` turns parts off, and is called once."""
        self._disarm = disarm
        self._begin_s = time.monotonic()
        self._used_s = measure_cpu_s()
        self._costly = 0

    def look(self) -> None:
        """Disarm where that is asked for, or where the budget is exceeded."""
        if files.DISARMED or not (reason := self._judge()):
            return
        files.DISARMED.append(reason)
        try:
            record: dict[str, object] = {"reason": reason, "time_ns": time.time_ns()}
            files.write_json(files.path_of("disarmed"), record)
        finally:
            self._disarm()

    def _judge(self) -> str:
        if files.is_disabled():
            return f"{files.DISABLE_FILE} is there"
        held, limit = files.mapped_bytes(), _limit_bytes()
        if held > limit:
            return f"it held {held >> 20} MB of memory, of at most {limit >> 20} MB"
        now_s = time.monotonic()
        if now_s - self._begin_s < WINDOW_S:
            return ""
        used_s = measure_cpu_s()
        share = (used_s - self._used_s) / (now_s - self._begin_s)
        self._begin_s, self._used_s = now_s, used_s
        if WAIVED:
            self._costly = 0
            return ""
        self._costly = self._costly + 1 if PACE.follow(share) else 0
        if self._costly < _WINDOWS:
            return ""
        return f"it used {share:.1%} of a core, of at most {MAX_CPU_SHARE:.0%}"


def _limit_bytes() -> int:
    """Return the budget of memory, and what the user wants the op log to take beside it."""
    try:
        asked = int(os.environ["WHYSTUCK_OPS_BUFFER"]) * _RECORD_BYTES
    except (KeyError, ValueError):
        asked = 0
    return MAX_BYTES + (asked if asked > MAX_BYTES // 2 else 0)


def measure_cpu_s() -> float:
    """Return the CPU seconds of the probe so far: its threads, and its hooks in others."""
    return HOOKS.cost_s + sum(_read_cpu_s(_list_threads()))


def _list_threads() -> list[int]:
    return [
        one.native_id
        for one in threading.enumerate()
        if one.name.startswith(_THREAD_PREFIX) and one.native_id is not None
    ]


def _read_cpu_s(threads: Iterable[int]) -> Iterable[float]:
    for number in threads:
        try:
            with open(f"/proc/self/task/{number}/schedstat", "rb") as file:
                yield int(file.read().split()[0]) / 1e9
        except (OSError, ValueError, IndexError):  # it has ended, or the kernel does not tell
            continue
