"""The trace of one process: what it is asked, and how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from whystuck.agent.interfaces import FabricPoll
from whystuck.agent.ondemand import guards
from whystuck.agent.ondemand.config_text import (
    START_DELAY_MS,
    RawConfig,
    Timing,
    make_config,
)
from whystuck.agent.ondemand.guards import Answer, CpuWatch, Signs, Verdict
from whystuck.agent.ondemand.job_folders import MarkFolder
from whystuck.agent.ondemand.jobs import Job
from whystuck.agent.ondemand.raw_files import RawFile, watch_path
from whystuck.agent.ondemand.states import TOO_LATE, Case, Look, advance, send
from whystuck.agent.ondemand.stepping import StepWatch
from whystuck.agent.processes.step_counter import StepCounter
from whystuck.collect.beats import read_beat
from whystuck.evidence.agent import ProcessEntry, TraceProgress, TraceRequest, TraceState
from whystuck.evidence.errors import UsageError

NS_A_MS = 1_000_000
# Kineto's thread looks at its request once a second; what has begun by then was dropped.
TICK_MS = 1_000
# How late it may wake for that: up to 250 ms were seen on a quiet machine.
LEAD_MS = 400
_NOTED_MS = 200
_REST_MS = 100
AHEAD_NS = 15_000 * NS_A_MS
"""How long before a time that was asked for a process is told; it asks every five seconds."""
DROPPED_NS = 2_500 * NS_A_MS
# A window that is not at its end by then waits for the GIL, or for a device.
OVERDUE_NS = 20_000 * NS_A_MS
PROBE_MS = 50
FIRST_PAUSE_NS = 900 * NS_A_MS
"""How long after a request that came to nothing the same is sent again, at first."""
_MAX_TRIES = 3
ACTIVITIES = 2
"""The bit of a poll without which a trace is active in the process."""


@dataclass
class Run:
    """The trace of one process for one request."""

    job: Job
    entry: ProcessEntry
    case: Case
    file: RawFile
    steps: StepWatch
    cpu: CpuWatch
    make_file: Callable[[Run], RawFile]
    choose: Callable[[Run, int], bool]
    """Called while the first process of a job is told, to set what holds for all."""
    counter: StepCounter | None = None
    """The count of its steps at any moment; without it they are known from heartbeats, or not."""
    job_dir: str = ""
    mark_folders: tuple[MarkFolder, ...] = ()
    """Where the probe of the process looks for what is said of it."""
    has_device: bool = False
    is_probe: bool = False  # the short trace that goes before the one with stacks
    is_probed: bool = False
    is_finishing: bool = False
    is_parked: bool = False
    """Whether its file waits for those of other ranks, to be compared with them."""
    is_kept: bool = False
    """Whether Kineto's own file is the one that is told of."""
    is_rescued: bool = False
    tries: int = 0
    text: str = ""
    pause_ns: int = 0
    note: str = ""
    """What is to be told with the trace, beside its state."""
    target: str = ""
    target_bytes: int = 0
    ended_ns: int = 0
    _marks: set[str] = field(default_factory=set)
    _left: list[RawFile] = field(default_factory=list)
    """Where traces went that were asked for before this one."""

    def answer(self, poll: FabricPoll) -> str:
        """Take a poll of the process, and return what it is told."""
        is_busy = not poll.wants & ACTIVITIES
        if self.case.sent_ns:
            self.look(poll.time_ns, is_busy=is_busy)
        if self.case.sent_ns or self.case.is_ended:
            return "" if is_busy else self._repeat(poll.time_ns)
        if is_busy:
            self.case = advance(self.case, Look(poll.time_ns, is_busy=True))
            return ""
        return self._decide(poll.time_ns)

    def note_steps(self) -> None:
        """Read how many steps it has made: what its last poll told may be two seconds old."""
        if self.counter is not None:
            for one in self.counter.read():
                self.steps.note(one.steps, one.time_ns)
        elif self.job_dir and (beat := read_beat(Path(self.job_dir) / f"beat-{self.file.pid}")):
            self.steps.note(beat.optimizer_steps, beat.wall_ns)

    def judge(self, now_ns: int) -> Verdict:
        """Tell what may be asked of the process now."""
        if reason := guards.find_disarmed(self.job_dir, self.file.pid):
            return Verdict(Answer.REFUSE, reason)
        if self.counter is not None:
            self.note_steps()
        signs = Signs(
            self.steps,
            now_ns,
            beat_age_s=guards.read_beat_age_s(self.job_dir, self.file.pid),
            cpu_share=self.cpu.share(now_ns),
            watched_ns=self.cpu.watched_ns(now_ns),
        )
        job = self.job
        return guards.judge(
            signs, iterations=job.iterations, stacks=job.stacks, is_probed=self.is_probed
        )

    @property
    def is_ended(self) -> bool:
        """Whether nothing more comes of it."""
        return self.case.is_ended and not (self.is_finishing or self.is_parked)

    def restart(self, reason: str) -> None:
        """Forget the trace that was written, and wait for the next poll of the process.

        The folder stays: Kineto may have a request twice, and prints an error where it is gone.
        """
        self.file.empty()
        self._left.append(self.file)
        self.is_parked = self.is_probe = False
        self.case = Case(reason=reason, stop_ns=self.job.stop_ns)

    def refuse(self, reason: str) -> None:
        """End it before it has begun."""
        self.end(TraceState.REFUSED, reason)

    def end(self, state: TraceState, reason: str = "") -> None:
        """Set how it ended."""
        self.case = replace(self.case, state=state, reason=reason)

    def _decide(self, now_ns: int) -> str:
        if now_ns < self.job.start_time_ms * NS_A_MS - self.warmup_ms * NS_A_MS - AHEAD_NS:
            # Kineto would keep it till then, and take no other one; it cannot be taken back.
            self.case = replace(self.case, reason="waits for the time that was asked for")
            return ""
        verdict = self.judge(now_ns)
        if verdict.answer is Answer.REFUSE:
            self.refuse(verdict.reason)
            return ""
        if verdict.answer is Answer.WAIT:
            self.case = replace(self.case, reason=verdict.reason)
            return ""
        self.is_probe = verdict.answer is Answer.SEND_PROBE
        if not (self.is_probe or self.job.is_chosen):
            self.job.is_chosen = self.choose(self, now_ns)
            if not self.job.is_chosen:
                return ""
        try:
            self._set_file()
            text = self._make_text(now_ns)
        except (OSError, UsageError) as error:
            self.end(TraceState.FAILED, f"it cannot be asked for: {error}")
            return ""
        # A process must not exit while it is traced, nor note anything when the trace is taken
        # down; its probe sees to it.
        self._mark("trace", self._tell_end())
        self.text, self.pause_ns = text, FIRST_PAUSE_NS
        return text

    def _tell_end(self) -> str:
        """Write for the probe when it is over: the time, or the iterations and the last one."""
        iterations, start = self.job.iterations, self.job.start_iteration
        end_count = start + iterations + 1 if iterations and start >= 0 else 0
        end_ns = max(0, self.case.end_ns - self.rest_ms * NS_A_MS)
        return f"{end_ns} {iterations} {end_count}\n"

    def _repeat(self, now_ns: int) -> str:
        """Send it again where nothing came of it, ever more seldom.

        Kineto drops a request for iterations of a process that has made no step yet, and any that
        comes while it holds another one.
        """
        case = self.case
        is_waiting = case.state is TraceState.WARM_UP and not case.seen_ns
        if not (is_waiting and self.job.iterations and self.job.raw is None):
            return ""
        if now_ns < case.sent_ns + self.pause_ns:
            return ""
        self.pause_ns *= 2
        return self.text

    def _set_file(self) -> None:
        is_named = self.job.raw is not None or self.job.request.log_file
        if self.is_probe or not is_named:
            self.file = self.make_file(self)
        else:
            path, entry = (self.job.raw or self.job.request).log_file, self.entry
            self.file = watch_path(path, pid=self.file.pid, host_pid=entry.pid, uid=entry.uid)

    def _make_text(self, now_ns: int) -> str:
        self.tries += 1
        if self.is_probe:
            return self._make_probe(now_ns)
        if self.job.raw is not None:
            return self._pass_on(now_ns, self.job.raw)
        request = self.job.request
        if request.iterations:
            timing = Timing(
                start_iteration=self.job.start_iteration,
                roundup=self.job.roundup,
                warmup_iterations=1 if self.has_device else 0,
            )
            self.case = send(self.case, now_ns=now_ns)
        else:
            timing = self._time_window(now_ns)
        return make_config(request, log_file=self.file.path, trace_id=request.id, timing=timing)

    @property
    def rest_ms(self) -> int:
        """How much longer Kineto takes a window than wanted: its probe ends the trace before."""
        return 0 if self.counter is None else _REST_MS

    @property
    def warmup_ms(self) -> int:
        """How long it warms up before a window of time; a device needs some.

        Kineto is told whole seconds.
        """
        asked_ms = self.job.raw.warmup_ms if self.job.raw else self.job.request.warmup_ms
        wanted_ms = max(asked_ms, TICK_MS if self.has_device else 0)
        return -(-wanted_ms // TICK_MS) * TICK_MS

    def _time_window(self, now_ns: int) -> Timing:
        warmup_ms = self.warmup_ms
        earliest_ms = now_ns // NS_A_MS + TICK_MS + LEAD_MS + warmup_ms
        start_ms = max(self.job.start_ms, earliest_ms)
        late_ms = start_ms - self.job.start_ms if self.job.start_ms else 0
        if late_ms > _NOTED_MS and not self.is_probed:
            since = "was asked for" if self.job.request.start_time_ms else "its peers"
            self.note = f"began {late_ms} ms later than {since}"
        self._send_window(now_ns, start_ms, self.job.request.duration_ms, warmup_ms)
        return Timing(start_time_ms=start_ms, warmup_ms=warmup_ms, rest_ms=self.rest_ms)

    def _send_window(
        self, now_ns: int, start_ms: int, duration_ms: int, warmup_ms: int = 0
    ) -> None:
        end_ns = (start_ms + duration_ms + self.rest_ms) * NS_A_MS
        self.case = send(
            self.case,
            now_ns=now_ns,
            start_ns=start_ms * NS_A_MS,
            end_ns=end_ns,
            stop_ns=end_ns + OVERDUE_NS,
            warmup_ns=warmup_ms * NS_A_MS,
        )

    def _make_probe(self, now_ns: int) -> str:
        request = TraceRequest(id=self.job.request.id, duration_ms=PROBE_MS)
        start_ms = now_ns // NS_A_MS + TICK_MS + LEAD_MS
        self._send_window(now_ns, start_ms, PROBE_MS)
        timing = Timing(start_time_ms=start_ms, rest_ms=self.rest_ms)
        return make_config(request, log_file=self.file.path, trace_id=request.id, timing=timing)

    def _pass_on(self, now_ns: int, raw: RawConfig) -> str:
        added: dict[str, str] = {}
        warmup_ms = raw.warmup_ms
        if not self.has_device and "ACTIVITIES_WARMUP_PERIOD_SECS" not in raw.lines:
            # It is for devices, and clients of dynolog cannot set it.
            added["ACTIVITIES_WARMUP_PERIOD_SECS"], warmup_ms = "0", 0
        if raw.iterations:
            self.case = send(self.case, now_ns=now_ns)
        else:
            now_ms = now_ns // NS_A_MS
            start_ms = raw.start_time_ms or now_ms + warmup_ms + START_DELAY_MS
            if self.rest_ms:
                added["ACTIVITIES_DURATION_MSECS"] = str(raw.duration_ms + self.rest_ms)
            self._send_window(now_ns, max(start_ms, now_ms), raw.duration_ms, warmup_ms)
        return raw.text(self.job.request.id, added)

    def look(self, now_ns: int, *, is_busy: bool | None = None, is_alive: bool = True) -> bool:
        """See how far it is.

        Args:
            now_ns: The time.
            is_busy: What a poll of the process said that has just come.
            is_alive: Whether the process is there.

        Returns:
            Whether something is new.
        """
        before = self.case
        part_bytes, file_bytes = self.file.look() if before.sent_ns else (-1, -1)
        part_ns = self.file.changed_ns() if part_bytes >= 0 and not before.seen_ns else 0
        self.case = advance(
            before, Look(now_ns, is_alive, is_busy, part_bytes, file_bytes, part_ns)
        )
        if self.case.state is TraceState.WRITTEN and self.is_probe:
            self.is_probed = True
            self.restart("a short trace without stacks came back, the one with stacks is next")
        elif self.case.reason == TOO_LATE and self.tries < _MAX_TRIES and self.job.raw is None:
            self.restart("Kineto woke too late for its window, and is asked again")
        elif self._was_dropped(now_ns, is_busy=is_busy):
            self.case = replace(self.case, state=TraceState.PENDING, sent_ns=0, seen_ns=0)
        return (before.state, before.reason) != (self.case.state, self.case.reason)

    def _was_dropped(self, now_ns: int, *, is_busy: bool | None) -> bool:
        """Tell whether Kineto woke too late for the time when the window was to open."""
        case = self.case
        return (
            is_busy is False
            and case.state is TraceState.WARM_UP
            and not case.seen_ns
            and 0 < case.start_ns < now_ns - DROPPED_NS
            and self.tries < _MAX_TRIES
            and self.job.raw is None
        )

    def check_stepping(self, now_ns: int) -> None:
        """See whether its iterations can still come, and let the probe end it if not."""
        is_waiting = self.case.state in (TraceState.WARM_UP, TraceState.COLLECTING)
        if self.counter is not None:
            self.note_steps()
        if not (self.job.iterations and is_waiting) or self.steps.is_moving(now_ns) is not False:
            return
        still_s = self.steps.still_s(now_ns)
        reason = f"the rank has made no step for {still_s:.0f} s, and the trace waits for its steps"
        self.case = replace(self.case, reason=reason)
        self.rescue()

    @property
    def can_rescue(self) -> bool:
        """Whether there is a probe that can make steps."""
        return bool(self.job_dir) or self.counter is not None

    def rescue(self) -> None:
        """Let the probe make the steps that Kineto waits for."""
        if not self.is_rescued and self.can_rescue:
            self.is_rescued = self._mark("rescue")
            self.note = "the rank stopped stepping, and the trace was ended early"

    def _mark(self, kind: str, word: str = "") -> bool:
        """Say something to the probe of the process."""
        name = f"{kind}-{self.file.pid}"
        self._marks.add(name)
        marked = [folder.leave(name, word) for folder in self.mark_folders]
        return any(marked)

    @property
    def is_marked(self) -> bool:
        """Whether something is said to the probe."""
        return bool(self._marks)

    def unmark(self) -> None:
        """Take back what was said to the probe; what another trace has said stays."""
        for name in self._marks:
            for folder in self.mark_folders:
                folder.take_back(name)
        self._marks.clear()

    def clean_up(self, *, is_held: bool, is_marked_anew: bool = False) -> None:
        """Remove what was left for the time of the trace, unless Kineto may still hold it.

        ``is_marked_anew`` tells that what is said to the probe now is said by another trace.
        """
        if is_held:
            return
        if self.counter is not None:
            self.counter.close()
        if not is_marked_anew:
            self.unmark()
        for file in self._left if self.is_kept else (self.file, *self._left):
            file.remove()
        for file in (self.file, *self._left):
            file.reach.close()

    def progress(self) -> TraceProgress:
        """Return how far it is, in the words of the agent's interface."""
        case = self.case
        if self.is_finishing or self.is_parked:
            case = replace(case, state=TraceState.WRITING, reason="its file is being finished")
        return TraceProgress(
            request_id=self.job.request.id,
            pid=self.entry.pid,
            rank=self.entry.rank,
            node=self.entry.node,
            state=case.state,
            reason=case.reason or self.note,
            file=self.target,
            file_bytes=self.target_bytes,
            requested_ns=self.job.requested_ns,
            collecting_ns=case.collecting_ns or case.seen_ns,
            ended_ns=self.ended_ns,
        )
