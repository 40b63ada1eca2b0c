"""Processes in which a thread or a child dies of a fatal signal: they end as without the probe."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from tests.disks import small_disk
from tests.probe.job import TRAIN, artifact, job_dir, start_rank

# Without the GIL, so that the others go on.
THREAD_DIES = """
import ctypes, os, threading
threading.Thread(target=ctypes.CDLL(None).abort, daemon=True).start()
while os.path.getsize(sys.argv[2]) == 0:
    time.sleep(0.01)
"""

# A handler that is registered before torch is imported runs after those of the probe.
LATE = """
import atexit, ctypes, sys
def die():
    ctypes.CDLL(None).abort()
atexit.register(die)
import torch, torch.distributed as dist
dist.init_process_group("gloo")
exec(sys.argv[1])
"""

FORKS = """
import ctypes, os, signal
libc = ctypes.CDLL(None)
if sys.argv[2] == "C":
    # As C code does: nothing of Python runs in the child.
    stack = ctypes.create_string_buffer(1 << 20)
    top = ctypes.c_void_p(ctypes.addressof(stack) + (1 << 20) - 64)
    pid = libc.clone(libc.abort, top, int(signal.SIGCHLD), None)
else:
    pid = os.fork()
    if pid == 0:
        libc.abort()
status = os.waitpid(pid, 0)[1]
assert os.WTERMSIG(status) == signal.SIGABRT
# Longer than the probe would wait for itself to die.
time.sleep(9 if sys.argv[2] == "C" else 0)
dist.destroy_process_group()
sys.exit(42)
"""

BECOMES_ANOTHER = """
import ctypes, os, signal
pid = os.fork()
if pid == 0:
    import faulthandler
    assert not faulthandler.is_enabled()
    faulthandler.enable()
    ctypes.CDLL(None).abort()
assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGABRT
sys.exit(42)
"""


def _run(
    tmp_path: Path, folder: Path, then: str, argument: str = "", script: str = TRAIN
) -> tuple[int, bytes, bytes, bytes]:
    """Return its code, its output, its errors, and what faulthandler has written for the probe."""
    then = f"sys.argv.append({argument!r})\n{then}"
    process = start_rank(tmp_path, folder, then, script=script)
    out, err = _communicate(process)
    return process.returncode, out, err, artifact(folder, "fatal", process).read_bytes()


def _communicate(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    try:
        return process.communicate(timeout=120)
    finally:
        process.kill()


@pytest.mark.parametrize(
    "way_out", ["sys.exit(0)", pytest.param("os._exit(3)", marks=pytest.mark.slow)]
)
def test_thread_that_dies_then_the_others_do_not_end_the_process_with_a_code(
    tmp_path: Path, way_out: str
) -> None:
    with job_dir() as folder:
        then = f"sys.argv.append(f'{folder}/fatal-{{__import__(\"os\").getpid()}}')\n{THREAD_DIES}"
        process = start_rank(tmp_path, folder, then + way_out)
        out, _ = _communicate(process)
        fatal = artifact(folder, "fatal", process).read_bytes()
    assert (process.returncode, out) == (-signal.SIGABRT, b"trained\n")
    assert fatal.startswith(b"Fatal Python error: Aborted")


def test_thread_that_dies_after_the_probe_has_left_then_nothing_is_held_or_written(
    tmp_path: Path,
) -> None:
    with job_dir() as folder:
        code, _, err, fatal = _run(tmp_path, folder, "", script=LATE)
    assert (code, err, fatal) == (-signal.SIGABRT, b"", b"")


def test_stacks_that_the_job_wants_for_itself_are_written_there_to_the_end(tmp_path: Path) -> None:
    wants = "import faulthandler; faulthandler.enable(all_threads=False)"
    with job_dir() as folder:
        code, _, err, fatal = _run(tmp_path, folder, wants, script=LATE)
    assert (code, fatal) == (-signal.SIGABRT, b"")
    assert err.count(b"Fatal Python error: Aborted") == 1
    assert b"in die" in err


@pytest.mark.parametrize("how", ["Python", pytest.param("C", marks=pytest.mark.slow)])
def test_child_that_dies_then_its_parent_lives_on(tmp_path: Path, how: str) -> None:
    with job_dir() as folder:
        code, out, err, fatal = _run(tmp_path, folder, FORKS, how)
    assert (code, out, err) == (42, b"trained\n", b"")
    # That of a child of C code is taken for nobody's.
    assert how == "C" or fatal == b""


def test_child_may_write_stacks_of_its_own(tmp_path: Path) -> None:
    with job_dir() as folder:
        code, _, err, fatal = _run(tmp_path, folder, BECOMES_ANOTHER)
    assert (code, fatal) == (42, b"")
    assert err.count(b"Fatal Python error: Aborted") == 1


# A signal from elsewhere, after which the process itself does nothing wrong.
IS_SENT = """
import faulthandler, os, shutil, signal
BEFORE
os.kill(os.getpid(), signal.SIGABRT)
end = time.monotonic() + 20
while time.monotonic() < end:
    time.sleep(0.1)
sys.exit(42)
"""
BEFORE = {
    "nothing": "",
    "enabled": "faulthandler.enable(open(os.devnull, 'w'))",
    "enabled and disabled": "faulthandler.enable()\nfaulthandler.disable()",
    "refused": "try:\n    faulthandler.enable(5.5)\nexcept AttributeError:\n    pass",
    "folder gone": "shutil.rmtree(os.environ['WHYSTUCK_JOB_DIR'])",
    "other user": "os.geteuid() or os.setuid(65534)",
}


@pytest.mark.parametrize("before", BEFORE)
def test_signal_that_is_sent_then_the_process_ends_by_it(tmp_path: Path, before: str) -> None:
    with job_dir() as folder:
        then = IS_SENT.replace("BEFORE", BEFORE[before])
        process = start_rank(tmp_path, folder, then)
        out, err = _communicate(process)
    assert (process.returncode, out, err) == (-signal.SIGABRT, b"trained\n", b"")


FILL = """
with open("FOLDER/filler", "wb", buffering=0) as filler:
    try:
        while filler.write(bytes(4096)):
            pass
    except OSError:
        pass
"""


@pytest.mark.parametrize("is_full", [True, False], ids=["from the start", "later"])
def test_signal_on_a_full_disk_then_the_process_ends_by_it(tmp_path: Path, is_full: bool) -> None:
    with small_disk("size=4m", is_full=is_full) as folder:
        then = IS_SENT.replace("BEFORE", FILL.replace("FOLDER", str(folder)))
        process = start_rank(tmp_path, folder, then)
        out, err = _communicate(process)
    assert (process.returncode, out, err) == (-signal.SIGABRT, b"trained\n", b"")


LIMITED = """
import os, resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""


def test_job_that_may_write_short_files_only_is_sent_no_signal_for_ours(tmp_path: Path) -> None:
    with job_dir() as folder:
        process = start_rank(tmp_path, folder, script=LIMITED)
        assert (*_communicate(process), process.returncode) == (b"", b"", 0)
