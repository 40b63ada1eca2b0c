"""A program where a rank is: with its variables, in its working directory and namespaces."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from whystuck.collect.processes.proc_files import read_environment, read_start, read_status
from whystuck.evidence.errors import UsageError
from whystuck.launch.background import say
from whystuck.launch.command import SITE_DIR

# The user namespace first: it gives the right to enter the others.
_NAMESPACES = ("user", "mnt", "uts", "ipc", "net", "pid")
_JOB_DIR_ENV = "WHYSTUCK_JOB_DIR"
_DROPPED = ("WHYSTUCK_", "KINETO_")
_DEFAULT_SHELL = "/bin/sh"


@dataclass(frozen=True)
class RankPlace:
    """What a rank has.

    Attributes:
        rank: Its number.
        pid: Its pid as we see it.
        own_pid: Its pid in its own namespace.
        started: Tells its process from a later one with its pid.
        environment: Its variables.
    """

    rank: int
    pid: int
    own_pid: int
    started: int
    environment: Mapping[str, str]

    def list_other_namespaces(self) -> list[str]:
        """Return the kinds of namespaces that are not ours; raises OSError."""
        return [
            kind
            for kind in _NAMESPACES
            if os.readlink(f"/proc/{self.pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")  # noqa: PTH115 - not a path
        ]


def find_place(rank: int, pid: int, job_dir: Path) -> RankPlace:
    """Return where a rank is.

    Args:
        rank: Its number.
        pid: Its pid, as it knows it itself: that in its own namespace.
        job_dir: The folder of its job, which its variables name.

    Raises:
        UsageError: It has ended, cannot be seen from here, or is not ours.
    """
    for place in filter(None, (_look(rank, one, pid) for one in _list_pids(pid))):
        if place.environment.get(_JOB_DIR_ENV) == str(job_dir):
            return place
    raise UsageError(
        f"rank {rank} (pid {pid}) has ended, or cannot be looked into from here",
        hint="run this as the user of the job, where `whystuck run` was started",
    )


def _list_pids(inner: int) -> Iterator[int]:
    """Yield the processes that know themselves by a pid, that of our own namespace first."""
    yield inner
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are wanted
        is_other = name.isdecimal() and int(name) != inner
        if is_other and read_status(name).get("NSpid", "").split()[-1:] == [str(inner)]:
            yield int(name)


def _look(rank: int, pid: int, own_pid: int) -> RankPlace | None:
    start = read_start(pid)
    uid = read_status(pid).get("Uid", "").split()[:1]
    if start is None or uid != [str(os.getuid())]:
        return None
    try:
        return RankPlace(rank, pid, own_pid, start[1], read_environment(pid))
    except OSError:
        return None


def run_there(place: RankPlace, command: Sequence[str]) -> int:
    """Run a program, or a shell where none is named, and return its code.

    Raises:
        UsageError: The namespaces of the rank, or its folder, cannot be entered.
    """
    environment = make_environment(place)
    words = list(command) or [os.environ.get("SHELL", _DEFAULT_SHELL)]
    try:
        needs_fork = _enter(place)
    except OSError as error:
        raise UsageError(
            f"the namespaces of rank {place.rank} cannot be entered: {error.strerror}",
            hint="run this in the container of the job",
        ) from error
    if not needs_fork:
        return _replace_us(words, environment)
    pid = os.fork()  # only children are in another namespace of pids
    if pid == 0:
        try:
            _replace_us(words, environment)
        except UsageError as error:
            say(f"whystuck: {error.message}\n")
        finally:
            os._exit(127)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a key at the terminal is for the shell
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def make_environment(place: RankPlace) -> dict[str, str]:
    """Return the variables of the rank, without what makes a Python a rank that we watch."""
    kept = {k: v for k, v in place.environment.items() if not k.startswith(_DROPPED)}
    paths = [one for one in kept.pop("PYTHONPATH", "").split(os.pathsep) if one != str(SITE_DIR)]
    if any(paths):
        kept["PYTHONPATH"] = os.pathsep.join(paths)
    for name in ("TERM", "SHELL", "DISPLAY"):
        if name in os.environ:
            kept[name] = os.environ[name]
    return kept | {"RANK_PID": str(place.own_pid)}


def _enter(place: RankPlace) -> bool:
    """Enter the namespaces and the folder of a rank; return whether only children are in them."""
    others = place.list_other_namespaces()
    opened = [
        os.open(f"/proc/{place.pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in others
    ]
    folder = os.open(f"/proc/{place.pid}/cwd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    start = read_start(place.pid)
    if start is None or start[1] != place.started:
        raise ProcessLookupError(3, "it has ended")
    libc = ctypes.CDLL(None, use_errno=True)
    for fd in opened:
        if libc.setns(fd, 0):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    os.fchdir(folder)
    return "pid" in others


def _replace_us(words: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    try:
        os.execvpe(words[0], list(words), dict(environment))  # noqa: S606 - it is asked for
    except OSError as error:
        raise UsageError(
            f"`{words[0]}` cannot be run: {error.strerror}", hint="name a program that is there"
        ) from error
