"""A command under ``whystuck run`` keeps its signals, streams, descriptors and children."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from tests.disks import freezable_disk
from tests.launch.running import WHYSTUCK, clean_environment, run_whystuck
from tests.probe.kineto.fabric import wait_until

RUN = [*WHYSTUCK, "run", "--no-agent", "--evidence"]


def state_of(pid: int) -> str:
    """Return the state of a process, as psutil calls it."""
    return psutil.Process(pid).status()


@contextmanager
def started(
    cwd: Path, script: str, *, evidence: str | Path = "ev", **options: object
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a shell script under ``whystuck run``, in a process group of its own."""
    process: subprocess.Popen[bytes] = subprocess.Popen(
        [*RUN, str(evidence), "--", "sh", "-c", script],
        **{  # type: ignore[call-overload]
            "cwd": cwd,
            "env": clean_environment(),
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.DEVNULL,
            "process_group": 0,
            **options,
        },
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout:
            process.stdout.close()


def run(cwd: Path, script: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    """Run a shell script under ``whystuck run`` to its end."""
    done: subprocess.CompletedProcess[bytes] = subprocess.run(  # noqa: PLW1510
        [*RUN, "ev", "--", "sh", "-c", script],
        **{  # type: ignore[call-overload]
            "cwd": cwd,
            "env": clean_environment(),
            "stdin": subprocess.DEVNULL,
            "capture_output": True,
            "check": False,
            "timeout": 120,
            **options,
        },
    )
    return done


def read_line(process: subprocess.Popen[bytes]) -> bytes:
    """Return the next line that the job has printed."""
    assert process.stdout is not None
    return process.stdout.readline()


def ours(front: int) -> list[psutil.Process]:
    """Return the other processes of a front that are whystuck's."""
    children = psutil.Process(front).children()
    return [one for one in children if "whystuck" in " ".join(one.cmdline())]


def watcher_of(front: int) -> psutil.Process:
    """Return the process that has a session of its own, and is not the relay."""
    own = [one for one in ours(front) if os.getsid(one.pid) == one.pid]
    return next(one for one in own if not any("relay.py" in part for part in one.cmdline()))


def is_gone(process: psutil.Process) -> bool:
    """Return whether a process has ended."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# -------------------------------------------------------------------------------------- signals

COUNTS = """
import os, signal, sys, time
got = []
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, lambda number, _: got.append(number))
print("READY", flush=True)
while not got:
    time.sleep(0.01)
time.sleep(0.5)
print(len(got), flush=True)
sys.exit(7)
"""


@pytest.mark.parametrize("to_group", [False, True])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT", "SIGHUP", "SIGQUIT"])
def test_signal_reaches_the_command_once(tmp_path: Path, name: str, *, to_group: bool) -> None:
    (tmp_path / "job.py").write_text(COUNTS)
    with started(tmp_path, f"exec {sys.executable} job.py") as process:
        assert read_line(process) == b"READY\n"
        send: Callable[[int, int], None] = os.killpg if to_group else os.kill
        send(process.pid, signal.Signals[name])
        assert read_line(process) == b"1\n"
        assert process.wait(60) == 7


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signal_that_the_command_handles_leaves_its_code(tmp_path: Path, name: str) -> None:
    script = f"trap 'exit 0' {name[3:]}; echo READY; while :; do sleep 0.1; done"
    with started(tmp_path, script) as process:
        assert read_line(process) == b"READY\n"
        process.send_signal(signal.Signals[name])
        assert process.wait(60) == 0


def test_signals_in_a_row_all_arrive(tmp_path: Path) -> None:
    script = "trap 'echo T' TERM; trap 'echo U' USR1; trap 'echo I; exit 3' INT; echo READY\n"
    with started(tmp_path, f"{script} while :; do sleep 0.1; done") as process:
        assert read_line(process) == b"READY\n"
        for number, said in ((signal.SIGTERM, b"T\n"), (signal.SIGUSR1, b"U\n")):
            process.send_signal(number)
            assert read_line(process) == said
        process.send_signal(signal.SIGINT)
        assert read_line(process) == b"I\n"
        assert process.wait(60) == 3


def test_what_the_caller_ignores_stays_ignored(tmp_path: Path) -> None:
    shown = "grep -E 'SigIgn|SigBlk' /proc/self/status"
    bare = subprocess.run(
        ["nohup", "sh", "-c", shown], capture_output=True, check=True, stdin=subprocess.DEVNULL
    )
    under = subprocess.run(
        ["nohup", *RUN, "ev", "--", "sh", "-c", shown], capture_output=True, check=True,
        cwd=tmp_path, env=clean_environment(), stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert under.stdout == bare.stdout


def test_job_that_was_hung_up_under_nohup_goes_on_and_is_not_called_ended(tmp_path: Path) -> None:
    with started(
        tmp_path, "trap '' HUP; echo READY; while [ ! -e go ]; do sleep 0.05; done; exit 4"
    ) as process:
        assert read_line(process) == b"READY\n"
        process.send_signal(signal.SIGHUP)
        (tmp_path / "go").touch()
        assert process.wait(60) == 4


def test_job_that_is_stopped_stops_us_and_goes_on_with_us(tmp_path: Path) -> None:
    with started(tmp_path, "echo READY; kill -STOP $$; echo AGAIN; exit 5") as process:
        assert read_line(process) == b"READY\n"
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        assert read_line(process) == b"AGAIN\n"
        assert process.wait(60) == 5


@pytest.mark.parametrize("continued", ["front", "command", "group"])
def test_stopped_front_stops_the_command_until_one_of_both_is_continued(
    tmp_path: Path, continued: str
) -> None:
    script = "echo $$; while [ ! -e go ]; do sleep 0.05; done; echo AGAIN; exit 5"
    with started(tmp_path, script) as process:
        command = int(read_line(process))
        # Before it waits, nobody but the front knows of the command.
        wait_until(lambda: "sigtimedwait" in Path(f"/proc/{process.pid}/wchan").read_text())
        process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        wait_until(lambda: state_of(command) == psutil.STATUS_STOPPED)
        send = os.killpg if continued == "group" else os.kill
        send(command if continued == "command" else process.pid, signal.SIGCONT)
        wait_until(lambda: state_of(command) != psutil.STATUS_STOPPED)
        wait_until(lambda: state_of(process.pid) != psutil.STATUS_STOPPED)
        (tmp_path / "go").touch()
        assert read_line(process) == b"AGAIN\n"
        assert process.wait(60) == 5


def test_stopped_command_that_goes_on_at_once_leaves_nobody_stopped(tmp_path: Path) -> None:
    script = "echo $$; while [ ! -e go ]; do sleep 0.05; done; exit 5"
    with started(tmp_path, script) as process:
        command = int(read_line(process))
        for _ in range(50):
            os.kill(command, signal.SIGSTOP)
            os.kill(command, signal.SIGCONT)
        (tmp_path / "go").touch()
        assert process.wait(60) == 5


def test_ignored_sigchld_does_not_lose_the_code(tmp_path: Path) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    assert run(tmp_path, "exit 6", preexec_fn=ignore).returncode == 6


# ------------------------------------------------------------------------------ parts that die


def test_job_outlives_the_killed_front_with_its_output(tmp_path: Path) -> None:
    script = "echo READY; while [ ! -e go ]; do sleep 0.05; done; echo AFTER; echo end > ended"
    with started(tmp_path, script) as process:
        assert read_line(process) == b"READY\n"
        process.kill()
        process.wait(60)
        (tmp_path / "go").touch()
        assert read_line(process) == b"AFTER\n"
        wait_until((tmp_path / "ended").exists)
        # The watcher sees the end, and completes the record.
        job = tmp_path / "ev/job.json"
        wait_until(lambda: job.exists() and json.loads(job.read_text()).get("ended_ns"))


def test_job_outlives_the_killed_watcher(tmp_path: Path) -> None:
    script = "echo READY; while [ ! -e go ]; do sleep 0.05; done; echo AFTER; exit 9"
    with started(tmp_path, script) as process:
        assert read_line(process) == b"READY\n"
        watcher_of(process.pid).kill()
        (tmp_path / "go").touch()
        assert read_line(process) == b"AFTER\n"
        assert process.wait(60) == 9


@pytest.mark.parametrize("code", [0, 5])
def test_nothing_of_ours_is_left(tmp_path: Path, code: int) -> None:
    # With a code, a report is printed at the end, and the relay must notice that it was.
    with started(tmp_path, f"echo READY; sleep 0.5; exit {code}") as process:
        assert read_line(process) == b"READY\n"
        own = ours(process.pid)
        assert len(own) == 3
        assert process.wait(60) == code
        wait_until(lambda: all(is_gone(one) for one in own))


def test_second_signal_does_not_wait_for_the_report(tmp_path: Path) -> None:
    script = "echo READY; while :; do sleep 0.1; done"
    with started(tmp_path, script) as process:
        assert read_line(process) == b"READY\n"
        watcher = watcher_of(process.pid)
        watcher.suspend()
        try:
            process.send_signal(signal.SIGTERM)
            # The command is gone, and its end is being waited for: signals are for us now.
            wait_until(lambda: not psutil.Process(process.pid).children() or _only_ours(process))
            while process.poll() is None:
                process.send_signal(signal.SIGTERM)
                time.sleep(0.05)
            assert process.returncode == 128 + signal.SIGTERM
        finally:
            watcher.resume()


def _only_ours(process: subprocess.Popen[bytes]) -> bool:
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children()
        return all("whystuck" in " ".join(one.cmdline()) for one in children)
    return True


# ----------------------------------------------------------------------- streams, descriptors


def test_order_of_both_outputs_is_kept_where_they_are_one_file(tmp_path: Path) -> None:
    script = "i=0; while [ $i -lt 300 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done"
    done = run(tmp_path, script, capture_output=False, stdout=subprocess.PIPE, stderr=-2)
    lines = [line for i in range(300) for line in (f"out {i}", f"err {i}")]
    assert done.stdout.decode().split("\n")[:-1] == lines


def test_command_inherits_the_descriptors_of_its_caller_and_we_keep_none(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    script = "echo through >&7; exec 7>&-; echo CLOSED; sleep 60"
    with started(
        tmp_path, script, preexec_fn=lambda: os.dup2(write_fd, 7), close_fds=False
    ) as process:
        os.close(write_fd)
        assert read_line(process) == b"CLOSED\n"
        with os.fdopen(read_fd, "rb") as file:
            # To its end: nobody else holds the other side.
            assert file.read() == b"through\n"


def test_command_has_no_descriptor_of_ours(tmp_path: Path) -> None:
    code = "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))"
    bare = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    done = run_whystuck(
        "run", "--no-agent", "--evidence", "ev", "--", sys.executable, "-c", code, cwd=tmp_path
    )
    assert done.stdout == bare.stdout


@pytest.mark.parametrize("fds", [[0], [1], [2], [0, 1, 2]])
def test_standard_streams_that_are_closed_stay_closed(tmp_path: Path, fds: list[int]) -> None:
    def close() -> None:
        for fd in fds:
            os.close(fd)

    shown = " ".join(map(str, fds))
    script = f"for fd in {shown}; do test -e /proc/$$/fd/$fd && exit 1; done; exit 8"
    assert run(tmp_path, script, preexec_fn=close).returncode == 8


def test_writer_to_our_stdin_sees_when_the_command_closes_it(tmp_path: Path) -> None:
    with started(tmp_path, "exec 0<&-; echo CLOSED; sleep 60", stdin=subprocess.PIPE) as process:
        assert read_line(process) == b"CLOSED\n"
        assert process.stdin is not None
        fd = process.stdin.fileno()

        def is_broken() -> bool:
            with suppress(BrokenPipeError):
                os.write(fd, b"x")
                return False
            return True

        # Processes of ours that have just been forked let go of it a moment later.
        wait_until(is_broken)
        process.stdin.close()


def test_background_child_writes_on_after_the_end(tmp_path: Path) -> None:
    script = "(while [ ! -e go ]; do sleep 0.05; done; echo LATE; echo fine > fate) & echo READY"
    with started(tmp_path, script) as process:
        assert read_line(process) == b"READY\n"
        assert process.wait(60) == 0
        (tmp_path / "go").touch()
        assert read_line(process) == b"LATE\n"
        wait_until((tmp_path / "fate").exists)


def test_orphans_are_not_ours(tmp_path: Path) -> None:
    script = "for i in 1 2 3 4 5; do (sleep 0.2 &) ; done; echo READY; sleep 60"
    with started(tmp_path, script) as process:
        assert read_line(process) == b"READY\n"
        wait_until(lambda: len(psutil.Process(process.pid).children()) == 4)
        zombies = [
            one for one in psutil.Process(process.pid).children(recursive=True)
            if one.status() == psutil.STATUS_ZOMBIE
        ]  # fmt: skip
        assert not zombies


# ---------------------------------------------------------------------------------------- disks

TALKS = "i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i+1)); done; exit 5"
TALKED = "".join(f"line {i}\n" for i in range(200)).encode()


def test_full_disk_changes_neither_code_nor_output(tmp_path: Path) -> None:
    with freezable_disk(tmp_path) as disk:
        (disk.path / "ev").mkdir()
        script = f"dd if=/dev/zero of={disk.path}/filler bs=64k 2>/dev/null; {TALKS}"
        with started(tmp_path, script, evidence=disk.path / "ev") as process:
            assert process.communicate(timeout=120)[0] == TALKED
            assert process.returncode == 5


def test_disk_that_freezes_in_mid_run_holds_up_nothing(tmp_path: Path) -> None:
    script = f"trap 'echo GOT' TERM; echo READY; while [ ! -e go ]; do sleep 0.05; done; {TALKS}"
    with freezable_disk(tmp_path) as disk:
        with started(tmp_path, script, evidence=disk.path / "ev") as process:
            assert read_line(process) == b"READY\n"
            disk.freeze()
            process.send_signal(signal.SIGTERM)
            assert read_line(process) == b"GOT\n"
            (tmp_path / "go").touch()
            assert process.communicate(timeout=120)[0] == TALKED
            assert process.returncode == 5
        disk.thaw()


def test_disk_that_is_frozen_from_the_start_leaves_the_job_unwatched(tmp_path: Path) -> None:
    with freezable_disk(tmp_path) as disk:
        disk.freeze()
        with started(tmp_path, TALKS, evidence=disk.path / "ev", stderr=subprocess.PIPE) as process:
            out, err = process.communicate(timeout=120)
        assert out == TALKED
        assert process.returncode == 5
        assert b"runs unwatched: a file system does not answer" in err
        disk.thaw()


# ----------------------------------------------------------------------- where nothing can be


def test_deleted_working_directory_leaves_the_job_unwatched(tmp_path: Path) -> None:
    place = tmp_path / "gone"
    place.mkdir()
    command = " ".join([*RUN, "ev", "--", "sh", "-c", "'echo ran; exit 5'"])
    done = subprocess.run(
        ["sh", "-c", f"rmdir {place}; exec {command}"], cwd=place, env=clean_environment(),
        capture_output=True, check=False, stdin=subprocess.DEVNULL, timeout=120,
    )  # fmt: skip
    assert done.stdout == b"ran\n"
    assert done.returncode == 5
    assert done.stderr.count(b"whystuck: the job runs unwatched") == 1


def test_no_place_for_the_job_folder_leaves_the_job_unwatched(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    inner = " ".join([*RUN, str(tmp_path / "ev"), "--", "sh", "-c", "'echo ran; exit 5'"])
    # A small /dev/shm is left to the job.
    script = f"mount -t tmpfs -o size=1m tmpfs /dev/shm && exec {inner}"
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", script], cwd=tmp_path,
        env=clean_environment(TMPDIR=str(long)), capture_output=True, check=False,
        stdin=subprocess.DEVNULL, timeout=120,
    )  # fmt: skip
    if b"unshare" in done.stderr or b"mount" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.decode().strip()}")
    assert done.stdout == b"ran\n"
    assert done.returncode == 5
    assert done.stderr.count(b"whystuck: the job runs unwatched") == 1


def test_arguments_that_are_no_utf8_reach_the_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [*map(os.fsencode, RUN), b"ev", b"--", b"printf", b"%s", b"a\xff\xfe"], cwd=tmp_path,
        env=clean_environment(), capture_output=True, check=False, stdin=subprocess.DEVNULL,
        timeout=120,
    )  # fmt: skip
    assert done.stdout == b"a\xff\xfe"
    assert done.returncode == 0
    assert json.loads((tmp_path / "ev/job.json").read_text())["exit_code"] == 0


@pytest.mark.slow
def test_rank_that_is_the_command_itself_loses_no_output(tmp_path: Path) -> None:
    code = "import os; os.write(1, b'words'); os.write(2, b'other'); os._exit(7)"
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    command = [*RUN, "ev", "--", sys.executable, "-c", code]
    # It leaves the channel of the command in the moment in which it gets its own.
    for _ in range(8):
        done = subprocess.run(
            command, cwd=tmp_path, env=clean_environment(**rank), capture_output=True,
            check=False, stdin=subprocess.DEVNULL, timeout=120,
        )  # fmt: skip
        assert done.returncode == 7
        assert done.stdout == b"words"
        assert done.stderr.startswith(b"other")
