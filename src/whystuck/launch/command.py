"""Starting the command, and ending what is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

SITE_DIR = Path(__file__).resolve().parent.parent / "probe" / "site"

# Python ignores these from its start on; it cannot be known whether our caller did.
_OF_PYTHON = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
_NOT_CHANGED = frozenset({signal.SIGKILL, signal.SIGSTOP})


@dataclass(frozen=True)
class Handlers:
    """What our caller does about signals: the command inherits it."""

    blocked: frozenset[int]
    ignored: frozenset[int]

    @classmethod
    def of_this_process(cls) -> Handlers:
        """Return what holds now."""
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        wanted = signal.valid_signals() - _OF_PYTHON - _NOT_CHANGED
        ignored = {one for one in wanted if signal.getsignal(one) is signal.SIG_IGN}
        return cls(frozenset(blocked), frozenset(ignored))

    def block_all(self) -> None:
        """Let signals wait until we ask for them."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

    def restore_mask(self) -> None:
        """Let signals in again that our caller lets in."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self.blocked)

    def restore_for_command(self) -> None:
        """Between fork and exec of the command: leave all as our caller had it."""
        for number in _OF_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(
            signal.SIGCHLD, signal.SIG_IGN if signal.SIGCHLD in self.ignored else signal.SIG_DFL
        )
        self.restore_mask()

    def outlive_signals(self) -> None:
        """In the watcher: do nothing about signals; programs that it starts get them as usual."""
        for number in signal.valid_signals() - _NOT_CHANGED - self.ignored - {signal.SIGCHLD}:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _do_nothing)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _do_nothing(_number: int, _frame: object) -> None:
    """Stand for a signal that is not for us."""


def probe_environment(added: Mapping[str, str], identities: Sequence[str]) -> dict[str, str]:
    """Return the environment of the command: what is there, plus what leads the probe in.

    Args:
        added: The job folder, and further variables such as those of torch's flight recorder.
        identities: What the files behind its stdout and stderr are, as the probe names them.
    """
    environment = dict(os.environ)
    if environment.get("WHYSTUCK_DISABLE") == "1":
        # These were asked for by name, and nothing of ours runs in the job because of them.
        return environment | {k: v for k, v in added.items() if k.startswith("NCCL_")}
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = str(SITE_DIR) + (os.pathsep + path if path else "")
    environment["WHYSTUCK_STDOUT"], environment["WHYSTUCK_STDERR"] = identities
    environment.pop("WHYSTUCK_CLAIM", None)
    return environment | dict(added)


def start_command(
    command: Sequence[str],
    environment: dict[str, str],
    outputs: Mapping[int, int],
    handlers: Handlers,
    before_exec: Callable[[], None],
) -> subprocess.Popen[bytes]:
    """Start the command in our process group, with all descriptors and signals of our caller.

    Args:
        command: What to run.
        environment: Its variables.
        outputs: What it writes to, by stream (1 or 2); our own where there is none.
        handlers: What our caller does about signals.
        before_exec: Called in the process that becomes the command.

    Raises:
        OSError: It cannot be run.
    """

    def prepare() -> None:
        before_exec()
        handlers.restore_for_command()

    return subprocess.Popen(
        list(command),
        env=environment,
        stdout=outputs.get(1),
        stderr=outputs.get(2),
        # What we have opened ourselves is closed at the exec.
        close_fds=False,
        restore_signals=False,
        preexec_fn=prepare,  # noqa: PLW1509 - no thread of ours runs here
    )


def end_processes(pids: Iterable[int], grace_s: float) -> None:
    """End processes and all below them: SIGTERM, then SIGKILL after ``grace_s``."""
    victims: dict[int, psutil.Process] = {}
    for pid in pids:
        try:
            process = psutil.Process(pid)
            for one in [process, *process.children(recursive=True)]:
                victims[one.pid] = one
        except psutil.Error:
            continue
    _send(victims.values(), signal.SIGTERM)
    # A stopped process acts on nothing before it is continued.
    _send(victims.values(), signal.SIGCONT)
    deadline_s = time.monotonic() + grace_s
    while any(_lives(one) for one in victims.values()) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    _send((one for one in victims.values() if _lives(one)), signal.SIGKILL)


def _send(processes: Iterable[psutil.Process], number: int) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.Error:
            continue


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
