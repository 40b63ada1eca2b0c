"""Processes of other users for tests, which do as they are told: real users, roots and mounts."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

STRANGER, THIRD = 12345, 54321
SECRET = '{"baseTimeNanoseconds": 1, "traceEvents": [{"name": "ROOTONLY"}],"traceName": "x"}'
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="becomes other users, which root can")

_PROGRAM = """
import ctypes, json, os, stat, sys, threading, time
kind, root, uid, inside = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
libc = ctypes.CDLL(None, use_errno=True)
if kind == "chroot":
    os.chroot(root)
os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
if kind == "namespace":
    libc.prctl(4, 1, 0, 0, 0)  # its own files in /proc, which a change of user takes away
    if libc.unshare(0x10000000 | 0x20000):
        print("no", flush=True); sys.exit()
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {uid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    for pair in inside:
        source, _, target = pair.partition(":")
        if libc.mount(source.encode(), target.encode(), None, 0x1000 | 0x4000, None):
            print("no", flush=True); sys.exit()
    os.chroot(root)
os.chdir("/")
print("ready", flush=True)
for line in sys.stdin:
    exec(json.loads(line), globals())
    print("done", flush=True)
"""


class Kind(StrEnum):
    """Where another user's process lives."""

    PLAIN = "plain"
    CHROOT = "chroot"
    NAMESPACE = "namespace"


class Stranger:
    """A process of another user, a context manager."""

    def __init__(
        self,
        kind: Kind,
        root: Path,
        *,
        uid: int = STRANGER,
        mounts: Mapping[Path, Path] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        pairs = [f"{source}:{target}" for source, target in (mounts or {}).items()]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, kind, str(root), str(uid), *pairs],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.pid = self._process.pid
        if self._read() != "ready":
            self.end()
            pytest.skip("user namespaces are off here")

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def do(self, code: str) -> None:
        """Have it run some lines of Python."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        assert self._read() == "done"

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Kill it."""
        self.end()


class Scenery:
    """A folder that all may enter, with one of root's own in it, and one of the stranger's."""

    def __init__(self, top: Path) -> None:
        self.top = top
        top.chmod(0o755)
        self.secrets = top / "secrets"
        self.secrets.mkdir(mode=0o700)
        self.secret = self.secrets / "t_7.json"
        self.secret.write_text(SECRET)
        self.secret.chmod(0o600)
        self.output = top / "output"
        self.output.mkdir(mode=0o700)
        self.jail = top / "jail"
        for name in ("", "tmp", "traces", "etc"):
            self.give(self.jail / name)

    def give(self, folder: Path, uid: int = STRANGER) -> Path:
        """Make a folder of the stranger's."""
        folder.mkdir(exist_ok=True)
        os.chown(folder, uid, uid)
        return folder

    def outside(self, inside: str) -> Path:
        """Return where a path of the jail lies for us."""
        return self.jail / inside.lstrip("/")

    def told(self, kind: Kind, inside: str) -> str:
        """Return what a process that lives so calls a path of the jail."""
        return str(self.outside(inside)) if kind is Kind.PLAIN else inside

    def write(self, inside: str, text: str, uid: int = STRANGER) -> Path:
        """Write a file into the jail, as some user."""
        path = self.outside(inside)
        path.write_text(text)
        os.chown(path, uid, uid)
        return path

    def check_unharmed(self) -> None:
        """See that nothing of root's was published, changed or removed."""
        assert self.secret.read_text() == SECRET
        assert sorted(one.name for one in self.secrets.iterdir()) == ["t_7.json"]
        # By descriptor: a stranger may put a link to root's folder into the path meanwhile.
        for folder, _, names, fd in os.fwalk(self.top):
            for name in names if folder != str(self.secrets) else ():
                with suppress(OSError):
                    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
                    with os.fdopen(os.open(name, flags, dir_fd=fd), "rb") as file:
                        status = os.fstat(file.fileno())
                        is_secret = os.path.samestat(status, self.secret.lstat())
                        data = file.read() if stat.S_ISREG(status.st_mode) else b""
                    # A hard link to the secret may lie there: the test has made it.
                    assert is_secret or b"ROOTONLY" not in data, f"{folder}/{name}"


@contextmanager
def scenery() -> Iterator[Scenery]:
    """Make it, below a folder that other users can come through, for the time of a block."""
    top = Path(tempfile.mkdtemp(prefix="wsd-", dir="/tmp"))
    try:
        yield Scenery(top)
    finally:
        with suppress(OSError):
            shutil.rmtree(top)


def filter_system_call(number: int, error: int) -> None:
    """Have a system call fail in this process from now on, as the filters of containers do."""

    class Filter(ctypes.Structure):
        _fields_ = (
            ("code", ctypes.c_uint16),
            ("jt", ctypes.c_uint8),
            ("jf", ctypes.c_uint8),
            ("k", ctypes.c_uint32),
        )

    class Program(ctypes.Structure):
        _fields_ = (("len", ctypes.c_uint16), ("filter", ctypes.POINTER(Filter)))

    lines = (Filter * 4)(
        Filter(0x20, 0, 0, 0),
        Filter(0x15, 0, 1, number),
        Filter(0x06, 0, 0, 0x00050000 | error),
        Filter(0x06, 0, 0, 0x7FFF0000),
    )
    program = Program(4, lines)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0
