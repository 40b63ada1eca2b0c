"""The agent beside a job: started before the command, anew when it dies, and ended with the job.

It answers the ranks when somebody asks for a trace. The job does not need it: when it cannot be
started, or dies too often, the job goes on without traces.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from whystuck.evidence.agent import (
    FABRIC_SOCKET,
    KINETO_CONFIG_FILE,
    KINETO_CONFIG_TEXT,
    RPC_SOCKET,
)

AGENT_ENV = "WHYSTUCK_AGENT_DIR"
AGENT_LOG_FILE = "agent.log"
AGENT_FOLDER = "k"
"""In the folder of a job: that of its agent. Kineto takes no long path."""

MAX_STARTS = 4
_FIRST_WAIT_S = 1.0
_STOP_S = 5.0
_KILLED_S = 1.0
_LOOK_S = 0.02
_MAX_LOG_BYTES = 4 << 20
_KEPT_LOG_BYTES = 256 << 10
# On a shared file system, each look asks the server.
_LOG_LOOK_S = 60.0
# Whoever sets one of them leads Kineto elsewhere.
_THEIRS = ("KINETO_USE_DAEMON", "KINETO_IPC_SOCKET_DIR")


class AgentChild:
    """The process of the agent, as the supervisor's one thread sees it."""

    def __init__(
        self,
        command: Sequence[str],
        job_dir: Path,
        log: Path,
        note: Callable[[str], None],
        later: Callable[[Callable[[], None]], None],
    ) -> None:
        """Take what is needed; nothing is started, and no folder made.

        Args:
            command: How the agent of ``job_dir`` is started.
            job_dir: The folder of the job; that of the agent lies in there.
            log: Where its output goes, of bounded size.
            note: Gets a sentence for the log of the job.
            later: Does work on files of the evidence, whose disk may hang, beside all else.
        """
        self.folder = job_dir / AGENT_FOLDER
        self._command = list(command)
        self._log = log
        self._note = note
        self._later = later
        self._pid = 0
        self._starts = 0
        self._next_start_s = 0.0
        self._log_fd = -1
        self._next_log_look_s = 0.0
        self._end_by_s = 0.0
        self._status = 0

    @property
    def pid(self) -> int:
        """The pid of the agent that runs; 0 when there is none."""
        return self._pid

    @property
    def variables(self) -> dict[str, str]:
        """What leads the probe to the agent; nothing when it could not be started."""
        return {AGENT_ENV: str(self.folder)} if self._starts else {}

    def start(self) -> None:
        """Make its folder and start it, without waiting for it; what fails is noted."""
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            (self.folder / KINETO_CONFIG_FILE).write_text(KINETO_CONFIG_TEXT)
            self._open_log()
            self._spawn()
        except OSError as error:
            self._note(f"Traces cannot be asked for: the agent cannot be started: {error}")

    def look(self) -> None:
        """See whether it lives, and start it anew when it is time for that."""
        now_s = time.monotonic()
        if self._pid and self._has_ended():
            self._after_death(now_s)
        elif self._next_start_s and now_s >= self._next_start_s:
            self._next_start_s = 0.0
            self._spawn()
        if now_s >= self._next_log_look_s:
            self._next_log_look_s = now_s + _LOG_LOOK_S
            self._bound_log()

    def end(self) -> None:
        """Tell it to end, and wait for nothing: a report is made meanwhile."""
        self._next_start_s = 0.0
        if self._pid and not self._end_by_s:
            self._signal(signal.SIGTERM)
            self._end_by_s = time.monotonic() + _STOP_S

    def stop(self) -> None:
        """End it, unless it was told; it may finish the files that it writes, for some seconds."""
        self.end()
        if self._pid:
            self._wait_until(self._end_by_s)
            if self._pid:
                self._signal(signal.SIGKILL)
                self._wait_until(time.monotonic() + _KILLED_S)
                self._pid = 0
        self._remove_sockets()
        if self._log_fd >= 0:
            self._later(functools.partial(os.close, self._log_fd))
            self._log_fd = -1

    def _wait_until(self, deadline_s: float) -> None:
        """Wait for its end; it may have a file open on a disk that hangs, and not even die."""
        while not self._has_ended() and time.monotonic() < deadline_s:
            time.sleep(_LOOK_S)

    def _spawn(self) -> None:
        """Start a process; raises OSError.

        Not by subprocess, which runs Python between fork and exec to give it another signal mask:
        with threads of ours about, that may never end.
        """
        self._starts += 1
        output = os.devnull if self._log_fd < 0 else f"/proc/self/fd/{self._log_fd}"
        flags = os.O_WRONLY | os.O_APPEND
        self._pid = os.posix_spawn(
            self._command[0],
            self._command,
            _environment(os.environ),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, output, flags, 0),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            # Ctrl-C is for the job; the agent ends after it.
            setpgroup=0,
            setsigmask=(),
            setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE),
        )

    def _has_ended(self) -> bool:
        try:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:
            pid, status = self._pid, 0
        if pid:
            self._pid, self._status = 0, os.waitstatus_to_exitcode(status)
        return bool(pid)

    def _after_death(self, now_s: float) -> None:
        # At once: Kineto tries for seconds to send to a socket that nobody reads.
        self._remove_sockets()
        how = f"signal {-self._status}" if self._status < 0 else f"code {self._status}"
        if self._starts >= MAX_STARTS:
            self._note(f"The agent ended by {how} once more; the job goes on without traces.")
            return
        wait_s = _FIRST_WAIT_S * 2 ** (self._starts - 1)
        self._next_start_s = now_s + wait_s
        self._note(f"The agent ended by {how} and is started anew in {wait_s:.0f} s.")

    def _remove_sockets(self) -> None:
        for name in (FABRIC_SOCKET, RPC_SOCKET):
            with suppress(OSError):
                (self.folder / name).unlink()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def _open_log(self) -> None:
        with suppress(OSError):
            self._log.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._log_fd = os.open(self._log, flags, 0o600)

    def _bound_log(self) -> None:
        """Keep only the end of a log that grew too large."""
        if self._log_fd >= 0:
            log = os.dup(self._log_fd)  # ours may be closed meanwhile, and its number reused
            self._later(lambda: _bound(log))


