"""What the probe does in a rank: beats, dumps, signals, exceptions and the way out."""

from __future__ import annotations

import json
import os
import pickle
import pickletools
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from tests.backends import on_both, on_both_slowly
from tests.launch.running import clean_environment
from tests.probe.job import PROBE_DIR, artifact, job_dir, read_until_trained, start_rank

from whystuck.collect.beats import read_beat
from whystuck.collect.op_logs import read_op_log
from whystuck.collect.recorder import ask_probe_for_dump
from whystuck.parse.ops.log import parse_op_log

SLEEP = "time.sleep(600)"
HOLD_GIL = "import ctypes; print('held', flush=True); ctypes.PyDLL(None).sleep(600)"


@pytest.fixture
def folder() -> Iterator[Path]:
    with job_dir() as made:
        yield made


def _wait_for(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline_s, "it never happened"
        time.sleep(0.02)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@pytest.fixture
def rank(tmp_path: Path, folder: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(then: str, **extra: str) -> subprocess.Popen[bytes]:
        process = start_rank(tmp_path, folder, then, extra=extra)
        started.append(process)
        read_until_trained(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        # not communicate: a forked child may hold the pipes
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def _load_dump(path: Path) -> dict[str, list[dict[str, object]]]:
    data = path.read_bytes()
    # what the restricted reader relies on: a dump holds plain values only
    assert not {"GLOBAL", "STACK_GLOBAL", "REDUCE"} & {
        op.name for op, _, _ in pickletools.genops(data)
    }
    loaded: dict[str, list[dict[str, object]]] = pickle.loads(data)
    return loaded


@on_both
def test_beat_when_the_rank_trains_then_counts_what_it_did(
    folder: Path, rank: Callable[..., subprocess.Popen[bytes]]
) -> None:
    path = artifact(folder, "beat", rank(SLEEP))
    # gloo's two threads may note the last two completions in either order
    _wait_for(lambda: (beat := read_beat(path)) and beat.enqueued == 3 and beat.completed >= 2)
    beat = read_beat(path)
    assert beat is not None
    assert (beat.rank, beat.world_size, beat.optimizer_steps) == (0, 1, 3)
    first = beat.monotonic_ns
    _wait_for(lambda: (beat := read_beat(path)) and beat.monotonic_ns > first)


@on_both_slowly
def test_dump_when_the_probe_is_asked_then_has_the_users_lines(
    folder: Path, rank: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = rank(SLEEP)
    before = psutil.Process(process.pid).cpu_times()
    ask_probe_for_dump(artifact(folder, "probe", process), folder / "dump")
    entries = _load_dump(folder / "dump")["entries"]
    assert "train.py" in str(entries[0]["frames"])
    assert len(entries) == 3
    # the symboliser's import of torch._inductor takes seconds and 800 modules
    after = psutil.Process(process.pid).cpu_times()
    assert after.user + after.system - before.user - before.system < 1.0


@on_both_slowly
def test_ops_when_the_gil_is_held_then_are_read_from_outside(
    folder: Path, rank: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = rank(HOLD_GIL)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    ops = parse_op_log(bytes(read_op_log(artifact(folder, "ops", process))))
    assert list(ops.columns["seq"]) == [1, 2, 3]


@on_both_slowly
def test_rank_has_two_threads_of_ours_at_most(
    folder: Path, rank: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = rank(SLEEP)
    threads = Path(f"/proc/{process.pid}/task").iterdir()
    names = [(thread / "comm").read_text().strip() for thread in threads]
    assert sorted(name for name in names if "whystuck" in name) == [
        "whystuck-ops",
        "whystuck-probe",
    ]
    # gloo has threads of its own; torch's server had one for each core, and a listener.
    assert len(names) <= 8


@on_both_slowly
def test_signals_when_asked_then_stacks_and_dump_are_written(
    folder: Path, rank: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = rank("import threading; threading.Event().wait()")
    process.send_signal(signal.SIGRTMIN + 5)
    _wait_for(lambda: b"train.py" in artifact(folder, "faulthandler", process).read_bytes())
    process.send_signal(signal.SIGRTMIN + 6)
    _wait_for(lambda: _size(artifact(folder, "fr", process)))
    assert process.poll() is None


@on_both_slowly
@pytest.mark.parametrize(
    "then", [pytest.param(SLEEP, marks=pytest.mark.slow), "dist.TCPStore('127.0.0.1', 0, 2, True)"]
)
def test_sigterm_then_dumps_and_dies_of_it(
    folder: Path, rank: Callable[..., subprocess.Popen[bytes]], then: str
) -> None:
    process = rank(then)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == -signal.SIGTERM
    assert len(_load_dump(artifact(folder, "fr", process))["entries"]) == 3


def test_sigterm_when_the_job_has_a_handler_then_it_is_left_alone(
    rank: Callable[..., subprocess.Popen[bytes]],
) -> None:
    own = "import signal, os; signal.signal(signal.SIGTERM, lambda *_: os._exit(7))"
    process = rank(f"{own}; print('set', flush=True); time.sleep(600)")
    assert process.stdout is not None
    assert process.stdout.readline() == b"set\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 7


def test_sigterm_when_the_jobs_handler_calls_the_one_before_then_it_still_comes_to_its_end(
    rank: Callable[..., subprocess.Popen[bytes]],
) -> None:
    own = """
import os, signal
before = signal.getsignal(signal.SIGTERM)
def on_term(*args):
    before(*args) if callable(before) else None
    os._exit(7)
signal.signal(signal.SIGTERM, on_term)
print("set", flush=True)
time.sleep(600)
"""
    process = rank(own)
    assert process.stdout is not None
    assert process.stdout.readline() == b"set\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 7


def test_sigterm_in_a_forked_worker_then_it_dies_at_once(
    rank: Callable[..., subprocess.Popen[bytes]],
) -> None:
    code = "import os; pid = os.fork(); print(pid, flush=True) if pid else None; time.sleep(600)"
    process = rank(code)
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    os.kill(worker, signal.SIGTERM)
    try:
        _wait_for(lambda: "(zombie)" in Path(f"/proc/{worker}/status").read_text())
    finally:
        os.kill(worker, signal.SIGKILL)


@on_both_slowly
@pytest.mark.parametrize(
    ("then", "number", "says", "gil_is_free"),
    [
        # as a C++ exception of gloo or NCCL ends a rank
        ("import ctypes; ctypes.CDLL(None).abort()", signal.SIGABRT, b"Aborted", True),
        ("import ctypes; ctypes.string_at(0)", signal.SIGSEGV, b"Segmentation fault", False),
    ],
)
def test_fatal_signal_then_is_held_dumped_and_dies_of_it(
    folder: Path,
    rank: Callable[..., subprocess.Popen[bytes]],
    then: str,
    number: signal.Signals,
    says: bytes,
    gil_is_free: bool,
) -> None:
    process = rank(then)
    fatal = artifact(folder, "fatal", process)
    _wait_for(lambda: _size(fatal))
    if gil_is_free:
        ask_probe_for_dump(artifact(folder, "probe", process), folder / "dump")
        assert len(_load_dump(folder / "dump")["entries"]) == 3
    assert len(parse_op_log(bytes(read_op_log(artifact(folder, "ops", process))))) == 3
    # the supervisor lets it go with the stacks signal, which interrupts the sleep
    process.send_signal(signal.SIGRTMIN + 5)
    assert process.wait(timeout=120) == -number
    assert says in fatal.read_bytes()
    assert b"train.py" in fatal.read_bytes()


@on_both_slowly
def test_exception_then_its_frames_are_on_record(
    folder: Path, rank: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = rank("raise ValueError('bad batch')")
    assert process.wait(timeout=120) == 1
    record = json.loads(artifact(folder, "exception", process).read_text())
    assert (record["type"], record["message"]) == ("ValueError", "bad batch")
    assert record["frames"][-1]["filename"].endswith("train.py")


@on_both_slowly
def test_errors_of_threads_then_they_are_on_record_and_printed_as_before(
    folder: Path, rank: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = rank(
        "import threading\n"
        "def lose(number): raise ValueError(f'record {number}')\n"
        "for number in range(20):\n"
        "    thread = threading.Thread(target=lose, args=(number,), name=f'loader-{number}')\n"
        "    thread.start(); thread.join()\n"
        "threading.Thread(target=sys.exit, args=(3,)).start()"
    )
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0
    assert err.count(b"Exception in thread loader-") == 20
    assert b"whystuck" not in err
    kept = json.loads(artifact(folder, "thread-errors", process).read_text())["errors"]
    assert [int(one["message"].split()[1]) for one in kept] == [*range(8), *range(12, 20)]
    assert (kept[0]["thread"], kept[0]["is_main_thread"]) == ("loader-0", False)
    assert kept[0]["frames"][0]["name"] == "lose"
    assert not artifact(folder, "exception", process).exists()


@on_both
def test_exit_then_a_last_dump_is_left(
    folder: Path, rank: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = rank("")
    assert process.wait(timeout=120) == 0
    assert len(_load_dump(artifact(folder, "final", process))["entries"]) == 3


@on_both_slowly
def test_rank_when_python_finds_us_by_entry_point_only_then_the_probe_works(
    folder: Path, rank: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = rank(SLEEP, PYTHONPATH="")
    _wait_for(lambda: _size(artifact(folder, "beat", process)))


def test_import_when_nothing_is_asked_then_costs_nothing() -> None:
    code = (
        "import sys, time; before = set(sys.modules); t = time.perf_counter()\n"
        "from whystuck.probe import autoload; autoload()\n"
        "print(sorted(m for m in set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean_environment(), capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == "['whystuck', 'whystuck.probe']"


def test_helper_of_a_rank_then_is_not_taken_for_one(folder: Path) -> None:
    code = "import os; print(os.environ.get('WHYSTUCK_CLAIM'))"
    environment = clean_environment(
        RANK="1", LOCAL_RANK="1", WORLD_SIZE="2", WHYSTUCK_JOB_DIR=str(folder),
        PYTHONPATH=str(PROBE_DIR / "site"),
    )  # fmt: skip
    outer = "import subprocess, sys, os; print(os.getpid(), flush=True)\n"
    outer += f"subprocess.run([sys.executable, '-c', {code!r}])"
    done = subprocess.run(
        [sys.executable, "-c", outer], env=environment, capture_output=True, check=True
    )
    pid, claim = done.stdout.decode().split()
    assert claim == f"1:{pid}"


OWN_HOOK = "mine = sys.excepthook = lambda *_: print('mine', flush=True); "


WAIT_FOR_OURS = """
end = time.time() + 20
while sys.excepthook is mine and time.time() < end:
    time.sleep(0.05)
"""


# our thread takes its place in the chain again within a second
@pytest.mark.parametrize(("wait", "is_recorded"), [(WAIT_FOR_OURS, True), ("", False)])
def test_exception_when_the_job_has_its_own_hook_then_it_runs_once(
    folder: Path, rank: Callable[..., subprocess.Popen[bytes]], wait: str, is_recorded: bool
) -> None:
    process = rank(f"{OWN_HOOK}\n{wait}\nraise ValueError('bad')")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (1, b"mine\n", b"")
    assert artifact(folder, "exception", process).exists() >= is_recorded
