"""Calls in the main thread, with real signals and ends of the interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import os, signal, sys, threading, time
from whystuck.probe.calling.main_call import MainCall

def until(is_met):
    deadline_s = time.monotonic() + 60
    while not is_met():
        assert time.monotonic() < deadline_s
"""


def run(script: str) -> tuple[int, str, str]:
    """Run a script after the common lines; return its code and what it wrote."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + script],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


def test_thread_has_something_called_in_the_main_one() -> None:
    told = run("""
names = []
call = MainCall(lambda: names.append(threading.current_thread().name))
for count in 1, 2:
    threading.Thread(target=call.queue).start()
    until(lambda: len(names) == count)
print(names)
""")
    assert told == (0, "['MainThread', 'MainThread']\n", "")


def test_what_it_raises_itself_is_kept_from_the_job() -> None:
    told = run("""
done = []
call = MainCall(lambda: (done.append(1), 1 / 0))
call._function.__code__ = call._function.__code__.replace(
    co_filename=sys.modules["whystuck.probe.calling.main_call"].__file__
)
call.queue()
until(lambda: done)
print("on")
""")
    assert told == (0, "on\n", "")


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "SystemExit", "TimeoutError"])
def test_what_a_handler_of_the_job_raises_meanwhile_reaches_the_job(error: str) -> None:
    told = run(f"""
def handle(*_): raise {error}(7)
signal.signal(signal.SIGUSR1, handle)
call = MainCall(lambda: (signal.raise_signal(signal.SIGUSR1), time.sleep(0)))
try:
    call.queue()
    until(lambda: False)
except {error} as caught:
    print(caught.args)
""")
    assert told == (0, "(7,)\n", "")


def test_call_that_waits_while_the_interpreter_ends_is_no_matter() -> None:
    told = run("""
call = MainCall(lambda: None)
def insist(call=call):
    while True: call.queue()
for _ in range(3): threading.Thread(target=insist, daemon=True).start()
del call, insist  # nobody else knows it when modules are taken down
time.sleep(0.01)
sys.exit(42)
""")
    assert told == (42, "", "")
