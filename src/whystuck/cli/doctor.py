"""``whystuck doctor``: what whystuck can see and do on this machine."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from whystuck import __version__
from whystuck.cli.stdout import encode_for_stdout, write_stdout
from whystuck.safe_text.escaping import show_line

_PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the very folder that is checked
_TIMEOUT_S = 20
_FIRST_WITH_HOOKS = (2, 14)
# The least that PyTorch's data loaders and backends need is far more; below this, nothing runs.
_MIN_SHARED_BYTES = 64 << 20

_DISK_S = 5.0
_MIN_EVIDENCE_MB = 1024
_SLOWING = ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE")

# Run in the job's Python, which may be any version: reads metadata, never imports torch, nor a
# module of the working directory, which is the first place that it would look into.
_LOOK = """
import sys
sys.path[:] = [place for place in sys.path if place]
import json
from importlib import metadata
def version(name):
    try: return metadata.version(name)
    except Exception: return ""
def entries():
    found = metadata.entry_points()
    if hasattr(found, "select"): return found.select(group="torch.backends")
    return found.get("torch.backends", [])
def native():
    try: import whystuck_native as module; return str(module.__version__)
    except Exception: return ""
print(json.dumps({"python": sys.version.split()[0], "torch": version("torch"), "native": native(),
                  "entry": any(e.value.startswith("whystuck") for e in entries())}))
"""


@dataclass(frozen=True)
class Answer:
    """The result of one check: ``ok``, ``note`` (works, with a limit) or ``fail``."""

    state: str
    text: str
    hint: str = ""


@click.command()
def doctor() -> int:
    """Check what whystuck can see and do here.

    One line a check. Exits with 1 when a check failed, with 0 otherwise.
    """
    answers = [answer for check in _CHECKS for answer in check()]
    # They quote variables, paths, and what programs say.
    lines = [show_line(f"{answer.state:<4}  {answer.text}") for answer in answers]
    hints = [show_line(f"hint: {answer.hint}") for answer in answers if answer.hint]
    write_stdout(encode_for_stdout("\n".join([*lines, *([""] if hints else []), *hints]) + "\n"))
    return 1 if any(answer.state == "fail" for answer in answers) else 0


def check_tool() -> list[Answer]:
    """Tell our own version and Python."""
    python = sys.version.split()[0]
    return [Answer("ok", f"whystuck {__version__} on Python {python} ({sys.executable})")]


def check_job_python() -> list[Answer]:
    """Tell which torch the job's Python has, and whether it will load our probe."""
    python = shutil.which("python") or shutil.which("python3") or sys.executable
    seen = _ask_python(python)
    if seen is None:
        return [Answer("fail", f"{python} does not answer", "activate the job's environment")]
    if not seen["torch"]:
        return [
            Answer(
                "note",
                f"no torch in the environment of {python}",
                "to run a job, activate its environment first; `whystuck diagnose` needs no torch",
            )
        ]
    answers = [Answer("ok", f"torch {seen['torch']} on Python {seen['python']} ({python})")]
    if seen["entry"]:
        answers.append(Answer("ok", "torch loads the probe by its entry point"))
    else:
        text = "whystuck is not installed beside torch; `run` brings the probe by path"
        answers.append(Answer("note", text))
    return [*answers, *_name_recorder(seen["torch"], seen.get("native", ""))]


def _name_recorder(torch: str, native: str) -> list[Answer]:
    """Tell what will record collectives; no answer for a version of torch that says nothing."""
    found = re.match(r"(\d+)\.(\d+)", torch)
    if found is None:
        return []
    if (int(found[1]), int(found[2])) < _FIRST_WITH_HOOKS:
        return [Answer("ok", "collectives are recorded by kernels of the dispatcher")]
    if native and os.environ.get("WHYSTUCK_NATIVE") != "0":
        return [Answer("ok", f"collectives are recorded by hooks in C (whystuck-native {native})")]
    hint = (
        "`pip install whystuck-native` beside the job's torch: recording costs half as much, and "
        "after a kill at most the last collective is missing"
    )
    return [Answer("note", "collectives are recorded by hooks in Python", hint)]


def check_switch() -> list[Answer]:
    """Tell when the environment switches the probe off."""
    if os.environ.get("WHYSTUCK_DISABLE"):
        return [Answer("note", "WHYSTUCK_DISABLE is set: nothing is recorded inside a job")]
    return []


def check_py_spy() -> list[Answer]:
    """Take the stack of a child process, as a snapshot of a job does."""
    beside = Path(sys.executable).with_name("py-spy")
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None:
        return [Answer("fail", "py-spy not found", "`pip install py-spy`: it takes the stacks")]
    with subprocess.Popen(
        [sys.executable, "-P", "-c", "import time; print('up', flush=True); time.sleep(60)"],
        stdout=subprocess.PIPE,
    ) as child:
        try:
            if child.stdout is not None:
                child.stdout.readline()
            done = _run([program, "dump", "--pid", str(child.pid)])
        finally:
            child.kill()
    if done is not None and done.returncode == 0 and "<module>" in done.stdout:
        return [Answer("ok", "py-spy takes stacks of other processes")]
    hint = (
        "allow ptrace: `sudo sysctl kernel.yama.ptrace_scope=0`, or start the container with "
        "`--cap-add SYS_PTRACE`; without it, stacks come from inside the job only"
    )
    return [Answer("fail", f"py-spy cannot take stacks: {_reason(done)}", hint)]


