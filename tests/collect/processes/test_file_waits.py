"""Processes that wait for a file: on a real file system that never answers reads, and elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from whystuck.collect.processes.file_waits import collect_file_waits
from whystuck.collect.sources import find_user_files
from whystuck.evidence.records import FileWait

SERVER = Path(__file__).parents[3] / "bench/faults/h116-fuse/silent_fs.py"
NAME = "shard-000.bin"
READ = "open({path!r}, 'rb').read(10)"
LINK = "import os; os.chdir('/'); open(os.path.relpath({path!r}, '/'), 'rb').read(10)"
MAP = (
    "import mmap; file = open({path!r}, 'rb')\nmmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)[0]"
)
needs_fuse = pytest.mark.skipif(
    not Path("/dev/fuse").exists() or os.geteuid() != 0,
    reason="mounting a FUSE file system needs root and /dev/fuse",
)


@dataclass(frozen=True)
class Silent:
    """Where it is mounted, and the process that answers for it."""

    folder: Path
    server: subprocess.Popen[bytes]


@pytest.fixture(params=["deep", "flat"])
def silent(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Silent]:
    """Mount a file system whose reads wait in state D (deep) or S (flat)."""
    folder = tmp_path / "mount"
    folder.mkdir()
    command = [sys.executable, str(SERVER), str(folder), request.param]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert server.stdout is not None
    if server.stdout.readline() != b"mounted\n":
        pytest.skip(f"FUSE is not allowed here: {server.communicate()[1].decode()[-200:]}")
    yield Silent(folder, server)
    server.terminate()
    server.communicate()


def _wait_for(pid: int, path: str, call: str = "") -> FileWait:
    """Wait for the wait; those of the interpreter that starts, and of an open, may come before."""
    deadline_s = time.monotonic() + 30
    while True:
        waits = [wait for wait in collect_file_waits(pid) if wait.path == path]
        found = [wait for wait in waits if call in ("", wait.call)]
        if found:
            return found[0]
        assert time.monotonic() < deadline_s, "it never waited"
        time.sleep(0.05)


@needs_fuse
@pytest.mark.parametrize(
    ("code", "call"),
    [(READ, "read"), (LINK, "read"), (MAP, "page fault")],
    ids=["read", "link", "map"],
)
def test_read_that_is_never_answered_is_seen_with_path_and_mount(
    silent: Silent, code: str, call: str
) -> None:
    process = subprocess.Popen([sys.executable, "-c", code.format(path=str(silent.folder / NAME))])
    try:
        wait = _wait_for(process.pid, str(silent.folder / NAME), call)
        assert wait.is_main
        assert (wait.mount, wait.fs_type, wait.is_remote) == (
            str(silent.folder),
            "fuse.silent",
            True,
        )
        assert wait.state in {"D", "S"}
        time.sleep(0.3)
        (again,) = collect_file_waits(process.pid)
        assert again.switches == wait.switches
    finally:
        # While the server holds its request, not even SIGKILL ends the process.
        silent.server.terminate()
        process.kill()
        process.wait()


@needs_fuse
def test_server_of_a_mount_that_waits_for_work_is_kept_by_nobody(silent: Silent) -> None:
    assert collect_file_waits(silent.server.pid) == []


@pytest.mark.parametrize(
    "code",
    [
        "time.sleep(60)",
        "input()",
        "a, b = socket.socketpair(); a.recv(1)",
    ],
)
def test_sleeps_pipes_and_sockets_are_no_file_waits(code: str) -> None:
    code = f"import socket, time; print('ready', flush=True); {code}"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert collect_file_waits(process.pid) == []
    finally:
        process.kill()
        process.communicate()


def test_process_that_is_gone_has_none() -> None:
    assert collect_file_waits(2**22 + 1) == []


def test_sources_on_a_mount_that_ranks_wait_for_are_not_looked_for(tmp_path: Path) -> None:
    rank = tmp_path / "n0" / "rank-0"
    rank.mkdir(parents=True)
    (rank / "stacks-0.json").write_text('["/mnt/data/train.py", "/home/me/train.py"]')
    (rank / "proc.json").write_text(
        '{"samples": [{"taken_ns": 1, "pid": 2, "file_waits": '
        '[{"mount": "/mnt/data", "is_remote": true}]}]}'
    )
    assert find_user_files(tmp_path) == {"/home/me/train.py"}