def _bound(log: int) -> None:
    try:
        size = os.fstat(log).st_size
        if size > _MAX_LOG_BYTES:
            end = os.pread(log, _KEPT_LOG_BYTES, size - _KEPT_LOG_BYTES)
            os.ftruncate(log, 0)
            os.write(log, end)
    finally:
        os.close(log)


class NoAgent:
    """Stands where no agent is wanted."""

    pid = 0
    variables: Mapping[str, str] = {}

    def start(self) -> None:
        """Start nothing."""

    def look(self) -> None:
        """See nothing."""

    def end(self) -> None:
        """Tell nobody."""

    def stop(self) -> None:
        """End nothing."""


def make_agent(
    job_dir: Path,
    log: Path,
    note: Callable[[str], None],
    later: Callable[[Callable[[], None]], None],
    *,
    is_wanted: bool,
) -> AgentChild | NoAgent:
    """Return the agent of a job, or what stands for it where there is to be none.

    Args:
        job_dir: The folder of the job.
        log: Where its output goes.
        note: Gets a sentence where the environment decides that there is none.
        later: As `AgentChild` has it.
        is_wanted: What the user said.
    """
    if not is_wanted or os.environ.get("WHYSTUCK_DISABLE") == "1":
        return NoAgent()
    theirs = [name for name in _THEIRS if name in os.environ]
    if theirs:
        note(f"No agent is started: {' and '.join(theirs)} lead Kineto to another one.")
        return NoAgent()
    # Not the working directory of the job: it may have modules of any name.
    command = [sys.executable, "-P", "-m", "whystuck", "agent", "--job-dir", str(job_dir)]
    return AgentChild(command, job_dir, log, note, later)


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the agent: it is no part of the job, whatever started us."""
    dropped = {AGENT_ENV, "WHYSTUCK_JOB_DIR", "WHYSTUCK_CLAIM", "RANK", "LOCAL_RANK", "WORLD_SIZE"}
    return {name: value for name, value in environment.items() if name not in dropped}
