"""The kernel's log: only what comes after the start, and a reason where it cannot be read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest

from whystuck.collect.node import kernel_log
from whystuck.collect.node.kernel_log import KMSG, KernelLog, drop_foreign
from whystuck.collect.processes.proc_files import list_descendants


def _can_write() -> bool:
    return os.access(KMSG, os.R_OK | os.W_OK)


@pytest.mark.skipif(not _can_write(), reason="/dev/kmsg is not ours to read and write")
def test_read_then_has_what_came_since_the_start() -> None:
    mark = f"whystuck test {uuid.uuid4().hex}"
    _log(f"{mark} before")
    log = KernelLog("n0")
    _log(f"{mark} after")
    lines = [line for line in log.read().decode().splitlines() if mark in line]
    _log(f"{mark} later")
    again = [line for line in log.read().decode().splitlines() if mark in line]
    log.close()
    (line,) = lines
    stamp, _, text = line.partition(" ")
    assert text == f"n0 kernel: {mark} after"
    moment = datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%S.%f%z")
    assert abs((moment - datetime.now(UTC)).total_seconds()) < 60
    assert [line.rpartition(" ")[2] for line in again] == ["after", "later"]
    assert log.problem == ""


@pytest.mark.skipif(not _can_write(), reason="/dev/kmsg is not ours to read and write")
def test_read_when_the_kernel_says_much_then_keeps_the_last_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel_log, "MAX_BYTES", 200)
    log = KernelLog("n0")
    for number in range(8):
        _log(f"whystuck test number {number}")
    for _ in range(2):
        text = log.read()
        assert len(text) <= 200
        assert text.startswith(b"20")
        assert text.endswith(b"number 7\n")
    log.close()


def _log(text: str) -> None:
    with Path(KMSG).open("w") as file:
        file.write(f"<6>{text}\n")


FOREIGN = b"""\
1 n0 kernel: python invoked oom-killer: gfp_mask=0xcc0
1 n0 kernel: Memory cgroup stats for /other:
1 n0 kernel: oom-kill:constraint=CONSTRAINT_MEMCG,task=python,pid=70,uid=0
1 n0 kernel: Memory cgroup out of memory: Killed process 70 (python) total-vm:1kB
2 n0 kernel: NVRM: Xid (PCI:0000:9b:00): 79, pid=70, GPU has fallen off the bus.
3 n0 kernel: python[71]: segfault at 0 ip 00 sp 00 error 4 in libc.so.6
3 n0 kernel: traps: python[72] trap invalid opcode ip:00
3 n0 kernel: oom_reaper: reaped process 70 (python), now anon-rss:0kB
4 n0 kernel: python invoked oom-killer: gfp_mask=0xcc0
4 n0 kernel: oom-kill:constraint=CONSTRAINT_MEMCG,task=python,pid=7,uid=0
4 n0 kernel: Memory cgroup out of memory: Killed process 7 (python) total-vm:1kB
5 n0 kernel: python[8]: segfault at 0 ip 00 sp 00 error 4 in libc.so.6
"""


def test_ends_of_foreign_processes_are_left_out_and_all_else_is_kept() -> None:
    text, dropped = drop_foreign(FOREIGN, {7, 8})
    assert [line[:1] for line in text.splitlines()] == [b"2", b"4", b"4", b"4", b"5"]
    assert dropped == 7
    assert drop_foreign(b"", {7}) == (b"", 0)
    assert drop_foreign(b"Killed process 70 (x)\n", {7}) == (b"", 1)


def test_processes_below_are_listed() -> None:
    child = (
        "import subprocess, sys; p = subprocess.Popen(['cat']); print(p.pid, flush=True); p.wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        grandchild = int(process.stdout.readline())
        assert {process.pid, grandchild} <= list_descendants(os.getpid())
        assert list_descendants(process.pid) == {grandchild}
        assert list_descendants(2**22 + 1) == set()


def test_read_when_there_is_no_log_then_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    log = KernelLog("n0", str(tmp_path / "kmsg"))
    assert log.read() == b""
    assert log.problem == f"{tmp_path}/kmsg cannot be read: No such file or directory"
    log.close()


def test_read_when_it_is_no_kernel_log_then_has_nothing(tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_text("")
    log = KernelLog("n0", str(tmp_path / "kmsg"))
    (tmp_path / "kmsg").write_text("no record\n6,1;x\n6,1,x,-;y\n")
    assert log.read() == b""
    log.close()


def test_read_when_the_journal_hangs_then_does_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "journalctl"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o700)
    monkeypatch.setattr(shutil, "which", lambda _: str(program))
    monkeypatch.setattr(kernel_log, "_JOURNAL_S", 0.2)
    log = KernelLog("n0", str(tmp_path / "kmsg"))
    begin_s = time.monotonic()
    assert log.read() == b""
    assert time.monotonic() - begin_s < 300
    assert log.problem