def check_ptrace_scope() -> list[Answer]:
    """Tell what the kernel allows."""
    meanings = {
        "0": "any process of the same user",
        "1": "child processes only",
        "2": "root only",
        "3": "nobody",
    }
    try:
        scope = _PTRACE_SCOPE.read_text(encoding="ascii").strip()
    except OSError:
        return [Answer("ok", "ptrace scope: no limit by Yama")]
    state = "ok" if scope == "0" else "note"
    return [Answer(state, f"ptrace scope {scope}: {meanings.get(scope, 'unknown')}")]


def check_shared_memory() -> list[Answer]:
    """Write to /dev/shm, and tell how much is free."""
    try:
        with tempfile.TemporaryFile(dir=_SHARED_MEMORY) as file:
            file.write(b"whystuck")
        free = shutil.disk_usage(_SHARED_MEMORY).free
    except OSError as problem:
        return [Answer("fail", f"{_SHARED_MEMORY} cannot be written: {problem.strerror}")]
    if free >= _MIN_SHARED_BYTES:
        return [Answer("ok", f"{_SHARED_MEMORY} writable, {free >> 20} MiB free")]
    return [
        Answer(
            "note",
            f"{_SHARED_MEMORY} has only {free >> 20} MiB free",
            "start the container with `--shm-size 8g` or more",
        )
    ]


def check_recorder() -> list[Answer]:
    """Tell whether variables switch torch's flight recorder off."""
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        if (value := os.environ.get(name, "")) == "0":
            text = f"{name}={value} switches torch's flight recorder off"
            hint = f"`unset {name}`: without a record of collectives there are stacks only"
            return [Answer("note", text, hint)]
    return [Answer("ok", "no variable switches torch's flight recorder off")]


def check_nccl() -> list[Answer]:
    """Tell what variables of NCCL and gloo ask for, and what of it is not here."""
    from whystuck.launch.environment.nccl import NcclOptions
    from whystuck.launch.environment.nccl_check import list_warnings

    names = sorted(name for name in os.environ if name.startswith(("NCCL_", "GLOO_")))
    answers = [Answer("note", text) for text in list_warnings(os.environ, NcclOptions())]
    if os.environ.get("NCCL_DEBUG", "").upper() in {"INFO", "TRACE"}:
        hint = "`unset NCCL_DEBUG` when the trouble is found: WARN is enough for daily work"
        answers.append(Answer("note", "NCCL_DEBUG prints much, which costs time", hint))
    for name in _SLOWING:
        if os.environ.get(name, "0") not in ("", "0"):
            text = f"{name} is set: collectives take a slower way"
            answers.append(Answer("note", text, f"`unset {name}`, unless it was set for a reason"))
    if not answers:
        set_ones = f": {', '.join(names)}" if names else ""
        answers.append(Answer("ok", f"variables of NCCL and gloo are in order{set_ones}"))
    return answers


def check_sockets() -> list[Answer]:
    """Make a job folder and a socket in it, as `whystuck run` does."""
    from whystuck.launch.jobdir import make_job_dir

    try:
        with make_job_dir() as folder, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "doctor.sock"))
    except OSError as problem:
        hint = "set TMPDIR to a short path on this node that can be written"
        return [Answer("fail", f"no socket can be made: {problem.strerror or problem}", hint)]
    return [Answer("ok", f"sockets can be made in {folder.parent}")]


def check_evidence_disk() -> list[Answer]:
    """Write where `whystuck run` writes its evidence; a file server that hangs is no answer."""
    from whystuck.check.apart import start_apart, wait_apart

    def write(tell: Callable[[bytes], None]) -> None:
        try:
            with tempfile.TemporaryFile(dir=".") as file:
                file.write(b"whystuck")
            tell(f"{shutil.disk_usage('.').free >> 20}".encode())
        except OSError as problem:
            tell(f"{problem.strerror or problem}".encode())

    (work,) = wait_apart([start_apart(write, _DISK_S)])
    told = work.lines[0].decode() if work.lines else f"no answer in {_DISK_S:g} s"
    if not told.isdecimal():
        hint = "name another folder with `--evidence DIR`; `whystuck check --only disk` tells more"
        return [Answer("fail", f"evidence cannot be written here: {told}", hint)]
    state = "ok" if int(told) >= _MIN_EVIDENCE_MB else "note"
    return [Answer(state, f"evidence can be written here, {told} MiB free")]


def check_log_engine() -> list[Answer]:
    """Tell what logs are searched with."""
    from whystuck.parse.logs.search.scan import LogPatterns
    from whystuck.parse.logs.signatures import load_signatures

    engine = LogPatterns(load_signatures()[:1]).engine
    text = f"logs are searched with {engine}"
    if engine == "hyperscan" or platform.machine() != "x86_64":
        return [Answer("ok", text)]
    return [Answer("note", text, "`pip install 'whystuck[fast]'` searches several times as fast")]


_CHECKS: Sequence[Callable[[], list[Answer]]] = (
    check_tool,
    check_job_python,
    check_switch,
    check_py_spy,
    check_ptrace_scope,
    check_shared_memory,
    check_recorder,
    check_nccl,
    check_sockets,
    check_evidence_disk,
    check_log_engine,
)


def _ask_python(python: str) -> dict[str, str] | None:
    done = _run([python, "-c", _LOOK])
    if done is None or done.returncode != 0:
        return None
    try:
        seen = json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError:
        return None
    return seen if isinstance(seen, dict) else None


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def _reason(done: subprocess.CompletedProcess[str] | None) -> str:
    if done is None:
        return f"no answer in {_TIMEOUT_S} s"
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return lines[0].removeprefix("Error: ") if lines else f"it ended with code {done.returncode}"
