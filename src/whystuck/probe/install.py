"""Putting the parts to work, each at the moment from which it can work.

Only what is needed when the interpreter starts is here; what comes with torch is in `rank`.
"""

from __future__ import annotations

import os
import stat
import sys

from . import descriptors, files, wire
from .calling.attempts import attempt
from .exit import faulthandler_calls, sys_exit
from .exit.exceptions import ExceptionKeeper
from .identity import Identity
from .import_watch import ImportWatch

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from .rank import Rank

_STREAMS = ((1, files.STDOUT_ENV), (2, files.STDERR_ENV))
_REPLY_TIMEOUT_S = 5.0


class Probe:
    """What is installed in this process; one for each process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.identity = Identity()
        self.exceptions = ExceptionKeeper(self.identity)
        self._is_capturing = False
        self._rank: Rank | None = None
        self._said = ""

    def start_interpreter(self) -> None:
        """Do what can be done before torch is there."""
        if self.identity.read_environment():
            self.start_logs()
            self.say_hello()
            self.start_lines()
        if "torch" not in sys.modules:
            ImportWatch({"torch"}, lambda _: self.torch_is_ready()).start()

    def torch_is_ready(self) -> None:
        """Do what needs torch; called twice where both doors are open."""
        if self._rank is None and os.getpid() == self.pid:
            files.require_release()
            from .rank import Rank

            self._rank = Rank(self)
            self._rank.torch_is_ready()
            if self.identity.rank < 0:
                attempt(lead_kineto)

    def start_logs(self) -> None:
        """Watch for exceptions, and give the output to the supervisor, once."""
        attempt(files.take_over)
        attempt(self.exceptions.watch)
        attempt(sys_exit.stand_before)
        attempt(faulthandler_calls.stand_before)
        if not self._is_capturing and self.identity.rank >= 0:
            self._is_capturing = True
            attempt(lambda: capture_output(self.identity.rank))

    def start_lines(self) -> None:
        """Record the lines that run, where that is wanted."""
        if files.LINES_ENV in os.environ:
            files.require_release()
            from .lines.recorder import start_lines

            attempt(start_lines)

    def say_hello(self) -> None:
        """Tell the supervisor who this is, unless it knows: with many groups it may be busy."""
        torch = sys.modules.get("torch")
        member = "true" if self.identity.is_member else "false"
        fields = (
            f'"world_size": {self.identity.world_size}, "is_member": {member}, '
            f'"python": "{sys.version.split()[0]}", "torch": "{getattr(torch, "__version__", "")}"'
        )
        said = f"{self.identity.rank} {fields}"
        if said != self._said:
            self._said = said
            wire.tell("hello", self.identity.rank, fields)


_PROBES: list[Probe] = []


def _probe() -> Probe:
    if not _PROBES or _PROBES[-1].pid != os.getpid():
        _PROBES.append(Probe())
    return _PROBES[-1]


def start_interpreter() -> None:
    """Start what can be started when Python starts."""
    if has_job():
        _probe().start_interpreter()
    elif files.AGENT_ENV in os.environ and "torch" not in sys.modules:
        ImportWatch({"torch"}, lambda _: lead_kineto()).start()
    attempt(_tell_why_not)


def torch_is_ready() -> None:
    """Start what needs torch."""
    if has_job():
        _probe().torch_is_ready()
    else:
        lead_kineto()


def has_job() -> bool:
    """Return whether a supervisor watches this process, and not only an agent of its node."""
    return _has_own_folder() and not why_not()


def _has_own_folder() -> bool:
    """Return whether the job folder is this user's: another one's could lead writes anywhere."""
    try:
        status = os.lstat(os.environ[files.JOB_DIR_ENV])
    except (KeyError, OSError, ValueError):
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def why_not() -> str:
    """Return what speaks against a probe in this process, or an empty text."""
    if files.is_disabled():
        return f"{files.DISABLE_FILE} is there"
    return "" if descriptors.has_room() else "the job may open few files (RLIMIT_NOFILE)"


def _tell_why_not() -> None:
    """Have the reports say why a rank has no probe; nothing else is done in it."""
    if _has_own_folder() and (reason := why_not()):
        probe = _probe()
        if probe.identity.read_environment():
            attempt(files.take_over)
            probe.say_hello()
            files.write_json(files.path_of("disarmed"), {"reason": reason})


def lead_kineto() -> None:
    """Lead Kineto to an agent where one is named, and no rank does so."""
    from .kineto.agent_discovery import find_agent

    if (os.environ.get(files.AGENT_ENV) or find_agent()) and not why_not():
        files.require_release()
        from .kineto import alone

        alone.start()


def identify(fd: int) -> str:
    """Name the file behind a descriptor, equal in two processes that share it."""
    status = os.fstat(fd)
    return f"{status.st_dev}:{status.st_ino}:{status.st_rdev}"


def capture_output(rank: int) -> bool:
    """Swap standard output and error for a pair that the supervisor reads: the log of this rank.

    Only a stream that still is the very pipe or terminal which the supervisor gave to the command
    is swapped, and for one of the same kind; a redirect that the user or the launcher made stays.

    Returns:
        Whether anything was swapped.
    """
    wanted = [fd for fd, name in _STREAMS if _is_ours(fd, name)]
    if not wanted:
        return False
    fds = wire.tell("capture", rank, f'"streams": {wanted}', _REPLY_TIMEOUT_S)
    try:
        if len(fds) != len(wanted):
            return False
        terminals = [(new, old) for new, old in zip(fds, wanted) if os.isatty(old)]
        if terminals:
            attempt(lambda: _prepare_terminals(terminals))
        for new, old in zip(fds, wanted):
            os.dup2(new, old)
        return True
    finally:
        for fd in fds:
            os.close(fd)


def _prepare_terminals(pairs: list[tuple[int, int]]) -> None:
    files.require_release()
    from . import terminal

    for new, old in pairs:
        terminal.copy_size(old, new)
    terminal.answer_for([new for new, _ in pairs])


def _is_ours(fd: int, name: str) -> bool:
    try:
        return identify(fd) == os.environ.get(name)
    except OSError:
        return False
