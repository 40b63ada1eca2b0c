"""The probe, broken on purpose: the job must end as it would without us."""

from __future__ import annotations

import signal
import socket
import subprocess
from pathlib import Path

import pytest
from tests.backends import on_both_slowly
from tests.disks import small_disk
from tests.probe.job import TRAIN, artifact, copy_probe, job_dir, read_until_trained, start_rank

SERVER = "serving/server.py"
# what is broken: the file, the text in it, and what takes its place
SABOTAGE = {
    "raises on import": ("install.py", "import os\n", "import os\nraise OSError('broken')\n"),
    "raises at start": ("install.py", "        if self.identity", "        1 / 0\n        if self"),
    "raises with torch": ("install.py", "            self._rank = Rank(self)", "            1 / 0"),
    "raises in its part": (
        "rank.py",
        "        attempt(names.use_names_of_this_torch)\n",
        "        1 / 0\n",
    ),
    "raises in its thread": (SERVER, "            self._loop()", "            1 / 0"),
    "hangs in its thread": (SERVER, "            self._loop()", "            time.sleep(1e6)"),
    "raises for old files": ("files.py", "    ending, core =", "    1 / 0\n    ending, core ="),
    "raises in the beat": ("beat.py", "        self._count += 1", "        1 / 0"),
    "raises for a group": (
        "identity.py",
        "        if rank < 0",
        "        1 / 0\n        if rank < 0",
    ),
    "raises at optimizers": (
        "progress.py",
        "    optimizer = sys",
        "    1 / 0\n    optimizer = sys",
    ),
    "raises at exit": (
        "recorder/dumps.py",
        "    found = recorders",
        "    1 / 0\n    found = recorders",
    ),
    "raises in sys.exit": (
        "exit/leaving.py",
        "        if status in",
        "        1 / 0\n        if status in",
    ),
    "raises for its switch": (
        "switch.py",
        "    def acknowledge",
        "    1 / 0\n\n    def acknowledge",
    ),
    "raises in its switch": (
        "switch.py",
        "        try:\n            self._read()",
        "        try:\n            1 / 0\n            self._read()",
    ),
    "raises in its recorder": ("oplog/recorder.py", "        self.is_on = True", "        1 / 0"),
    "raises for new groups": (
        "oplog/recorder.py",
        "        if self.log is None or",
        "        1 / 0\n        if self.log is None or",
    ),
    "raises before each op": (
        "oplog/dispatcher.py",
        "        site = 0 if",
        "        1 / 0\n        site = 0 if",
    ),
    "raises after each op": (
        "oplog/dispatcher.py",
        "        boxed = result",
        "        1 / 0\n        boxed = result",
    ),
    "raises in the look at ops": (
        "oplog/completion.py",
        "        looked, rest",
        "        1 / 0\n        looked, rest",
    ),
    "hangs in the look at ops": (
        "oplog/completion.py",
        "        looked, rest",
        "        time.sleep(1e6)\n        looked, rest",
    ),
    "raises in a hook of torch": (
        "oplog/hooks.py",
        "            frame: Any = get_frame(2)",
        "            1 / 0\n            frame = get_frame(2)",
    ),
    "raises in the backlog": (
        "oplog/backlog.py",
        "        count = len(self.calls)",
        "        1 / 0\n        count = len(self.calls)",
    ),
    "hangs in the backlog": (
        "oplog/backlog.py",
        "        calls = self.calls[:count]",
        # In its own thread: the job's threads come by, too.
        "        time.sleep(1e6 * threading.current_thread().daemon)\n        calls = []",
    ),
    "raises at its end": (
        "oplog/recorder.py",
        "            self.log.completion.stop()",
        "            1 / 0",
    ),
    "raises in the hook": (
        "exit/exceptions.py",
        "        record = describe",
        "        1 / 0\n        describe",
    ),
}


def _outcome(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(timeout=100)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def site_of(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        name: copy_probe(tmp_path_factory.mktemp("probe"), *change)
        for name, change in SABOTAGE.items()
    }


# One for each kind of moment, besides those of the next test; the others take more than a minute,
# and are in `make test-slow`.
QUICK = frozenset({
    "raises at start", "raises for a group", "raises in sys.exit", "raises in its switch",
    "raises before each op", "hangs in the look at ops",
})  # fmt: skip


@on_both_slowly
@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=() if how in QUICK else pytest.mark.slow) for how in SABOTAGE]
)
def test_job_when_the_probe_is_broken_then_ends_with_its_own_code(
    tmp_path: Path, how: str, site_of: dict[str, Path]
) -> None:
    with job_dir() as folder:
        process = start_rank(tmp_path, folder, "sys.exit(42)", site_of[how])
        assert _outcome(process) == (42, b"trained\n", b"")


