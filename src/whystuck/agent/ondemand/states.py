"""How far a trace is, told from what can be seen from outside; pure.

Kineto says with each poll whether a trace is active in it, ours or the user's own. It writes to
``NAME.tmp`` from the moment it begins, and renames that when all is written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from whystuck.evidence.agent import ENDED, TraceState

NONE = -1
"""No such file."""
GROWTH_GRACE_NS = 60_000_000_000
"""How long a file that is being written may stay as it is."""
_IDLE_POLLS = 2


@dataclass(frozen=True)
class Case:
    """The trace of one process. Times are wall-clock, in ns; 0 is not known or not yet.

    ``start_ns`` to ``end_ns`` is the window that was asked for, and ``wake_ns`` when Kineto has to
    have begun with it, which drops it otherwise; iterations have none. ``stop_ns`` is when it is
    given up. ``seen_ns`` is when the first sign of it came, ``was_busy`` whether a poll told of a
    trace, ``idle_polls`` how often the process has asked since without one in it.
    """

    state: TraceState = TraceState.PENDING
    reason: str = ""
    wake_ns: int = 0
    start_ns: int = 0
    end_ns: int = 0
    stop_ns: int = 0
    sent_ns: int = 0
    seen_ns: int = 0
    collecting_ns: int = 0
    was_busy: bool = False
    idle_polls: int = 0
    part_bytes: int = NONE
    head_bytes: int = NONE
    grown_ns: int = 0

    @property
    def is_ended(self) -> bool:
        """Whether nothing more comes."""
        return self.state in ENDED

    @property
    def is_late(self) -> bool:
        """Whether it began too late for its window, as far as is known."""
        return 0 < self.wake_ns < self.seen_ns and not self.was_busy


@dataclass(frozen=True)
class Look:
    """What is seen at one moment.

    ``is_busy`` is what a poll said that came since the look before, None when none came. Sizes are
    those of the file that is being written and of the one that is whole; `NONE` is no such file.
    ``part_ns`` is when the former was last changed, 0 when that is not known.
    """

    now_ns: int
    is_alive: bool = True
    is_busy: bool | None = None
    part_bytes: int = NONE
    file_bytes: int = NONE
    part_ns: int = 0


def send(
    case: Case,
    *,
    now_ns: int,
    start_ns: int = 0,
    end_ns: int = 0,
    stop_ns: int = 0,
    warmup_ns: int = 0,
) -> Case:
    """Note that the request was given to the process.

    Args:
        case: What was known.
        now_ns: When.
        start_ns: When its window opens, 0 for iterations.
        end_ns: When its window closes, 0 for iterations.
        stop_ns: When to give it up; 0 keeps the time.
        warmup_ns: How long before the window Kineto has to begin.

    Returns:
        The trace, warming up.
    """
    return replace(
        case,
        state=TraceState.WARM_UP,
        reason="",
        sent_ns=now_ns,
        wake_ns=max(0, start_ns - warmup_ns),
        start_ns=start_ns,
        end_ns=end_ns,
        stop_ns=stop_ns or case.stop_ns,
    )


def advance(case: Case, look: Look) -> Case:
    """Tell how far a trace is.

    Args:
        case: What was known.
        look: What is seen now.

    Returns:
        What is known now; ``WRITTEN`` as soon as Kineto has renamed its file.
    """
    if case.is_ended:
        return case
    if look.file_bytes >= 0 and case.sent_ns:
        return replace(case, state=TraceState.WRITTEN, reason="", part_bytes=look.file_bytes)
    if not look.is_alive:
        return _end(case, TraceState.DIED, _DEATHS[case.state])
    if case.state is TraceState.PENDING:
        return _wait_for_poll(case, look)
    return _follow(_note_signs(case, look), look)


_DEATHS = {
    TraceState.PENDING: "the process ended before it could be asked",
    TraceState.WARM_UP: "the process ended before the trace began",
    TraceState.COLLECTING: "the process ended while it was traced",
    TraceState.WRITING: "the process ended while it wrote the trace",
}


def _end(case: Case, state: TraceState, reason: str) -> Case:
    return replace(case, state=state, reason=reason)


def _wait_for_poll(case: Case, look: Look) -> Case:
    if look.is_busy:
        case = replace(case, reason=OWN_PROFILER)
    if case.stop_ns and look.now_ns >= case.stop_ns:
        reason = "gave up waiting: " + (case.reason or "the process does not ask for work")
        return _end(case, TraceState.EXPIRED, reason)
    return case


OWN_PROFILER = "the job's own profiler runs; the trace begins after it"


def _note_signs(case: Case, look: Look) -> Case:
    """Note the signs that a trace is active, and whether its file grows."""
    is_sign = look.part_bytes >= 0 or look.is_busy is True
    if is_sign and not case.seen_ns:
        # The file tells the time better than the look, if its clock is ours.
        is_told = case.sent_ns <= look.part_ns <= look.now_ns
        case = replace(case, seen_ns=look.part_ns if is_told else look.now_ns)
    if look.is_busy is not None and case.seen_ns:
        idle_polls = 0 if look.is_busy else case.idle_polls + 1
        case = replace(case, idle_polls=idle_polls, was_busy=case.was_busy or look.is_busy)
    if look.part_bytes >= 0 and case.head_bytes < 0:
        case = replace(case, head_bytes=look.part_bytes)
    if look.part_bytes > case.part_bytes:
        case = replace(case, grown_ns=look.now_ns)
    return replace(case, part_bytes=max(case.part_bytes, look.part_bytes))


def _follow(case: Case, look: Look) -> Case:
    # Kineto would be at work on a trace that it had not dropped, or it would be there.
    if case.idle_polls >= (1 if case.is_late else _IDLE_POLLS):
        return _tell_loss(case, look)
    is_writing = case.part_bytes > case.head_bytes and look.now_ns >= case.end_ns
    if is_writing:
        case = replace(case, state=TraceState.WRITING, reason="")
    elif case.seen_ns and case.state is TraceState.WARM_UP and _is_open(case, look):
        case = replace(case, state=TraceState.COLLECTING, reason="", collecting_ns=look.now_ns)
    return _give_up(case, look)


def _is_open(case: Case, look: Look) -> bool:
    return look.now_ns >= case.start_ns and not case.is_late


TOO_LATE = "Kineto woke when its window had begun already, and dropped it"
_NOTHING_BEGAN = (
    "Kineto was asked and began nothing: the process makes no steps, or an earlier request"
    " waits in it"
)
_UNFINISHED = "Kineto did not finish its file, as on a disk that is full"


def _tell_loss(case: Case, look: Look) -> Case:
    """Tell why there is no file: Kineto says that it has nothing to do any more."""
    if look.part_bytes < 0:
        reason = "Kineto wrote no file: its folder is gone, full, or not to be written to"
        return _end(case, TraceState.FAILED, reason)
    if case.state is TraceState.WRITING:
        return _end(case, TraceState.FAILED, _UNFINISHED)
    if case.is_late:
        return _end(case, TraceState.FAILED, TOO_LATE)
    return _end(case, TraceState.CANCELLED, "the job's own profiler began, and Kineto dropped this")


def _give_up(case: Case, look: Look) -> Case:
    if not case.stop_ns or look.now_ns < case.stop_ns:
        return case
    if case.state is TraceState.WRITING:
        is_alive = look.now_ns - case.grown_ns < GROWTH_GRACE_NS
        return case if is_alive else _end(case, TraceState.EXPIRED, "its file grows no more")
    if case.state is TraceState.COLLECTING:
        return _end(case, TraceState.EXPIRED, case.reason or "the trace does not come to its end")
    return _end(
        case, TraceState.EXPIRED, case.reason or "Kineto took the request, but began nothing"
    )
