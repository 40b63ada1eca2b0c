"""Threads of the probe, in a process of their own."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, signal, threading
from whystuck.probe.handlers.numbers import dump_signal, stacks_signal
from whystuck.probe.threads import OwnThread
before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
before.add(signal.SIGUSR2)
masks, may_end = [], threading.Event()

def work():
    masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    may_end.wait()

thread = OwnThread(work, "own")
thread.start()
assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
"""


def run(script: str) -> None:
    """Run a script while a thread of the probe waits."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + script],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_signal_that_the_job_keeps_back_waits_for_the_job() -> None:
    run("""
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGRTMIN])
for number in (signal.SIGTERM, signal.SIGRTMIN, signal.SIGUSR2):
    os.kill(os.getpid(), number)
    assert signal.sigtimedwait([number], 20).si_signo == number
may_end.set()
""")


def test_thread_takes_faults_of_its_own_and_signals_of_whystuck() -> None:
    run("""
may_end.set()
thread.join(20)
ours = {dump_signal(), stacks_signal(), signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT}
assert not masks[0] & ours, masks
assert {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGALRM} <= masks[0], masks
""")


def test_error_of_a_handler_leaves_no_signal_kept_back() -> None:
    run("""
class Late(Exception):
    pass
def late(number, frame):
    raise Late
signal.signal(signal.SIGALRM, late)
before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
raised = 0
for _ in range(200):
    one = OwnThread(lambda: None, "one")
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.00005)
        one.start()
        while True:
            pass
    except Late:
        raised += 1
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
assert raised == 200
may_end.set()
""")
