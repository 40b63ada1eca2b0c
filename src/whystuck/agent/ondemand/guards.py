"""What is safe to ask of a process now; each refusal says why, and what to do instead.

An iteration trace of a rank that does not step holds the only place that Kineto has for a request,
and Python stacks of a process whose GIL is never freed hold its profiler's thread, both for ever.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice
from pathlib import Path

from whystuck.agent.ondemand.stepping import NS_A_SECOND, StepWatch
from whystuck.collect.beats import read_beat
from whystuck.collect.disarmed import explain_disarmed, read_disarmed, refuses_traces
from whystuck.evidence.agent import ProcessEntry, ProcessKind, TraceRequest

# The probe's thread needs the GIL for its heartbeat once a second.
STALE_BEAT_S = 4.0
# A process without a probe that does nothing for this long makes no steps either.
IDLE_NS = 3 * NS_A_SECOND
_IDLE_SHARE = 0.005
# A process may have a million of each, to hold the agent up.
_MAX_FILES = 1 << 16
_MAX_THREADS = 1 << 13
_MIN_LOOK_NS = 20_000_000
# What a poll costs the process itself, which comes just before it is judged.
_POLL_NS = 1_000_000
_USE_TIME = "ask for a time instead, with --duration"


class Answer(Enum):
    """What to do with a request when its process asks for work."""

    SEND = auto()
    SEND_PROBE = auto()
    """First a short trace without stacks, which shows that its profiler answers."""
    WAIT = auto()
    REFUSE = auto()


@dataclass(frozen=True)
class Verdict:
    """An answer, and why."""

    answer: Answer
    reason: str = ""


@dataclass(frozen=True)
class Signs:
    """What is known of a process when it asks for work.

    ``beat_age_s`` is the age of the probe's last heartbeat, -1 without a probe. ``cpu_share`` is
    what it has used of a core since the request came, -1 when that is not known yet, and
    ``watched_ns`` the time since then.
    """

    steps: StepWatch
    now_ns: int
    beat_age_s: float = -1.0
    cpu_share: float = -1.0
    watched_ns: int = 0

    @property
    def is_still(self) -> bool:
        """Whether it looks stuck: it steps no more, or uses no CPU time."""
        moving = self.steps.is_moving(self.now_ns)
        if moving is not None:
            return not moving
        return self.watched_ns >= IDLE_NS and 0 <= self.cpu_share < _IDLE_SHARE

    @property
    def is_unclear(self) -> bool:
        """Whether it may be stuck, and has been watched too shortly to tell."""
        is_idle = self.cpu_share < _IDLE_SHARE
        return self.steps.is_moving(self.now_ns) is None and is_idle and self.watched_ns < IDLE_NS

    @property
    def is_gil_held(self) -> bool:
        """Whether the probe's thread cannot run."""
        return self.beat_age_s > STALE_BEAT_S


def choose_processes(
    entries: list[ProcessEntry], request: TraceRequest
) -> tuple[list[ProcessEntry], list[ProcessEntry]]:
    """Part the processes that match a request into those to trace and those to leave alone.

    Args:
        entries: Those that match.
        request: What somebody wants. Launchers and helpers are traced when they are named.

    Returns:
        Those to trace, not more than the limit, and those left out for the limit.
    """
    named = set(request.pids) - {0}
    wanted = [
        one
        for one in entries
        if one.kind not in (ProcessKind.LAUNCHER, ProcessKind.HELPER)
        or one.pid in named
        or (one.told_pids and one.told_pids[0] in named)
    ]
    limit = max(request.process_limit, 0)
    return wanted[:limit], wanted[limit:]


def judge(signs: Signs, *, iterations: int, stacks: bool, is_probed: bool) -> Verdict:
    """Decide what a process that asks for work is told.

    Args:
        signs: What is known of it.
        iterations: How many are wanted; 0 for a time.
        stacks: Whether Python stacks are wanted.
        is_probed: Whether a short trace without stacks came back just now.

    Returns:
        What to do.
    """
    if iterations:
        verdict = _judge_iterations(signs)
        if verdict.answer is not Answer.SEND:
            return verdict
    if not stacks:
        return Verdict(Answer.SEND)
    if signs.is_gil_held:
        reason = (
            f"its Python threads have not run for {signs.beat_age_s:.0f} s, so the GIL is held, and"
            " stacks need it; ask without --stacks"
        )
        return Verdict(Answer.REFUSE, reason)
    if signs.is_unclear and not is_probed:
        return Verdict(Answer.WAIT, "waits to see whether it runs")
    if signs.is_still and not is_probed:
        return Verdict(Answer.SEND_PROBE, "it stands still: a trace without stacks goes first")
    return Verdict(Answer.SEND)


