"""What stands in the place of builtin functions, in an interpreter without anything else of us."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import inspect, os, signal, sys, traceback
from whystuck.probe.calling.unseen import replace_builtin, show_alone, show_calls
seen, told = [], []

def see(*args):
    seen.append(args)
    if FAILS:
        raise ValueError("in ours")

def place():
    replace_builtin(os, "kill", show_alone(os.kill, see, 2))
    replace_builtin(signal, "raise_signal", show_alone(signal.raise_signal, see, 1))

def handle(number, frame):
    told.append([(one.name, one.lineno) for one in traceback.extract_stack(frame)])
    told.append([one.function for one in inspect.stack()])
    told.append(frame.f_back.f_code.co_name)

def late(number, frame):
    raise TimeoutError(number)

def send():
    told.append(os.kill(os.getpid(), signal.SIGUSR1))
    told.append(signal.raise_signal(signal.SIGUSR1))

def refuse():
    for call, args in ((os.kill, (os.getpid(), 999)), (signal.raise_signal, (999,)),
                       (os.kill, ("a", 1)), (os.kill, (os.getpid(), None))):
        try:
            call(*args)
        except (OSError, TypeError, ValueError):
            told.append(traceback.format_exc())

def all_of_it():
    told.clear()
    signal.signal(signal.SIGUSR1, handle)
    send()
    signal.signal(signal.SIGUSR1, late)
    try:
        send()
    except TimeoutError:
        told.append(traceback.format_exc())
    refuse()
    return list(told)
"""
THEN = """
def compare():
    return all_of_it()
results = []
for _ in range(2):
    results.append(compare()); place()
assert results[0] == results[1], results
assert (os.getpid(), signal.SIGUSR1) in seen and (signal.SIGUSR1,) in seen, seen
"""


@pytest.mark.parametrize("fails", [False, True], ids=["fine", "fails"])
def test_handler_of_a_signal_that_the_job_sends_itself_sees_no_frame_of_ours(fails: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"FAILS = {fails}" + SCRIPT + THEN],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
