"""Starting the command, and ending what is left of it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from whystuck.launch.options import CANNOT_RUN_EXIT, CommandError
from whystuck.launch.streams import identify, open_channel

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
SITE_DIR = Path(__file__).resolve().parent.parent / "probe" / "site"


def become_subreaper() -> None:
    """Adopt the descendants whose parent dies, so that none is lost."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def probe_environment(
    job_dir: Path, stdout_fd: int, stderr_fd: int, added: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of the command: what is there, plus what leads the probe in.

    ``added`` are further variables, such as those of torch's flight recorder.
    """
    environment = dict(os.environ)
    if environment.get("WHYSTUCK_DISABLE") == "1":
        # These were asked for by name, and nothing of ours runs in the job because of them.
        return environment | {k: v for k, v in added.items() if k.startswith("NCCL_")}
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = str(SITE_DIR) + (os.pathsep + path if path else "")
    environment["WHYSTUCK_JOB_DIR"] = str(job_dir)
    environment["WHYSTUCK_STDOUT"] = identify(stdout_fd)
    environment["WHYSTUCK_STDERR"] = identify(stderr_fd)
    environment.pop("WHYSTUCK_CLAIM", None)
    return environment | dict(added)


def start_captured(
    command: Sequence[str], job_dir: Path, added: Mapping[str, str], *, own_group: bool, umask: int
) -> tuple[subprocess.Popen[bytes], int, int]:
    """Start the command with the probe led in; return it and the ends where its output arrives.

    ``umask`` is that of the user: ours keeps files private. Raises CommandError when it cannot be
    run.
    """
    out_read, out_write = open_channel(1)
    err_read, err_write = open_channel(2)
    environment = probe_environment(job_dir, out_write, err_write, added)
    try:
        process = start_command(
            command, environment, (out_write, err_write), own_group=own_group, umask=umask
        )
    except OSError as error:
        raise CommandError(
            f"`{command[0]}` cannot be run: {error.strerror}",
            hint="check that it is a program of this machine",
            exit_code=CANNOT_RUN_EXIT,
        ) from error
    os.close(out_write)
    os.close(err_write)
    return process, out_read, err_read


def start_command(
    command: Sequence[str],
    environment: dict[str, str],
    output_fds: tuple[int, int],
    *,
    own_group: bool,
    umask: int,
) -> subprocess.Popen[bytes]:
    """Start the command with ``output_fds`` as its stdout and stderr.

    It gets a process group of its own when ``own_group`` says so, and SIGTERM when we die. Raises
    OSError as subprocess does.
    """
    libc = ctypes.CDLL(None)
    supervisor = os.getpid()

    def before_exec() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != supervisor:
            os._exit(1)

    return subprocess.Popen(
        list(command),
        env=environment,
        stdout=output_fds[0],
        stderr=output_fds[1],
        process_group=0 if own_group else None,
        umask=umask,
        preexec_fn=before_exec,  # noqa: PLW1509 - no thread of ours runs yet
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


def reap_adopted(pids: Iterable[int]) -> None:
    """Collect ranks that ended and that we have adopted.

    Only these: a wait for any child would take the status of the command, or of a py-spy that
    another thread waits for.
    """
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