@pytest.mark.parametrize("how", ["raises in the hook", "hangs in its thread"])
def test_job_when_it_raises_with_a_broken_probe_then_prints_its_own_traceback(
    tmp_path: Path, how: str, site_of: dict[str, Path]
) -> None:
    with job_dir() as folder:
        process = start_rank(tmp_path, folder, "raise RuntimeError('mine')", site_of[how])
        code, _, err = _outcome(process)
    assert code == 1
    assert err.count(b"Traceback") == 1
    assert err.rstrip().endswith(b"RuntimeError: mine")
    assert b"whystuck" not in err


@on_both_slowly
def test_job_when_the_job_folder_is_missing_then_ends_normally(tmp_path: Path) -> None:
    process = start_rank(tmp_path, tmp_path / "gone", "sys.exit(42)")
    assert _outcome(process) == (42, b"trained\n", b"")


def test_job_when_the_job_folder_cannot_be_written_then_ends_normally(tmp_path: Path) -> None:
    # a folder of the kernel in which nobody, root included, can make a file
    process = start_rank(tmp_path, "/proc/self", "sys.exit(42)")
    assert _outcome(process) == (42, b"trained\n", b"")


@pytest.mark.parametrize(("then", "code"), [("sys.exit(42)", 42), ("raise SystemError", 1)])
def test_job_when_the_disk_is_full_then_ends_normally(tmp_path: Path, then: str, code: int) -> None:
    with small_disk("size=64k,nr_inodes=64", is_full=True) as folder:
        process = start_rank(tmp_path, folder, then)
        assert _outcome(process)[:2] == (code, b"trained\n")


@on_both_slowly
def test_job_when_the_supervisor_never_answers_then_ends_with_its_own_code(tmp_path: Path) -> None:
    with job_dir() as folder, socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(folder / "supervisor.sock"))
        deaf.listen(64)
        process = start_rank(tmp_path, folder, "raise RuntimeError('mine')")
        code, out, err = _outcome(process)
    assert (code, out) == (1, b"trained\n")
    assert err.rstrip().endswith(b"RuntimeError: mine")


@pytest.mark.parametrize(
    "number", [signal.SIGSEGV, pytest.param(signal.SIGABRT, marks=pytest.mark.slow)]
)
def test_fatal_signal_that_is_sent_still_ends_the_job(tmp_path: Path, number: int) -> None:
    with job_dir() as folder:
        process = start_rank(tmp_path, folder, "time.sleep(90)")
        read_until_trained(process)
        process.send_signal(number)
        assert _outcome(process)[0] == -number


EXITS = """
import pickle
assert pickle.loads(pickle.dumps(sys.exit)) is sys.exit
import os
assert pickle.loads(pickle.dumps(os._exit)) is os._exit
sys.exit(42)
"""


def test_ways_out_can_be_given_to_a_child(tmp_path: Path) -> None:
    with job_dir() as folder:
        process = start_rank(tmp_path, folder, EXITS)
        assert _outcome(process) == (42, b"trained\n", b"")


# Closes all that it did not open, as a daemon does, and opens files of its own in their place.
TAKES_DESCRIPTORS = """
import os, select
del optimizer, layer
dist.destroy_process_group()
import faulthandler, signal, socket
faulthandler.disable()
signal.set_wakeup_fd(-1)
mine = []
for number in sorted(map(int, os.listdir("/proc/self/fd"))):
    if number < 3:
        continue
    try:
        # Threads of torch need theirs: what they wait for with epoll stays.
        kind = os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        continue
    if kind.startswith("socket:"):
        with socket.socket(fileno=os.dup(number)) as one:
            # Threads of torch close theirs when they find something else there.
            kind = f"socket:{one.getsockname() if one.family == socket.AF_UNIX else ''}"
    if TAKEN in kind:
        file = os.open(f"mine-{number}", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.write(file, b"data" * 100)
        os.lseek(file, 0, 0)
        os.dup2(file, number)
        os.close(file)
        mine.append(number)
assert mine
time.sleep(3)
for number in mine:
    assert os.lseek(number, 0, os.SEEK_CUR) == 0, number
    assert os.read(number, 4096) == b"data" * 100, number
spent = time.process_time()
time.sleep(2)
assert time.process_time() - spent < 0.5
os._exit(42)
"""


@pytest.mark.parametrize(
    "kind",
    [
        "/beat-",
        pytest.param("/probe-", marks=pytest.mark.slow),
        pytest.param("pipe:", marks=pytest.mark.slow),
    ],
)
def test_descriptors_that_the_job_took_over_are_left_alone(tmp_path: Path, kind: str) -> None:
    with job_dir() as folder:
        process = start_rank(tmp_path, folder, f"TAKEN = {kind!r}\n{TAKES_DESCRIPTORS}")
        assert _outcome(process) == (42, b"trained\n", b"")