def _judge_iterations(signs: Signs) -> Verdict:
    steps = signs.steps.steps
    if steps < 0:
        return _judge_without_steps(signs)
    if signs.steps.is_moving(signs.now_ns):
        return Verdict(Answer.SEND)
    still_s = signs.steps.still_s(signs.now_ns)
    if signs.is_still:
        reason = f"it has made no step for {still_s:.0f} s, after {steps}; {_USE_TIME}"
        return Verdict(Answer.REFUSE, reason)
    return Verdict(Answer.WAIT, "waits to see it step")


def _judge_without_steps(signs: Signs) -> Verdict:
    """Judge one without a probe: one that uses no CPU time makes no steps."""
    if signs.cpu_share >= _IDLE_SHARE:
        return Verdict(Answer.SEND)
    if signs.is_still:
        seconds = signs.watched_ns / NS_A_SECOND
        reason = f"it has done nothing for {seconds:.0f} s, so it makes no steps; {_USE_TIME}"
        return Verdict(Answer.REFUSE, reason)
    if signs.cpu_share < 0 and signs.watched_ns >= IDLE_NS:
        return Verdict(Answer.SEND)  # it may not be looked at: as the daemon that we stand in for
    return Verdict(Answer.WAIT, "waits to see whether it runs")


class CpuWatch:
    """The CPU time of a process since the watch began."""

    def __init__(self, pid: int, now_ns: int) -> None:
        """Take the first reading.

        Args:
            pid: The process, by its number on this host.
            now_ns: The time.
        """
        self._pid, self._begin_ns = pid, now_ns
        self._first_ns = read_cpu_ns(pid)

    def watched_ns(self, now_ns: int) -> int:
        """Return for how long it is watched."""
        return max(0, now_ns - self._begin_ns)

    def share(self, now_ns: int) -> float:
        """Return how much of a core it has used beside a poll, -1 as long as that is not known."""
        used_ns = read_cpu_ns(self._pid)
        if min(self._first_ns, used_ns) < 0 or self.watched_ns(now_ns) < _MIN_LOOK_NS:
            return -1.0
        return max(0, used_ns - self._first_ns - _POLL_NS) / self.watched_ns(now_ns)


def read_cpu_ns(pid: int) -> int:
    """Return the CPU time of all threads of a process, -1 when it cannot be read.

    The scheduler's own figures (``/proc/PID/task/TID/schedstat``), as those in ``stat`` come in
    steps of 10 ms.
    """
    total_ns = 0
    try:
        with os.scandir(f"/proc/{pid}/task") as threads:
            for thread in islice(threads, _MAX_THREADS):
                total_ns += _read_thread_ns(thread.path)
    except OSError:
        return -1
    return total_ns


def _read_thread_ns(folder: str) -> int:
    try:
        return int(Path(folder, "schedstat").read_bytes().split(maxsplit=1)[0])
    except (OSError, ValueError, IndexError):
        return 0  # it has just ended


def read_beat_age_s(job_dir: str, pid: int) -> float:
    """Return the age of a rank's last heartbeat in seconds, -1 when it has no probe.

    Args:
        job_dir: The job folder; empty when there is none.
        pid: The process, as it sees itself.
    """
    if not job_dir:
        return -1.0
    beat = read_beat(Path(job_dir) / f"beat-{pid}")
    return -1.0 if beat is None else beat.age_s


def find_disarmed(job_dir: str, pid: int) -> str:
    """Return why the probe of a rank lets it be traced no more, an empty text where it does.

    Args:
        job_dir: The job folder; empty when there is none.
        pid: The process, as it sees itself.
    """
    parts = read_disarmed(Path(job_dir) / f"disarmed-{pid}") if job_dir else {}
    return f"its probe is disarmed: {explain_disarmed(parts)}" if refuses_traces(parts) else ""


def uses_device(pid: int) -> bool:
    """Tell whether a process has an accelerator open, which needs a warm-up before a trace."""
    try:
        with os.scandir(f"/proc/{pid}/fd") as files:
            return any(_is_device(one.path) for one in islice(files, _MAX_FILES))
    except OSError:
        return False


def _is_device(path: str) -> bool:
    try:
        target = os.readlink(path)  # noqa: PTH115 - what it says, not the file
    except OSError:
        return False
    return target.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/davinci"))
