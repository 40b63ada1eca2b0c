"""The probe looks at what it costs itself, and does without its parts where that is too much.

It rests longer first (`PACE`). Where that does not help, it goes without one part after the other
(`files.PARTS`), each judged by what is used without the one before. What has been disarmed stays so
while the process lives. Beats go on, some tens of microseconds a second: a rank whose beat is old
looks like one that keeps the interpreter.
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
# Of a core's time beyond the share, which is what a minute may use: for moments that cost much,
# such as a dump that was asked for. Any more means that the mean since then is above the share.
MAX_EXCESS_S = 0.6
WINDOW_S = 10.0
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
        return function(*args) if turn % EVERY else self.sample(function, *args)

    def sample(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a hook that counts its calls itself, for one of `EVERY`, and take the CPU time."""
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

    def __init__(self, disarm: Callable[[str], object], is_on: Callable[[str], bool]) -> None:
        """Watch the budget of this process.

        Args:
            disarm: Turns a part of `files.PARTS` off, is called once for each, and may raise.
            is_on: Tells whether there is anything on that goes off with a part.
        """
        self._disarm = disarm
        self._is_on = is_on
        self._begin_s = time.monotonic()
        self._used_s = measure_cpu_s()
        self._is_waived = False
        # How much more than the budget was used, and in how many seconds, since all rests are as
        # long as they get.
        self._excess_s = self._judged_s = 0.0

    def look(self) -> None:
        """Disarm where that is asked for, or a part more where the budget is exceeded."""
        if files.ALL in files.DISARMED:
            return
        self._is_waived = self._is_waived or bool(WAIVED)
        if reason := _find_ban():
            self._turn_off(files.ALL, reason)
        elif reason := self._judge():
            self._turn_off(self._choose_part(), reason)

    def _choose_part(self) -> str:
        """Return the next part; what may be switched on again only where it is on."""
        for part in files.PARTS:
            is_switched = part in (files.OPS, files.MARKS)
            if part not in files.DISARMED and (not is_switched or self._is_on(part)):
                return part
        return files.ALL

    def _turn_off(self, part: str, reason: str) -> None:
        files.DISARMED[part] = reason
        try:
            record = {"reason": reason, "time_ns": time.time_ns(), "parts": files.DISARMED}
            files.write_json(files.path_of("disarmed"), record)
        finally:
            self._disarm(part)

    def _judge(self) -> str:
        """Return what speaks against going on as now, after the time of a window."""
        now_s = time.monotonic()
        elapsed_s = now_s - self._begin_s
        if elapsed_s < WINDOW_S:
            return ""
        used_s = measure_cpu_s()
        share = max(0.0, used_s - self._used_s) / elapsed_s
        is_waived, self._is_waived = self._is_waived, bool(WAIVED)
        self._begin_s, self._used_s = now_s, used_s
        return "" if is_waived else self._add(share, elapsed_s)

    def _add(self, share: float, elapsed_s: float) -> str:
        """Add a window, and return what speaks against going on."""
        if not PACE.follow(share) and share > MAX_CPU_SHARE:
            self._excess_s = 0.0
            return ""
        if not self._excess_s:
            self._judged_s = 0.0
        self._judged_s += elapsed_s
        self._excess_s = max(0.0, self._excess_s + (share - MAX_CPU_SHARE) * elapsed_s)
        if self._excess_s < MAX_EXCESS_S:
            return ""
        mean, time_s = MAX_CPU_SHARE + self._excess_s / self._judged_s, self._judged_s
        # The next part is judged by what is used without this one.
        self._excess_s = 0.0
        return f"in {time_s:.0f} s it used {mean:.1%} of a core, of at most {MAX_CPU_SHARE:.0%}"


def _find_ban() -> str:
    if files.is_disabled():
        return f"{files.DISABLE_FILE} is there"
    held, limit = files.mapped_bytes(), _limit_bytes()
    if held > limit:
        return f"it held {held >> 20} MB of memory, of at most {limit >> 20} MB"
    return ""


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
