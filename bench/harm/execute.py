"""Runs one case, bare or under ``whystuck run``, and notes all that its caller can see."""

import fcntl
import hashlib
import os
import pty
import re
import resource
import select
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import termios
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from bench.harm.cases import Case

MARK = "HARM_MARK"
_TIMEOUT_S = 120.0
_LONG = "x" * 100
_FIFREEZE, _FITHAW = 0xC0045877, 0xC0045878
_DISK_BYTES = 32 << 20


class NotHereError(Exception):
    """The case cannot be run on this machine."""


@dataclass(frozen=True)
class Seen:
    """What the caller of a command sees of it."""

    stdout: bytes
    stderr: bytes
    code: int
    wall_s: float
    files: dict[str, str]
    children: list[str]


def run_case(case: Case, *, whystuck: list[str]) -> Seen:
    """Run a case once.

    Args:
        case: The case.
        whystuck: The words before the command, such as ``whystuck run --``; empty for bare.
            ``{evidence}`` in them is the evidence folder.

    Raises:
        NotHereError: This machine has no loop devices, or no program that the case needs.
    """
    root = Path(tempfile.mkdtemp(prefix="harm-"))
    try:
        with _disk(root, case.disk) as disk:
            return _run(case, root, disk, whystuck)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _run(case: Case, root: Path, disk: Path, whystuck: list[str]) -> Seen:
    cwd = root / "cwd"
    cwd.mkdir()
    names = {"python": sys.executable, "cwd": str(cwd), "long": _LONG, "disk": str(disk)}
    for folder in case.folders:
        (cwd / _fill(folder, names)).mkdir()
    for name, text in case.files.items():
        path = cwd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    evidence = disk / "ev" if case.disk else root / "evidence"
    command = [_fill(word, names) for word in _command_of(case, cwd, bare=not whystuck)]
    command = [word.format(evidence=evidence) for word in whystuck] + command
    mark = uuid.uuid4().hex
    environment = _environment_of(case, names, mark)
    with _Caller(case, cwd, command, environment) as caller:
        caller.follow()
    time.sleep(case.settle_s)
    if case.disk:
        _thaw(disk)
    files = {} if case.delete_cwd else _list_files(cwd)
    return Seen(
        _tidy(caller.out, names), _tidy(caller.err, names), caller.code, caller.wall_s,
        files, _end_children(mark),
    )  # fmt: skip


def _command_of(case: Case, cwd: Path, *, bare: bool) -> list[str]:
    if case.script:
        script = case.script
        if bare and case.bare_skips:
            script = "; ".join(one for one in script.split("; ") if case.bare_skips not in one)
        return ["sh", "-c", script]
    if case.python:
        return [sys.executable, "-c", case.python]
    if case.torchrun:
        (cwd / "train.py").write_text(case.torchrun)
        return ["torchrun", "--standalone", "--nproc-per-node", "2", "train.py"]
    if shutil.which(case.argv[0].replace("{python}", sys.executable)) is None and not case.files:
        raise NotHereError(f"no {case.argv[0]}")
    return list(case.argv)


def _environment_of(case: Case, names: dict[str, str], mark: str) -> dict[str, str]:
    dropped = ("WHYSTUCK_", "TORCHELASTIC_", "PYTHON", "RANK", "LOCAL_RANK", "WORLD_SIZE")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    kept |= {"OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}"}
    if case.bare_environment:
        kept = {}
    for name in case.unset:
        kept.pop(name, None)
    added = {name: _fill(value, names) for name, value in case.env.items()}
    return kept | added | {MARK: mark}


