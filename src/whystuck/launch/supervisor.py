"""The supervisor: start the command, watch its ranks, keep its exit code.

One thread waits for signals and looks at the ranks five times a second. Output is copied by the
pump's thread, probes are heard by the listener's, and evidence is taken in a thread of its own, so
that a signal is passed on at once whatever else goes on.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from whystuck import __version__
from whystuck.collect.scene import stacks_signal
from whystuck.collect.stores import open_store
from whystuck.evidence.records import LAUNCHER_LOG_FILE, IncidentRecord
from whystuck.launch import child as children
from whystuck.launch.agent_child import AGENT_LOG_FILE, make_agent
from whystuck.launch.background import Background, describe_fault, say
from whystuck.launch.ending import Ending
from whystuck.launch.fault_log import FaultLog
from whystuck.launch.folder import EvidenceFolder, new_job_record
from whystuck.launch.incidents import Incident, IncidentKeeper
from whystuck.launch.jobdir import make_job_dir
from whystuck.launch.listener import Listener
from whystuck.launch.logfile import LogFile
from whystuck.launch.node_watch import NodeWatch
from whystuck.launch.options import OnStall, RunOptions, check_command
from whystuck.launch.outside import SI_KERNEL, OutsideSignal, copy_signal
from whystuck.launch.rank_logs import RankLogs
from whystuck.launch.rank_table import RankTable
from whystuck.launch.round_records import RoundRecords
from whystuck.launch.running import write_running_job
from whystuck.launch.stall import StallClock
from whystuck.launch.streams import Pump
from whystuck.launch.switch_file import Switches
from whystuck.launch.torch_files import TorchFiles
from whystuck.launch.upload import copying
from whystuck.safe_text.escaping import show_line

STALL_EXIT = 124
INTERRUPTED_EXIT = 130

_TICK_S = 0.2
_RETRY_S = 60.0
_KILL_GRACE_S = 5.0
_DRAIN_S = 3.0
_WORK_S = 15.0
# How much later than a rank we may see a signal that the terminal sent to both, on a loaded node.
_SIGNAL_SLACK_NS = 2_000_000_000
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
_WAITED_FOR = frozenset({*_FORWARDED, *_PASSED_ON, signal.SIGCHLD, signal.SIGWINCH})


def run_job(options: RunOptions) -> int:
    """Run a command under watch and return the exit code for the caller.

    Raises StartError or CommandError when nothing could be started.
    """
    check_command(options.command[0])
    store = open_store(options.evidence_url) if options.evidence_url else None
    with ExitStack() as stack:
        job_dir = stack.enter_context(make_job_dir())
        evidence = EvidenceFolder(options.evidence, socket.gethostname() or "localhost")
        with copying(store, options.evidence_url, evidence, say):
            return Supervisor(options, evidence, job_dir).run()


class Supervisor:
    """One round of one job on this node."""

    def __init__(self, options: RunOptions, evidence: EvidenceFolder, job_dir: Path) -> None:
        """Prepare everything that can fail before the command is started."""
        self._options = options
        self._evidence = evidence
        self._job_dir = job_dir
        self._table = RankTable(job_dir, evidence.node)
        self._pump = Pump()
        self._logs = RankLogs(evidence, self._table)
        self._launcher_log = LogFile(evidence.round_dir / evidence.node / LAUNCHER_LOG_FILE)
        self._exception_seen = threading.Event()
        self._listener = Listener(
            job_dir, self._table, self._pump, self._logs.of_pid, self._exception_seen.set
        )
        self._torch_files = TorchFiles(evidence, options, self._table, say)
        self._fault_log = FaultLog(evidence)
        self._background = Background(self._fault_log.note, self._listener_may_release)
        self._node = NodeWatch(evidence, self._table)
        self._keeper = IncidentKeeper(
            options,
            evidence,
            self._table,
            say,
            self._torch_files,
            self._node,
            self._logs,
            self._fault_log,
            new_job_record(options.command, evidence.node, __version__),
        )
        self._job = self._keeper.job
        self._records = RoundRecords(evidence, self._table)
        self._switches = Switches(options.switch, job_dir, self._note_and_say)
        log = evidence.round_dir / evidence.node / AGENT_LOG_FILE
        self._agent = make_agent(job_dir, log, self._fault_log.note, is_wanted=options.agent)
        self._stall: Incident | None = None
        self._exit_scene_taken = False
        self._attempt = 0
        self._command_pid = 0
        self._moved = threading.Event()
        self._killed_for_stall = False
        self._outside = OutsideSignal()
        # On a terminal the command stays in our process group, or it could not read from there.
        # Elsewhere it gets one of its own, so that a signal to our whole group arrives once.
        self._has_own_group = not os.isatty(0)
        self._clock = StallClock(options.limit, time.monotonic())
        self._next_look_s = 0.0

    def run(self) -> int:
        """Start, watch, end; return the exit code."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
        try:
            return self._run()
        finally:
            self._safely(self._agent.stop)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED_FOR)

    def _run(self) -> int:
        children.become_subreaper()
        self._fault_log.start_round(self._options.command)
        self._safely(self._node.start)
        self._switches.start()
        write_running_job(
            self._job_dir, self._options.command, self._evidence.node, self._evidence.root
        )
        self._safely(self._agent.start)
        process = self._start()
        self._command_pid = process.pid
        self._pump.start()
        self._table.start()
        self._listener.start()
        self._torch_files.start()
        self._keeper.write_job()
        while (status := process.poll()) is None:
            self._wait_for_signal(process)
            self._safely(self._agent.look)
            self._safely(lambda: self._tick(process))
            self._safely(self._look_at_node)
        return self._finish(status)

    def _safely(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - our own fault must not end the job
            self._fault_log.note(describe_fault(error))

    def _look_at_node(self) -> None:
        self._node.look(time.monotonic())
        self._fault_log.note_ranks(self._table)

    def _start(self) -> subprocess.Popen[bytes]:
        files, switches, agent = self._torch_files, self._switches, self._agent
        variables = {**files.variables, **switches.variables, **agent.variables}
        process, out_read, err_read = children.start_captured(
            self._options.command, self._job_dir, variables, own_group=self._has_own_group
        )
        self._pump.add(out_read, 1, self._launcher_log, "out")
        self._pump.add(err_read, 2, self._launcher_log, "err")
        return process

    # ------------------------------------------------------------------------------- the loop

    def _wait_for_signal(self, process: subprocess.Popen[bytes]) -> None:
        info = signal.sigtimedwait(_WAITED_FOR, _TICK_S)
        if info is None or info.si_signo == signal.SIGCHLD:
            return
        if info.si_signo == signal.SIGWINCH:
            self._pump.resize()
            return
        if info.si_signo in _FORWARDED:
            if not self._outside.number:
                self._note_outside(info)
            self._outside.note(info)
            self._listener.release()
        # What the terminal sent has reached the command already when it is in our process group.
        if self._has_own_group or info.si_code != SI_KERNEL:
            process.send_signal(info.si_signo)

    def _note_outside(self, info: signal.struct_siginfo) -> None:
        """Note the first signal from outside, and whether the job moved when it came."""
        self._outside.note(info)
        if self._table.processes():
            now_s = time.monotonic()
            self._outside.idle_s = round(self._clock.stalled_s(now_s), 1)
            self._outside.is_moving = (
                self._stall is None and not self._has_failed() and self._clock.is_moving(now_s)
            )
        self._fault_log.note(self._outside.describe())

    def _has_failed(self) -> bool:
        """Return whether a rank had failed before an interrupt that came this moment.

        At a terminal the ranks get SIGINT with us, and may be gone before we are run again.
        """
        is_held = self._exit_scene_taken or self._exception_seen.is_set()
        before_ns = time.time_ns() - _SIGNAL_SLACK_NS
        return is_held or self._table.has_failed_before(before_ns)

    def _tick(self, process: subprocess.Popen[bytes]) -> None:
        now_s = time.monotonic()
        self._note_exits()
        counters, communicated = self._table.counters(now_s)
        has_moved = self._clock.look(counters, has_communicated=communicated, now_s=now_s)
        if has_moved and not self._outside.number:  # what moves after a signal is the end
            self._moved.set()
        if self._background.is_busy:
            return
        self._choose_work(process, now_s, watched=bool(counters))

    def _choose_work(
        self, process: subprocess.Popen[bytes], now_s: float, *, watched: bool
    ) -> None:
        if self._attempt != self._table.attempt:
            self._note_restart()
        elif not self._exit_scene_taken and (
            self._exception_seen.is_set() or self._table.crashing_pids()
        ):
            self._exit_scene_taken = True
            self._background.start(self._keeper.take_exit_scene)
        elif self._stall is not None:
            self._follow_stall(process, self._stall, now_s)
        elif (
            watched
            and self._table.all_pids()
            and self._clock.is_stalled(now_s)
            and now_s >= self._next_look_s
            and not (self._outside.number or self._table.is_ending())
            and not self._table.crashing_pids()
        ):
            self._moved.clear()
            # Should the report fail for a fault of our own, the next try is a while away.
            self._next_look_s = now_s + _RETRY_S
            self._background.start(self._open_stall)

    def _note_restart(self) -> None:
        """Report one attempt that failed; while it is, the next may fail already."""
        failed, self._attempt = self._attempt, self._attempt + 1
        self._fault_log.note(f"The launcher starts its ranks anew (attempt {self._attempt}).")
        self._exit_scene_taken = False
        self._exception_seen.clear()
        self._listener.hold_again()
        record = IncidentRecord(
            kind="exit", opened_ns=time.time_ns(), world_size=self._table.world_size
        )
        self._background.start(lambda: self._keeper.close_exit(record, failed))

    def _listener_may_release(self) -> None:
        if not self._exit_scene_taken:
            return
        self._listener.release()
        for pid in self._table.crashing_pids():
            with suppress(OSError):
                # any handled signal ends the sleep in which a crashing rank is held
                os.kill(pid, stacks_signal())

    # -------------------------------------------------------------------------------- stalls

    def _stall_record(self) -> IncidentRecord:
        return IncidentRecord(
            kind="stall",
            opened_ns=time.time_ns(),
            world_size=self._table.world_size,
            stalled_s=round(self._clock.stalled_s(time.monotonic()), 1),
            limit_s=round(self._clock.limit_s, 1),
            longest_gap_s=round(self._clock.longest_gap_s, 1),
        )

    def _open_stall(self) -> None:
        self._stall = self._keeper.open_stall(self._stall_record(), self._moved.is_set)
        now_s = time.monotonic()
        # When the job moved meanwhile, a new stall may be looked at as soon as it is one.
        self._next_look_s = 0.0 if self._stall is None else now_s + self._clock.stalled_s(now_s)

    def _follow_stall(
        self, process: subprocess.Popen[bytes], incident: Incident, now_s: float
    ) -> None:
        opened = incident.record
        if self._outside.number or self._table.taking_down:
            return  # what moves now is the end
        if self._moved.is_set():
            self._stall, self._next_look_s = None, 0.0
            after_s = (time.time_ns() - opened.opened_ns) / 1e9 + incident.stalled_at_open_s
            self._background.start(lambda: self._keeper.close_stall(incident, after_s))
            return
        stuck = incident.is_surely_stuck(self._clock.stalled_s(now_s), self._clock.limit_s)
        held_s = (time.time_ns() - opened.opened_ns) / 1e9
        if stuck and (
            self._options.on_stall is OnStall.KILL
            or (self._options.on_stall is OnStall.HOLD and held_s > self._options.hold_s)
        ):
            self._kill(process)
        elif now_s >= self._next_look_s:
            stalled_s = self._clock.stalled_s(now_s)
            # Each look comes when the stall is twice as old as at the last one.
            self._next_look_s = now_s + max(stalled_s, 10.0)
            self._background.start(
                lambda: self._keeper.look_again(incident, stalled_s, self._moved.is_set)
            )

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        self._killed_for_stall = True
        self._job.killed_ns = time.time_ns()
        self._table.taking_down = True
        self._listener.release()
        self._fault_log.note("The job is ended because it is stuck (--on-stall).")
        children.end_processes([process.pid], _KILL_GRACE_S)
        process.wait()

    # ------------------------------------------------------------------------------- the end

    def _finish(self, status: int) -> int:
        code = self._exit_code(status)
        self._end_work()
        self._listener.release()
        self._table.settle()
        self._table.taking_down = True
        if code != 0:
            # torchrun that is killed leaves its workers behind, and nobody waits for them.
            children.end_processes(self._table.all_pids(), _KILL_GRACE_S)
        self._pump.drain(_DRAIN_S)
        self._launcher_log.close()
        self._logs.close()
        self._table.wait_for_exits(_DRAIN_S)
        self._note_exits()
        self._listener.stop()
        self._safely(self._agent.stop)
        self._switches.stop()
        self._records.finish()
        self._job.ended_ns, self._job.exit_code = time.time_ns(), code
        copy_signal(self._outside.as_record(), self._job)
        self._keeper.write_job()
        self._report_end(code)
        self._torch_files.close()
        self._node.close()
        self._fault_log.end_round(code)
        return code

    def _end_work(self) -> None:
        """Wait for the report that is being made, and make those of attempts that failed since."""
        deadline_s = time.monotonic() + _WORK_S
        while True:
            self._background.join(max(0.0, deadline_s - time.monotonic()))
            if self._background.is_busy or self._attempt == self._table.attempt:
                return
            self._note_restart()

    def _report_end(self, code: int) -> None:
        try:
            ending = Ending(code, self._outside, self._stall, self._killed_for_stall)
            ending.report(self._keeper, self._table)
        except Exception as error:  # noqa: BLE001 - the exit code of the job comes first
            self._fault_log.note(describe_fault(error))
            say(f"whystuck: a report could not be made: {show_line(error)}\n")

    def _exit_code(self, status: int) -> int:
        if self._killed_for_stall:
            return STALL_EXIT
        if self._outside.is_interrupt:
            return INTERRUPTED_EXIT
        return 128 - status if status < 0 else status

    def _note_exits(self) -> None:
        for ended in self._table.take_ended():
            if ended.exit is not None:
                self._evidence.write_exit(ended.rank, ended.exit)
                self._node.write_memory(self._evidence.rank_dir(ended.rank), ended)
                self._fault_log.note_end(ended)
            self._records.keep(ended)
            children.reap_adopted(one.pid for one in (ended,) if one.pid != self._command_pid)

    def _note_and_say(self, text: str) -> None:
        self._fault_log.note(f"{text[:1].upper()}{text[1:]}.")
        say(f"whystuck: {show_line(text)}\n")
