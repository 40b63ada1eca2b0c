"""What the kernel has logged since a job began: processes it ended, crashes, broken devices.

/dev/kmsg is opened when the job starts and read when it has ended, so that nothing older is in it.
Where that is not allowed, the journal is asked. A kernel that floods its log is read for a second.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import time
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

from whystuck.collect.programs import run_program

KMSG = "/dev/kmsg"
MAX_BYTES = 1 << 20
_MAX_RECORD_BYTES = 8192
_MAX_READ_S = 1.0
_JOURNAL_S = 1.5
# PROC_PID_INIT_INO of the kernel: the namespace of processes in which it counts them in its log.
_INIT_NAMESPACE = 0xEFFFFFFC
_OOM_BEGINS = re.compile(rb" invoked oom-killer: ")
_OOM_ENDS = re.compile(rb"Killed process (\d{1,10}) ")
_OF_PROCESS = re.compile(
    # The kernel cuts its lines at 1,024 characters.
    rb"(?:reaped process |oom-kill:.{0,1024}\bpid=)(\d{1,10})"
    rb"|\[(\d{1,10})\]:? (?:segfault|trap|general protection|bad frame)"
)


class KernelLog:
    """The kernel's log from now on, or all of it."""

    def __init__(self, node: str, path: str = KMSG, *, is_whole: bool = False) -> None:
        """Remember where the log ends now; lines will name ``node``.

        With ``is_whole``, all is read that the kernel has kept since it was started.
        """
        self.problem = ""
        self._node = node
        self._began_s = time.time() - (time.monotonic() if is_whole else 0.0)
        self._fd = -1
        self._lines: list[bytes] = []
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if not is_whole:
                os.lseek(self._fd, 0, os.SEEK_END)
        except OSError as error:
            self.problem = f"{path} cannot be read: {error.strerror or error}"
            self.close()

    def read(self) -> bytes:
        """Return the lines since the start, as the journal has them, the last MiB.

        ``problem`` says why there are none, when the log cannot be read.
        """
        if self._fd < 0:
            return self._read_journal()
        deadline_s = time.monotonic() + _MAX_READ_S
        # The kernel counts from its start, with a clock that may be a little off.
        booted_s = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
        while time.monotonic() < deadline_s:
            try:
                record = os.read(self._fd, _MAX_RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:  # some were overwritten before we came
                    continue
                self.problem = f"the kernel log cannot be read: {error.strerror or error}"
                break
            if not record:
                break
            if (line := _make_line(record, booted_s, self._node)) is not None:
                self._lines.append(line)
        return self._join()

    def _join(self) -> bytes:
        """Return what was read so far, without what is too old to be kept."""
        text = b"".join(self._lines)
        if len(text) > MAX_BYTES:
            text = text[-MAX_BYTES:].partition(b"\n")[2]
        self._lines = [text]
        return text

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_journal(self) -> bytes:
        program = shutil.which("journalctl")
        if program is None:
            return b""
        options = ["-k", "-q", "--no-pager", "-o", "short-iso-precise", "-n", "10000"]
        try:
            done = run_program([program, *options, f"--since=@{int(self._began_s)}"], _JOURNAL_S)
        except (OSError, subprocess.TimeoutExpired):
            return b""
        return done.stdout[-MAX_BYTES:]


def _make_line(record: bytes, booted_s: float, node: str) -> bytes | None:
    """Turn ``6,1234,5678901,-;text`` into ``2026-01-31T12:00:00.123456+00:00 n0 kernel: text``."""
    head, found, text = record.partition(b";")
    fields = head.split(b",")
    if not found or len(fields) < 3 or not fields[2].isdigit():  # noqa: PLR2004 - the time is third
        return None
    moment = datetime.fromtimestamp(booted_s + int(fields[2]) / 1e6, UTC)
    stamp = moment.strftime("%Y-%m-%dT%H:%M:%S.%f+00:00")
    # Lines after the first are properties of a device.
    return f"{stamp} {node} kernel: ".encode() + text.split(b"\n", 1)[0] + b"\n"


def counts_as_kernel() -> bool:
    """Tell whether processes have the same numbers here as in the kernel's log."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _INIT_NAMESPACE
    except OSError:
        return False


def drop_foreign(text: bytes, own: Collection[int]) -> tuple[bytes, int]:
    """Leave out the ends of processes that are none of ours: other jobs run on this machine too.

    Args:
        text: Lines of the kernel, numbers of processes as they are here.
        own: The processes of the job.

    Returns:
        The other lines, and how many are left out.
    """
    kept: list[bytes] = []
    begin = None
    lines = text.splitlines(keepends=True)
    for line in lines:
        if _OOM_BEGINS.search(line):
            begin = len(kept)
        if match := _OOM_ENDS.search(line):
            if int(match[1]) not in own:
                # What it printed of the memory of all processes belongs to that end.
                del kept[len(kept) if begin is None else begin :]
                begin = None
                continue
            begin = None
        elif (match := _OF_PROCESS.search(line)) and int(match[1] or match[2]) not in own:
            continue
        kept.append(line)
    return b"".join(kept), len(lines) - len(kept)
