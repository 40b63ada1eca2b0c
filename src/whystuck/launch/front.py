"""The process that the user started: it starts the command, passes signals on, and keeps its code.

It waits for signals and for the end of the command, and for nothing else: it opens no file while
the command runs, and all that may hang is done by others.

- The *watcher*, forked from it before the command starts, does all that touches files: probes,
  logs, incidents (`supervisor`).
- The *relay* passes on what the job writes (`relay`). On a terminal the command has that itself.
- The *sentinel*, in our process group, tells a signal for the whole group, which the command has
  got itself, from one for us alone, which is passed on. It stops the command when we are stopped.

The job goes on with its output when any of them dies, this process included.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from msgspec.structs import replace

from whystuck.launch import descriptors
from whystuck.launch.background import say
from whystuck.launch.caller import Caller
from whystuck.launch.command import probe_environment, start_command
from whystuck.launch.link import Link, make_pair, receive_byte, refuse, wait_readable
from whystuck.launch.options import CANNOT_RUN_EXIT, CommandError, RunOptions, check_command
from whystuck.launch.output import relay
from whystuck.launch.output.rank_outputs import LAUNCHER_CHANNELS, RelayEnd
from whystuck.launch.output.streams import identify
from whystuck.launch.processes.held_processes import HeldProcesses
from whystuck.launch.processes.process_state import HangWatch, Patience
from whystuck.launch.processes.sentinel import Sentinel
from whystuck.launch.restarts.cause_wait import CauseWait
from whystuck.launch.restarts.ending import RoundEnd, decode_end
from whystuck.launch.watcher import watch_job
from whystuck.safe_text.escaping import show_line

_START_PATIENCE_S = 30.0
_LOOK_S = 0.05
# For so long the code of the job waits for a word of a process of ours. The watcher says after each
# step of a report, and each file, that it goes on; the relay answers at once, also while it waits
# for who reads the output of the job.
SILENT_S = 30.0
_LONGEST_S = 300.0
# The cause comes as soon as it is known: what is written after that may hang.
_ENDS = frozenset({"cause", "done"})
_STDOUT, _STDERR = LAUNCHER_CHANNELS
_NEVER_PASSED_ON = frozenset({signal.SIGCHLD, signal.SIGKILL, signal.SIGSTOP})
_ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})


def run_job(options: RunOptions) -> int:
    """Run a command under watch and return the exit code for the caller.

    Raises StartError or CommandError when nothing could be started.
    """
    check_command(options.command[0])
    return Front(options).run()


class Front:
    """One round of one job on this node, as far as the caller sees it."""

    def __init__(
        self,
        options: RunOptions,
        caller: Caller | None = None,
        *,
        may_restart: bool = False,
        close_ours: Callable[[], None] = lambda: None,
    ) -> None:
        """Take stock of what the caller gave us; nothing is started.

        Args:
            options: What the user asked for.
            caller: What the caller gave us, as the first round has seen it.
            may_restart: Whether there may be another round, which needs all of that, too.
            close_ours: Closes what this process alone is to have, in one that is forked from it.
        """
        self._options = options
        caller = caller or Caller.look()
        self._closed, self._inherited = caller.closed, caller.inherited
        self._kinds, self._handlers = caller.kinds, caller.handlers
        self._cause = CauseWait(may_restart)
        self._close_ours = close_ours
        self._held = HeldProcesses()
        self._was_asked = False
        self.ending = RoundEnd(0)
        self._watcher_pid = 0
        self._watcher: Link | None = None
        self._relay: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._sentinel = Sentinel()
        self._command: subprocess.Popen[bytes] | None = None
        self._is_stopping = False

    def run(self) -> int:
        """Start, wait, end; return the exit code.

        Signals stay blocked: one that comes between our last act and our end changes no code.
        """
        self._handlers.block_all()
        try:
            code = self._run()
        finally:
            self._close()
        was_asked = self._was_asked or self._is_stopping
        self.ending = replace(self.ending, code=code, was_asked=was_asked)
        return code

    def _run(self) -> int:
        front_relay, relay_front = make_pair()
        watcher_relay, relay_watcher = make_pair()
        self._start_watcher(watcher_relay, (front_relay, relay_front, relay_watcher))
        watcher_relay.close()
        variables = self._wait_for_watcher()
        channels = self._start_relay(relay_front, relay_watcher)
        relay_front.close()
        relay_watcher.close()
        self._control = front_relay
        self._sentinel.start()
        command = self._command = self._start_command(channels, variables)
        self._sentinel.watch(command.pid)
        if not self._cause.may_restart:
            descriptors.close_all(self._inherited)
            # Whoever writes to our stdin, or reads our stdout, deals with the command alone.
            descriptors.silence(0, 1)
        status = self._wait_for_command(command)
        self._sentinel.close()  # the pid of the command may become that of another process
        return self._finish(128 - status if status < 0 else status)

    # ----------------------------------------------------------------------------- the start

    def _start_watcher(self, to_relay: socket.socket, not_its: tuple[socket.socket, ...]) -> None:
        ours, its = make_pair()
        sys.stdout.flush()
        sys.stderr.flush()
        front_pid = os.getpid()
        try:
            self._watcher_pid = os.fork()
        except OSError as error:  # no process can be had; the command may need none
            self._say_unwatched(error.strerror or str(error))
            ours.close()
            its.close()
            return
        if self._watcher_pid == 0:
            for end in (ours, *not_its):
                end.close()
            self._be_watcher(Link(its), to_relay, front_pid)
        its.close()
        self._watcher = Link(ours)

    def _be_watcher(self, link: Link, to_relay: socket.socket, front_pid: int) -> NoReturn:
        code = 1
        try:
            os.setsid()
            self._close_ours()
            descriptors.close_all(self._inherited)
            # Whoever waits for the end of our stderr does not wait for a process that may hang.
            descriptors.silence(0, 1, 2)
            self._handlers.outlive_signals()
            watch_job(self._options, self._kinds, link, RelayEnd(to_relay), front_pid)
            code = 0
        finally:
            os._exit(code)

    def _wait_for_watcher(self) -> dict[str, str]:
        """Return the variables that lead the probe in; raise StartError where it says so."""
        if self._watcher is None:
            return {}
        hangs = HangWatch(self._watcher_pid)
        deadline_s = time.monotonic() + _START_PATIENCE_S
        while not self._watcher.is_closed and time.monotonic() < deadline_s:
            message = self._watcher.receive(_LOOK_S)
            if message is not None and message["kind"] == "ready":
                variables: dict[str, str] = message["variables"]
                return variables
            if message is not None and message["kind"] == "refused":
                refuse(message)
            if message is not None and message["kind"] == "useless":
                self._leave_watcher(str(message["reason"]))
                return {}
            if message is None and hangs.hangs():
                break
        reason = "it ended" if self._watcher.is_closed else "a file system does not answer"
        self._leave_watcher(reason)
        return {}

    def _leave_watcher(self, reason: str) -> None:
        """Run the job without a watcher."""
        self._say_unwatched(reason)
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None
        with suppress(ProcessLookupError):
            os.kill(self._watcher_pid, signal.SIGKILL)

    @staticmethod
    def _say_unwatched(reason: str) -> None:
        say(f"whystuck: the job runs unwatched: {show_line(reason)}\n")

    def _start_relay(self, control: socket.socket, log: socket.socket) -> dict[int, int]:
        """Start the relay; return the ends that the command writes to, by stream.

        Nothing is relayed where nobody watches, and where it cannot be started: the command then
        has our own outputs.
        """
        if self._watcher is None:
            return {}
        own = [stream for stream in LAUNCHER_CHANNELS if stream not in self._closed]
        piped = [stream for stream in own if not self._kinds.are_terminals[stream - 1]]
        pipes = {target: os.pipe() for target in {self._kinds.target_of(one) for one in piped}}
        fds = [control.fileno(), log.fileno()]
        command = [sys.executable, "-I", "-S", relay.__file__, *map(str, fds)]
        command += [f"{read}:{target}:{target}" for target, (read, _) in pipes.items()]
        try:
            self._relay = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                # What our caller closed is `/dev/null` here, and would be closed there.
                stdout=subprocess.DEVNULL if _STDOUT in self._closed else None,
                stderr=subprocess.DEVNULL if _STDERR in self._closed else None,
                pass_fds=[*fds, *(read for read, _ in pipes.values())],
                start_new_session=True,
                cwd="/",
            )
        except OSError as error:
            say(f"whystuck: the output of the job is not kept: {error.strerror}\n")
            descriptors.close_all([fd for pair in pipes.values() for fd in pair])
            return {}
        descriptors.close_all([read for read, _ in pipes.values()])
        return {stream: pipes[self._kinds.target_of(stream)][1] for stream in piped}

    def _start_command(
        self, channels: dict[int, int], variables: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        identities = [
            identify(channels[stream]) if stream in channels else self._kinds.identities[stream - 1]
            for stream in LAUNCHER_CHANNELS
        ]
        environment = probe_environment(variables, identities) if variables else dict(os.environ)
        command = self._options.command
        try:
            return start_command(
                command, environment, channels, self._handlers, self._tell_of_command
            )
        except OSError as error:
            self._tell_watcher("failed")
            raise CommandError(
                f"`{command[0]}` cannot be run: {error.strerror}",
                hint="check that it is a program of this machine",
                exit_code=CANNOT_RUN_EXIT,
            ) from error
        finally:
            descriptors.close_all(list(set(channels.values())))

    def _tell_of_command(self) -> None:
        """Tell the watcher the pid before the command runs: we may be killed at once."""
        self._tell_watcher("started", pid=os.getpid())

    # ------------------------------------------------------------------------------ the wait

    def _wait_for_command(self, command: subprocess.Popen[bytes]) -> int:
        """Return how the command ended, as subprocess says it."""
        while True:
            info = signal.sigwaitinfo(signal.valid_signals())
            if info.si_signo == signal.SIGCHLD:
                status = self._look_at_command(command)
                if status is not None:
                    return status
            elif info.si_signo not in _NEVER_PASSED_ON:
                self._pass_on(command, info)

    def _look_at_command(self, command: subprocess.Popen[bytes]) -> int | None:
        """Return how it ended; stop with it when it was stopped; reap what else has ended."""
        self._held.hear(self._watcher)
        for pid in (self._watcher_pid, self._relay.pid if self._relay else 0):
            if pid:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        pid, status = os.waitpid(command.pid, os.WNOHANG | os.WUNTRACED)
        if not pid:
            return None
        if os.WIFSTOPPED(status):
            if command.pid not in self._held:
                self._stop_as_well()
            return None
        command.returncode = os.waitstatus_to_exitcode(status)
        return command.returncode

    def _stop_as_well(self) -> None:
        """Stop like the command: our own shell waits for us, and shows its prompt then."""
        if signal.SIGCONT in signal.sigpending():
            return  # the sentinel had stopped it for us; this is passed on next
        self._sentinel.stops()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._sentinel.woke()

    def _pass_on(self, command: subprocess.Popen[bytes], info: signal.struct_siginfo) -> None:
        number = info.si_signo
        if number == signal.SIGWINCH:
            self._tell_relay(b"w")
        if number in _ENDING and number not in self._handlers.ignored:
            self._was_asked = True
            self._tell_watcher(
                "signal",
                number=number,
                code=info.si_code,
                sender_pid=info.si_pid,
                time_ns=time.time_ns(),
            )
        if not (self._sentinel.has_got(number) or info.si_pid == self._sentinel.pid):
            with suppress(ProcessLookupError):
                os.kill(command.pid, number)

    # ------------------------------------------------------------------------------- the end

    def _finish(self, code: int) -> int:
        """Let the output and the reports be finished; a signal that comes now ends that."""
        self._drain()
        code = self._wait_for_report(code)
        self._drain()
        return code

    def _wait_for_report(self, code: int) -> int:
        if self._watcher is None:
            return code
        self._tell_watcher("ended", code=code)
        hangs = HangWatch(self._watcher_pid)
        patience = Patience(SILENT_S, _LONGEST_S)
        while not (self._watcher.is_closed or self._is_told_to_stop()):
            message = self._watcher.receive(_LOOK_S)
            if message is not None and message["kind"] in _ENDS:
                self.ending = decode_end(message.get("ending"), code)
                self._cause.is_known = True
            if message is not None and message["kind"] == "done":
                return int(message["code"])
            if message is not None:
                patience.renew(float(message.get("for_s", 0.0)))
                hangs.leave_out(message.get("late"))
            elif hangs.hangs() and not self._cause.goes_on(code):
                break
            if patience.is_over():
                say("whystuck: the report takes too long, and is not waited for\n")
                break
        return code

    def _drain(self) -> None:
        """Wait until the relay has passed on what the job wrote before its end.

        It waits for who reads that, as the job itself would without us.
        """
        control = self._control
        if control is None or self._relay is None or not self._tell_relay(b"e"):
            return
        patience = Patience(SILENT_S, math.inf)
        while not (self._is_told_to_stop() or patience.is_over()):
            if not wait_readable(control.fileno(), _LOOK_S):
                self._tell_relay(b"a")
            elif receive_byte(control) != b"a":
                return  # done, or the relay is gone
            else:
                patience.renew()
        control.close()  # stopped, or told to stop: we ask nothing more
        self._control = None

    def _is_told_to_stop(self) -> bool:
        """Return whether a signal has come that ends programs."""
        while (info := signal.sigtimedwait(signal.valid_signals(), 0)) is not None:
            if info.si_signo in _ENDING and info.si_signo not in self._handlers.ignored:
                self._is_stopping = True
        return self._is_stopping

    def _tell_watcher(self, kind: str, **fields: object) -> None:
        if self._watcher is not None:
            self._watcher.send(kind, **fields)

    def _tell_relay(self, text: bytes) -> bool:
        if self._control is None:
            return False
        try:
            return bool(self._control.send(text, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL))
        except OSError:
            return False

    def _close(self) -> None:
        self._sentinel.close()
        for end in (self._watcher, self._control):
            if end is not None:
                end.close()
