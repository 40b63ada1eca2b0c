"""The watcher: it follows a job whose command another process has started.

One thread hears what that process says, and looks at the ranks five times a second. Output arrives
in threads of its own, probes are heard by the listener's, and evidence is taken in another one.
Nothing here holds up the job: a file system that hangs stops this process only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from whystuck import __version__
from whystuck.evidence.records import IncidentRecord
from whystuck.launch.agent_child import AGENT_LOG_FILE, make_agent
from whystuck.launch.background import Background, describe_fault
from whystuck.launch.incidents.ending import Ending
from whystuck.launch.incidents.fault_log import FaultLog
from whystuck.launch.incidents.folder import EvidenceFolder, as_text, new_job_record
from whystuck.launch.incidents.held_scene import HeldScene
from whystuck.launch.incidents.keeper import IncidentKeeper
from whystuck.launch.incidents.late import list_late_threads
from whystuck.launch.incidents.report_imports import ReportImports
from whystuck.launch.incidents.round_records import RoundRecords
from whystuck.launch.incidents.scene_hold import SceneHold
from whystuck.launch.incidents.slow_watch import SlowWatch
from whystuck.launch.incidents.torch_files import TorchFiles
from whystuck.launch.link import EndProgress, Link, wait_readable
from whystuck.launch.listener import Listener
from whystuck.launch.node_watch import NodeWatch
from whystuck.launch.options import RunOptions
from whystuck.launch.output.rank_logs import RankLogs
from whystuck.launch.output.rank_outputs import JobOutputs, RelayEnd
from whystuck.launch.output.streams import OutputKinds
from whystuck.launch.processes.exits import open_pidfd, read_shell_code
from whystuck.launch.processes.outside import OutsideSignal, copy_signal
from whystuck.launch.processes.rank_table import RankTable
from whystuck.launch.restarts.ending import RoundEnd
from whystuck.launch.running import write_running_job
from whystuck.launch.stalls.stall import StallClock
from whystuck.launch.stalls.stall_watch import StallWatch
from whystuck.launch.switch.switch_file import Switches
from whystuck.safe_text.escaping import show_line

STALL_EXIT = 124

_TICK_S = 0.2
_DRAIN_S = 3.0
_EXITS_S = 1.0
_WORK_S = 15.0
# How much later than a rank we may see a signal that the terminal sent to both, on a loaded node.
_SIGNAL_SLACK_NS = 2_000_000_000


class Supervisor:
    """One round of one job on this node."""

    def __init__(
        self,
        options: RunOptions,
        evidence: EvidenceFolder,
        job_dir: Path,
        link: Link,
        kinds: OutputKinds,
        relay: RelayEnd,
    ) -> None:
        """Prepare everything that can fail before the command is started."""
        self._options = options
        self._evidence = evidence
        self._job_dir = job_dir
        self._link, self._progress = link, EndProgress(link)
        self._say = relay.say
        self._table = RankTable(job_dir, evidence.node)
        self._logs = RankLogs(evidence, self._table)
        self._exception_seen = threading.Event()
        self._torch_files = TorchFiles(evidence, options, self._table, self._say)
        self._fault_log = FaultLog(evidence)
        self._background = Background(self._fault_log.note, self._say, self._listener_may_release)
        self._outputs = JobOutputs(
            kinds, relay, self._logs.launcher, self._logs.of_pid, self._fault_log.note
        )
        self._listener = Listener(job_dir, self._table, self._outputs, self._exception_seen.set)
        self._node = NodeWatch(evidence, self._table)
        self._keeper = self._make_keeper(has_color=kinds.are_terminals[1])
        self._job = self._keeper.job
        self._records = RoundRecords(evidence, self._table, marks=self._node.marks)
        self._switches = Switches(options.switch, job_dir, self._note_and_say)
        log, note = evidence.round_dir / evidence.node / AGENT_LOG_FILE, self._fault_log.note
        self._agent = make_agent(job_dir, log, note, evidence.later, is_wanted=options.agent)
        self._exit_scene_taken = False
        self._attempt = self._command_pid = 0
        self._command_pidfd: int | None = None
        self._code: int | None = None
        self._failed_to_start = False
        self._outside = OutsideSignal()
        self._clock = StallClock(options.limit, time.monotonic())
        self._hold = self._make_hold()
        self._held = HeldScene(
            self._hold, self._keeper, self._table, self._listener, self._outside, self._say
        )
        self._stalls = StallWatch(
            options, self._keeper, self._table, self._clock, self._background, self._outside,
            self._held,
        )  # fmt: skip
        self._imports = ReportImports()
        seen = self._node.cpu, self._node.garbage
        self._slow = SlowWatch(self._keeper, self._table, self._fault_log.note, *seen)

    def _make_hold(self) -> SceneHold:
        hold = SceneHold(
            self._options.crash_hold_s,
            self._job_dir,
            self._evidence.root,
            lambda pids: self._link.send("hold", pids=pids),
        )
        self._table.on_failure = hold.freeze
        return hold

    def _make_keeper(self, *, has_color: bool) -> IncidentKeeper:
        return IncidentKeeper(
            self._options,
            self._evidence,
            self._table,
            self._say,
            self._torch_files,
            self._node,
            self._logs,
            self._fault_log,
            new_job_record(as_text(self._options.command), self._evidence.node, __version__),
            self._progress.tell,
            has_color=has_color,
        )

    def run(self, front_pid: int) -> RoundEnd:
        """Follow the job from before its start to after its end; return how it ended, and why."""
        try:
            self._prepare(front_pid)
            self._follow()
            self._safely(self._agent.end)
            return RoundEnd(0) if self._code is None else self._finish(self._code)
        finally:
            self._safely(self._agent.stop)

    def _prepare(self, front_pid: int) -> None:
        self._fault_log.start_round(self._job.command, self._options.boot_check)
        self._safely(self._node.start)
        self._switches.start()
        write_running_job(
            self._job_dir, self._job.command, self._evidence.node, self._evidence.root, front_pid
        )
        self._safely(self._agent.start)
        self._listener.start()
        variables = {
            **self._torch_files.variables,
            **self._switches.variables,
            **self._agent.variables,
            "WHYSTUCK_JOB_DIR": str(self._job_dir),
        }
        if self._hold.hold_s is not None:
            variables["WHYSTUCK_HOLD_S"] = str(self._hold.hold_s)
        self._link.send("ready", variables=variables)
        self._outputs.start()
        self._table.start()
        self._torch_files.start()
        self._keeper.write_job()

    def _follow(self) -> None:
        """Hear and look until the command has ended, or could not be started."""
        while self._code is None and not self._failed_to_start:
            self._hear(_TICK_S)
            if self._command_pid:
                self._safely(self._agent.look)
                self._safely(self._tick)
                self._safely(self._look_at_node)

    def _safely(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - our own fault must not end the job
            self._fault_log.note(describe_fault(error))

    def _look_at_node(self) -> None:
        self._node.look(time.monotonic())
        self._fault_log.note_ranks(self._table)

    # ------------------------------------------------------------------------------- the loop

    def _hear(self, timeout_s: float) -> None:
        """Take what the front says; without it, wait for the end of the command ourselves."""
        if self._link.is_closed:
            self._wait_alone(timeout_s)
            return
        message = self._link.receive(timeout_s)
        if message is None:
            return
        kind = message["kind"]
        if kind == "started":
            self._command_pid = int(message["pid"])
            self._hold.command_pid = self._stalls.command_pid = self._command_pid
            self._command_pidfd = open_pidfd(self._command_pid)
        elif kind == "signal":
            self._safely(lambda: self._note_outside(message))
            self._listener.release()
        elif kind == "ended":
            self._code = int(message["code"])
        elif kind == "failed":
            self._failed_to_start = True

    def _wait_alone(self, timeout_s: float) -> None:
        """Wait for the command whose front was killed: the job goes on, and so do we."""
        if not self._command_pid or self._command_pidfd is None:
            self._failed_to_start = True
        elif wait_readable(self._command_pidfd, timeout_s):
            self._code = read_shell_code(self._command_pid, self._command_pidfd)

    def _note_outside(self, message: dict[str, Any]) -> None:
        """Note the first signal from outside, and whether the job moved when it came."""
        is_first = not self._outside.is_pending
        self._outside.note(message)
        if not is_first:
            return
        if self._table.processes():
            now_s = time.monotonic()
            self._outside.idle_s = round(self._clock.stalled_s(now_s), 1)
            is_well = self._stalls.incident is None and not self._has_failed()
            self._outside.is_moving = is_well and self._clock.is_moving(now_s)
        self._fault_log.note(self._outside.describe())

    def _has_failed(self) -> bool:
        """Return whether a rank had failed before an interrupt that came this moment.

        At a terminal the ranks get SIGINT with us, and may be gone before we are run again.
        """
        is_held = self._exit_scene_taken or self._exception_seen.is_set()
        before_ns = time.time_ns() - _SIGNAL_SLACK_NS
        return is_held or self._table.has_failed_before(before_ns)

    def _tick(self) -> None:
        now_s = time.monotonic()
        self._note_exits()
        counters, communicated = self._table.counters()
        has_moved = self._clock.look(counters, has_communicated=communicated, now_s=now_s)
        if has_moved:
            self._outside.note_progress(time.time_ns())
        if has_moved and not self._outside.is_pending:  # what moves after a signal is the end
            self._stalls.note_moved()
        self._held.look()
        if self._background.is_busy:
            return
        self._imports.look(has_ranks=bool(counters))
        self._choose_work(now_s, watched=bool(counters))
        if has_moved and not self._background.is_busy and self._slow.is_due(now_s):
            self._background.start(self._slow.look)

    def _choose_work(self, now_s: float, *, watched: bool) -> None:
        if self._attempt != self._table.attempt:
            self._note_restart()
        elif not self._exit_scene_taken and self._sees_failure():
            self._exit_scene_taken = True
            self._background.start(self._held.take_crash)
        elif self._stalls.incident is not None:
            self._stalls.follow(self._stalls.incident, now_s)
        elif self._stalls.is_due(now_s, watched=watched):
            self._stalls.open(now_s)

    def _sees_failure(self) -> bool:
        is_raising = self._exception_seen.is_set() or self._held.is_frozen
        return is_raising or bool(self._table.crashing_pids())

    def _note_restart(self) -> None:
        """Report one attempt that failed; while it is, the next may fail already."""
        failed, self._attempt = self._attempt, self._attempt + 1
        self._fault_log.note_attempt(self._attempt)
        self._exit_scene_taken = False
        self._exception_seen.clear()
        self._listener.hold_again()
        self._hold.renew()
        record = IncidentRecord(
            kind="exit", opened_ns=time.time_ns(), world_size=self._table.world_size
        )
        self._background.start(lambda: self._keeper.close_exit(record, failed))

    def _listener_may_release(self) -> None:
        if self._exit_scene_taken and not self._held.is_active:
            self._held.let_go()

    # ------------------------------------------------------------------------------- the end

    def _finish(self, code: int) -> RoundEnd:
        if self._stalls.was_killed:
            code = STALL_EXIT
        self._progress.begin(list_late_threads() if self._evidence.stage else [])
        self._held.drop("the job has ended")
        self._end_work()
        self._progress.tell()
        self._listener.release()
        self._table.settle()
        self._table.taking_down = True
        if self._outputs.wait_until_drained(_DRAIN_S, hangs=self._evidence.hangs):
            self._logs.flush()
        self._table.wait_for_exits(_EXITS_S)
        self._note_exits()
        self._listener.stop()
        self._switches.stop()
        self._progress.tell()
        self._records.finish()
        self._progress.tell()
        self._job.ended_ns, self._job.exit_code = time.time_ns(), code
        self._job.restarts = self._options.restarts + self._table.attempt
        copy_signal(self._outside.as_record(), self._job)
        self._keeper.write_job()
        self._report_end(code)
        self._evidence.later(self._logs.close)
        self._evidence.later(self._torch_files.close)
        self._node.close()
        self._fault_log.end_round(code)
        return self._keeper.describe_end(code)

    def _end_work(self) -> None:
        """Wait for the report that is being made, and make those of attempts that failed since."""
        deadline_s = time.monotonic() + _WORK_S
        while True:
            self._background.join(max(0.0, deadline_s - time.monotonic()))
            if self._background.is_busy or self._attempt == self._table.attempt:
                return
            self._note_restart()

    def _tell_cause(self, code: int) -> None:
        """Tell the front why the round ended: what is still to be written may hang."""
        self._link.send("cause", ending=msgspec.to_builtins(self._keeper.describe_end(code)))

    def _report_end(self, code: int) -> None:
        self._keeper.on_cause = lambda: self._safely(lambda: self._tell_cause(code))
        try:
            if self._stalls.incident and self._stalls.moved_s and not self._outside.is_pending:
                self._stalls.take_moved()()
            ending = Ending(code, self._outside, self._stalls.incident, self._stalls.was_killed)
            ending.report(self._keeper, self._table)
            if not code:
                self._slow.finish()
        except Exception as error:  # noqa: BLE001 - the exit code of the job comes first
            self._fault_log.note(describe_fault(error))
            self._say(f"whystuck: a report could not be made: {show_line(error)}\n")

    def _note_exits(self) -> None:
        all_ended = self._table.take_ended()
        self._fault_log.note_end(*all_ended)
        for ended in all_ended:
            if ended.exit is not None:
                self._evidence.write_exit(ended.rank, ended.exit)
                self._node.write_looks(self._evidence.records_of(ended.rank), ended)
            self._records.keep(ended)

    def _note_and_say(self, text: str) -> None:
        self._fault_log.note(f"{text[:1].upper()}{text[1:]}.")
        self._say(f"whystuck: {show_line(text)}\n")
