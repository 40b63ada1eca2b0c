"""The call that ended a rank: who made it, and that nothing else changes by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.probe.job import artifact, job_dir, start_rank

SCRIPT = """
import atexit, os, signal, sys, threading, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
layer = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

def step():
    layer(torch.ones(2, 4)).sum().backward()
    optimizer.step()

def stop(end):
    end()  # the call in question is made below

step()
print("trained", flush=True)
exec(compile(sys.argv[1], "/job/callback.py", "exec"))
dist.destroy_process_group()
"""


def end(tmp_path: Path, then: str) -> tuple[int, bytes, dict[str, Any] | None]:
    """Run a rank to its end; return its code, its errors and its record."""
    with job_dir() as folder:
        process = start_rank(tmp_path, folder, then, script=SCRIPT)
        try:
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
        path = artifact(folder, "leaving", process)
        record = json.loads(path.read_text()) if path.exists() else None
    assert out == b"trained\n"
    return process.returncode, err, record


WAYS = [
    ("sys.exit(0)", 0, "sys.exit", "0"),
    ("sys.exit('no data')", 1, "sys.exit", "no data"),
    ("quit()", 0, "quit", "None"),
    ("exit(code=4)", 4, "exit", "4"),
    ("os._exit(5)", 5, "os._exit", "5"),
    ("os.kill(os.getpid(), signal.SIGKILL)", -9, "os.kill", "9"),
    ("os.kill(os.getpid(), 15)", -15, "os.kill", "15"),
    ("signal.raise_signal(signal.SIGUSR1)", -10, "signal.raise_signal", "10"),
]


# Those that others stand for, which call the same function of ours.
SLOW = {"sys.exit(0)", "exit(code=4)", "os.kill(os.getpid(), 15)"}


@pytest.mark.parametrize(
    ("call", "code", "name", "status"),
    [pytest.param(*way, marks=[pytest.mark.slow] if way[0] in SLOW else []) for way in WAYS],
)
def test_the_line_of_the_call_is_on_record(
    tmp_path: Path, call: str, code: int, name: str, status: str
) -> None:
    returned, err, record = end(tmp_path, f"def leave():\n    {call}\nstop(leave)")

    assert returned == code
    assert record is not None
    assert (record["call"], record["status"]) == (name, status)
    assert record["is_main_thread"]
    assert record["frames"][0] == {"name": "leave", "filename": "/job/callback.py", "line": 2}
    assert record["frames"][1]["name"] == "stop"
    assert err == (b"no data\n" if status == "no data" else b"")


WITH_CODE = """
class Status:
    def __str__(self):
        open("called", "w").close()
        return "1"
"""


def test_status_that_is_an_object_of_the_job_is_not_asked_for_its_text(tmp_path: Path) -> None:
    then = WITH_CODE + "try:\n    sys.exit(Status())\nexcept SystemExit:\n    os._exit(3)"
    code, _, record = end(tmp_path, then)

    assert code == 3
    assert record is not None
    assert not [*tmp_path.rglob("called")]


def test_signal_from_elsewhere_that_the_probe_repeats_is_no_call_of_the_job(
    tmp_path: Path,
) -> None:
    then = "import subprocess\nsubprocess.run(['kill', str(os.getpid())])\ntime.sleep(60)"
    code, _, record = end(tmp_path, then)

    assert code == -15
    assert record is None


def test_exit_of_the_process_from_a_thread(tmp_path: Path) -> None:
    then = "threading.Thread(target=lambda: os._exit(6)).start()\ntime.sleep(60)"
    code, _, record = end(tmp_path, then)

    assert code == 6
    assert record is not None
    assert not record["is_main_thread"]
    assert record["frames"][0]["line"] == 1


def test_exit_from_a_callback_of_atexit(tmp_path: Path) -> None:
    then = "def last():\n    os._exit(7)\natexit.register(last)"
    code, _, record = end(tmp_path, then)

    assert code == 7
    assert record is not None
    assert record["frames"][0]["name"] == "last"


# Python waits for the thread before anything of `atexit`; it ends once the record is there.
KEPT_ALIVE = """
import glob
record = os.path.join(os.environ["WHYSTUCK_JOB_DIR"], f"leaving-{os.getpid()}")