ASKS_FIRST = (
    """
import importlib.util, sys
assert importlib.util.find_spec("torch") is not None
"""
    + TRAIN
)


def test_job_that_asks_for_torch_before_it_imports_it_is_watched(tmp_path: Path) -> None:
    # Isolated from the entry point, which would open the other door.
    extra = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    with job_dir() as folder:
        process = start_rank(tmp_path, folder, "sys.exit(42)", extra=extra, script=ASKS_FIRST)
        assert _outcome(process) == (42, b"trained\n", b"")
        assert artifact(folder, "beat", process).exists()


MANY_FILES = (
    """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
files = [open("/dev/null") for _ in range(1100)]
"""
    + TRAIN
)


def test_job_with_many_open_files_has_a_beat(tmp_path: Path) -> None:
    then = "time.sleep(2.5); sys.exit(42)"
    with job_dir() as folder:
        process = start_rank(tmp_path, folder, then, script=MANY_FILES)
        read_until_trained(process)
        assert _outcome(process) == (42, b"", b"")
        first = artifact(folder, "beat", process).read_bytes()

    assert int.from_bytes(first[8:16], "little") > 2


@pytest.mark.parametrize(
    "option",
    [
        ["-W", "error"],
        ["-I"],
        pytest.param(["-X", "dev"], marks=pytest.mark.slow),
        pytest.param(["-X", "warn_default_encoding"], marks=pytest.mark.slow),
    ],
)
def test_options_of_python_change_nothing(tmp_path: Path, option: list[str]) -> None:
    with job_dir() as folder:
        process = start_rank(tmp_path, folder, "sys.exit(42)", options=option)
        code, out, err = _outcome(process)

    assert (code, out) == (42, b"trained\n"), err
    assert b"whystuck" not in err


def test_closed_standard_streams_change_nothing(tmp_path: Path) -> None:
    then = "open('done', 'w').close(); sys.exit(42)"
    with job_dir() as folder:
        process = start_rank(tmp_path, folder, then, options=["-c", CLOSES])
        assert _outcome(process)[0] == 42
    assert (tmp_path / "done").exists()


CLOSES = """
import os, sys
os.close(0), os.close(1), os.close(2)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


ASKS = """
import atexit, inspect, signal, sys, threading, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
optimizer = torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.1)

def tell(when):
    handlers = {int(one): signal.getsignal(one) for one in signal.valid_signals()}
    print(when, handlers, [one.name for one in threading.enumerate()], threading.active_count())

for _ in range(3):
    dist.all_reduce(torch.ones(2))
    optimizer.step()
tell("at work")
# As libraries do that put back what they found.
before = signal.signal(signal.SIGTERM, lambda *_: None)
print(before, callable(signal.signal(signal.SIGTERM, before)))
for call in (signal.set_wakeup_fd, sys.exit):
    for arguments, keywords in (((1, 2, 3), {}), ((), {"no_such": 1})):
        try:
            call(*arguments, **keywords)
        except BaseException as error:
            print(type(error), error)
time.sleep(2.5)
tell("later")
for one in threading.enumerate():
    if one is not threading.current_thread():
        one.join()
atexit.register(tell, "at the end")
threading.settrace(lambda *_: print("traced"))
threading.setprofile(lambda *_: print("profiled"))
dist.all_reduce(torch.ones(2))
time.sleep(0.5)
dist.destroy_process_group()
print("READY", flush=True)
time.sleep(float(sys.argv[1]))
"""


def test_what_a_job_asks_of_its_process_is_answered_as_without_us(tmp_path: Path) -> None:
    """Some libraries handle a signal only where nobody does so, and wait for all threads."""
    told = []
    for quiet in ({"WHYSTUCK_DISABLE": "1"}, {}):
        with job_dir() as folder:
            (folder / "switch.json").write_text('{"generation": 1, "comm": "on", "marks": "on"}')
            process = start_rank(tmp_path, folder, "0", script=ASKS, extra=quiet)
            told.append(_outcome(process))
            assert artifact(folder, "ops", process).exists() != bool(quiet)
    assert told[0] == told[1]
    assert told[0][0] == 0


def test_sigterm_that_the_job_has_given_back_leaves_a_dump(tmp_path: Path) -> None:
    with job_dir() as folder:
        process = start_rank(tmp_path, folder, "60", script=ASKS)
        assert process.stdout is not None
        while process.stdout.readline() != b"READY\n":
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGTERM
        assert artifact(folder, "fr", process).exists()