class _Caller:
    """Starts a command as a shell or a batch system does, and reads what it writes."""

    def __init__(
        self, case: Case, cwd: Path, command: list[str], environment: dict[str, str]
    ) -> None:
        self._case = case
        self._cwd = cwd
        self._command = command
        self._environment = environment
        self.out = self.err = b""
        self.code = 0
        self.wall_s = 0.0
        self._pid = 0
        self._ends: dict[int, str] = {}
        self._stdin = -1

    def __enter__(self) -> Self:
        self._begin_s = time.monotonic()
        if self._case.terminal:
            self._start_on_terminal()
        else:
            self._start_on_pipes()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        for fd in list(self._ends):
            os.close(fd)
        self._ends.clear()

    def _start_on_terminal(self) -> None:
        pid, terminal = pty.fork()
        if pid == 0:
            self._become()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 97, 0, 0))
        self._pid, self._stdin, self._ends = pid, terminal, {terminal: "out"}

    def _start_on_pipes(self) -> None:
        in_read, in_write = os.pipe()
        out_read, out_write = os.pipe()
        err_read, err_write = (out_read, out_write) if self._case.join else os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            for source, target in ((in_read, 0), (out_write, 1), (err_write, 2)):
                os.dup2(source, target)
            self._become()
        with suppress(OSError):
            os.setpgid(pid, pid)
        for fd in {in_read, out_write, err_write}:
            os.close(fd)
        os.write(in_write, (self._case.stdin or "").encode())
        os.close(in_write)
        self._pid = pid
        self._ends = {err_read: "err", out_read: "out"}

    def _become(self) -> None:
        case = self._case
        try:
            os.chdir(self._cwd)
            if case.umask >= 0:
                os.umask(case.umask)
            else:
                os.umask(0o022)
            # A shell without job control has its background jobs ignore some, and so does nohup.
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                with suppress(OSError):  # the C library keeps some for itself
                    signal.signal(number, signal.SIG_DFL)
            for name in case.ignore:
                signal.signal(signal.Signals[name], signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, {signal.Signals[n] for n in case.block})
            for place, name in case.open.items():
                opened = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                os.dup2(opened, int(place), inheritable=True)
            null = os.open(os.devnull, os.O_RDWR)
            for fd in case.to_null:
                os.dup2(null, fd)
            for fd in case.close:
                os.close(fd)
            if case.delete_cwd:
                self._cwd.rmdir()
            for name, value in case.limits.items():
                kind = getattr(resource, f"RLIMIT_{name}")
                resource.setrlimit(kind, (value, max(value, resource.getrlimit(kind)[1])))
            os.execvpe(self._command[0], self._command, self._environment)
        finally:
            os._exit(127)

    def follow(self) -> None:
        """Read to the end of the command; what it leaves behind may hold our pipes open."""
        deadline_s = time.monotonic() + _TIMEOUT_S
        pidfd = os.pidfd_open(self._pid)
        is_told = False
        ended = False
        while not ended and time.monotonic() < deadline_s:
            ended = self._read(0.05, pidfd)
            if not is_told and b"READY" in self.out:
                is_told = True
                self._act()
        if not ended:
            os.killpg(self._pid, signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self.code = 128 - code if code < 0 else code
        self.wall_s = time.monotonic() - self._begin_s
        os.close(pidfd)
        # What was written before the end is there now, and a late word of a child soon.
        end_s = time.monotonic() + max(0.3, self._case.settle_s)
        while self._ends and time.monotonic() < end_s:
            self._read(0.05, -1)

    def _act(self) -> None:
        if self._case.typed:
            os.write(self._stdin, self._case.typed.encode())
        if self._case.signal:
            number = self._case.signal
            number = int(signal.Signals[number]) if isinstance(number, str) else number
            (os.killpg if self._case.group else os.kill)(self._pid, number)

    def _read(self, timeout_s: float, pidfd: int) -> bool:
        """Read what is there; return whether the command has ended."""
        watched = [*self._ends, *([pidfd] if pidfd >= 0 else [])]
        ready, _, _ = select.select(watched, [], [], timeout_s)
        for fd in [one for one in ready if one in self._ends]:
            try:
                data = os.read(fd, 1 << 16)
            except OSError:
                data = b""
            if not data:
                del self._ends[fd]
                os.close(fd)
            elif self._ends[fd] == "out":
                self.out += data
            else:
                self.err += data
        return pidfd in ready


def _fill(text: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def _tidy(data: bytes, names: dict[str, str]) -> bytes:
    """Take out what differs from run to run: our own folder, and pids of jobs of a shell."""
    data = re.sub(rb"(?m)^(\[\d+\]) \d+", rb"\1 PID", data)
    return data.replace(names["cwd"].encode(), b"CWD").replace(names["disk"].encode(), b"DISK")


def _list_files(folder: Path) -> dict[str, str]:
    """Return each file with its mode and what is in it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        status = path.lstat()
        kind = f"{stat.filemode(status.st_mode)} {status.st_nlink if path.is_file() else 0}"
        if path.is_symlink():
            found[name] = f"{kind} {path.readlink()}"
        elif path.is_file() and "__pycache__" not in name:
            found[name] = f"{kind} {hashlib.sha256(path.read_bytes()).hexdigest()}"
        elif path.is_dir() and "__pycache__" not in name:
            found[name] = kind
    return found


def _end_children(mark: str) -> list[str]:
    """Return the commands of processes that the case has left, and end them."""
    left = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() not in (folder / "environ").read_bytes():
                continue
            if _is_being_killed(folder):
                continue
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if not any(words):  # it has ended since
                continue
            # What is whystuck's own ends soon; that it does is another test's business.
            if not any(b"whystuck" in word for word in words):
                left.append(" ".join(word.decode(errors="replace") for word in words[:3]))
                os.kill(int(folder.name), signal.SIGKILL)
    return sorted(left)


def _is_being_killed(folder: Path) -> bool:
    """Return whether SIGKILL was sent to a process, which a busy machine takes a while to end."""
    pending = re.findall(r"(?m)^(?:Sig|Shd)Pnd:\t(\w+)", (folder / "status").read_text())
    return any(int(mask, 16) >> (signal.SIGKILL - 1) & 1 for mask in pending)


@contextmanager
def _disk(root: Path, state: str) -> Iterator[Path]:
    place = root / "disk"
    place.mkdir()
    if not state:
        yield place
        return
    image = root / "image"
    with image.open("wb") as file:
        file.truncate(_DISK_BYTES)
    for command in (
        ["mkfs.ext4", "-q", str(image)],
        ["mount", "-o", "loop", str(image), str(place)],
    ):
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            raise NotHereError("no disk can be mounted here")
    try:
        if state == "full":
            with suppress(OSError), (place / "filler").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 16))
        elif state == "frozen":
            _ask_disk(place, _FIFREEZE)
        yield place
    finally:
        _thaw(place)
        subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)


def _thaw(place: Path) -> None:
    with suppress(OSError):
        _ask_disk(place, _FITHAW)


def _ask_disk(place: Path, request: int) -> None:
    fd = os.open(place, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, request, 0)
    finally:
        os.close(fd)