def drain():
    while not glob.glob(record + "*"):
        time.sleep(0.01)

threading.Thread(target=drain).start()
sys.exit(0)
"""


def test_exit_that_a_thread_holds_up(tmp_path: Path) -> None:
    code, _, record = end(tmp_path, KEPT_ALIVE)

    assert code == 0
    assert record is not None
    assert (record["call"], record["frames"][0]["line"]) == ("sys.exit", 10)


HARMLESS = """
try:  # somebody catches it, and training goes on
    sys.exit(3)
except SystemExit:
    step()
thread = threading.Thread(target=lambda: sys.exit(3))  # it ends a thread only
thread.start()
thread.join()
if not os.fork():  # a child's own end
    os._exit(0)
os.wait()
os.kill(os.getpid(), 0)
os.kill(os.getpid(), signal.SIGCHLD)
signal.signal(15, lambda *_: None)
os.kill(os.getpid(), 15)

def stop_now(*_):
    raise KeyError("stop")

signal.signal(signal.SIGUSR2, stop_now)
try:
    os.kill(os.getpid(), signal.SIGUSR2)
except KeyError:
    pass
for call in (lambda: os.kill("a", 1), lambda: os.kill(os.getpid(), "b"), os.kill):
    try:
        call()
    except TypeError:
        pass
    else:
        os.abort()
"""


def test_what_does_not_end_the_process_is_neither_changed_nor_on_record(tmp_path: Path) -> None:
    assert end(tmp_path, HARMLESS) == (0, b"", None)


# What a job may hold of the ways out: by what name they are pickled, and how they take arguments.
TAKEN = """
from sys import exit as leave
import inspect, os, pickle, signal, sys
import torch, torch.distributed as dist
GROUP
words = []
COUNTS = {"kill": 2, "raise_signal": 1}
for one in (leave, sys.exit, os._exit, os.kill, signal.raise_signal):
    assert pickle.loads(pickle.dumps(one)) is one, one
    assert pickle.loads(pickle._dumps(one)) is one, one
    words += [one.__name__, str(inspect.signature(one)), one.__doc__]
    for arguments, keywords in (((1, 2, 3), {}), ((), {"no_such": 1}), (("x", "y"), {})):
        try:
            one(*arguments, **keywords)
        except BaseException as error:
            words.append(type(error).__name__)
            # Of these two, C refuses another number of arguments before ours is asked.
            if COUNTS.get(one.__name__, len(arguments)) == len(arguments) and not keywords:
                words.append(str(error))
print("\\n".join(words))
leave(3)
"""

GROUPS = {
    "told by the launcher": ({}, "dist.init_process_group('gloo')"),
    "told by the job": (
        {"RANK": "", "WORLD_SIZE": "", "LOCAL_RANK": ""},
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)",
    ),
}


@pytest.mark.parametrize("rank", GROUPS)
def test_ways_out_that_the_job_has_taken_are_as_without_us(tmp_path: Path, rank: str) -> None:
    extra, group = GROUPS[rank]
    script = TAKEN.replace("GROUP", group)
    outputs = []
    for quiet in ({"WHYSTUCK_DISABLE": "1"}, {}):
        with job_dir() as folder:
            process = start_rank(tmp_path, folder, script=script, extra={**extra, **quiet})
            out, err = process.communicate(timeout=180)
            assert process.returncode == 3, err.decode()[-2000:]
            outputs.append(out)
            record = artifact(folder, "leaving", process)
            has_record = record.exists() and json.loads(record.read_text())["call"] == "sys.exit"
            assert has_record == (not quiet and rank == "told by the launcher")
    assert outputs[0] == outputs[1]
