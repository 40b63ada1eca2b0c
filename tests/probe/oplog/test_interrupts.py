"""Signal handlers of the job that run while code of ours does: nothing of them is lost."""

from __future__ import annotations

import ctypes
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest
from tests.probe.job import job_dir, start_rank

from whystuck.probe.oplog.delayed_errors import begin_unchecked

PREPARE = """
import os, signal, sys, traceback
import torch, torch.distributed as dist
dist.init_process_group("gloo")
import _whystuck_probe.marks.user as user
torch.set_num_threads(1)

class Stop(Exception): pass

def stop(*_):
    raise Stop()

def interrupt(file, name, handler, call, event="line"):
    # The handler runs between two instructions of a function of ours.
    place = os.path.join("probe", *file.split("/"))
    signal.signal(signal.SIGALRM, handler)
    done = []
    def trace(frame, what, _):
        code = frame.f_code
        if not done and what == event and code.co_filename.endswith(place):
            if code.co_name == name:
                done.append(True)
                signal.raise_signal(signal.SIGALRM)
        return trace
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
        assert done, "never there"
"""

# A backward in which the handler could run in the midst only in a kernel of ours.
BACKWARD = """
model = torch.nn.Sequential(*[torch.nn.Linear(600, 600) for _ in range(4)])
model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
x = torch.randn(1500, 600)
for _ in range(3):
    model(x).sum().backward()
for handler in (stop, signal.default_int_handler):
    loss = model(x).sum()
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    try:
        loss.backward()
        signal.pause()
    except (Stop, KeyboardInterrupt):
        print("stopped", flush=True)
        assert "dispatcher.py" not in traceback.format_exc()
model(x).sum().backward()
print("went on", flush=True)
os._exit(0)
"""

MARKS = {
    "marks/user.py __init__": "user.mark('x')",
    "marks/phases.py begin_optimizer": "optimizer.step()",
    "progress.py tell_step": "progress.tell_step()",
    "oplog/dispatcher.py begin": "dist.all_reduce(torch.ones(2))",
    "oplog/dispatcher.py end": "dist.all_reduce(torch.ones(2))",
}

LOST = """
import _whystuck_probe.progress as progress
optimizer = torch.optim.SGD(torch.nn.Linear(4, 4).parameters(), lr=0.1)
for place, call in CALLS.items():
    file, name = place.split()
    try:
        interrupt(file, name, stop, lambda: eval(call))
    except Stop:
        print("stopped in", place, flush=True)
    dist.barrier()
    print("went on", flush=True)
os._exit(0)
"""

# The handler wants what the interrupted code has.
AGAIN = """
interrupt("mapped_log.py", "_put_value", lambda *_: CALL, lambda: CALL)
print("went on", flush=True)
os._exit(0)
"""


def run(tmp_path: Path, script: str) -> list[bytes]:
    """Run a rank with all marks and ops on; return what it printed."""
    with job_dir() as folder:
        (folder / "switch.json").write_text('{"generation": 1, "comm": "on", "marks": "on"}')
        process = start_rank(tmp_path, folder, script=PREPARE + script)
        try:
            out, err = process.communicate(timeout=280)
        except subprocess.TimeoutExpired:
            process.kill()
            pytest.fail("it hangs")
    assert process.returncode == 0, err.decode()
    return out.splitlines()


def test_a_backward_is_finished_before_the_error_of_a_handler(tmp_path: Path) -> None:
    """The kernel of an op is where Python runs the handler first; the op is issued all the same."""
    assert run(tmp_path, BACKWARD) == [b"stopped", b"stopped", b"went on"]


def test_the_error_of_a_handler_in_our_code_is_the_jobs(tmp_path: Path) -> None:
    """It would have come without us, too; all places in turn, in one rank."""
    said = run(tmp_path, LOST.replace("CALLS", repr(MARKS)))
    expected = [line for place in MARKS for line in (f"stopped in {place}", "went on")]
    assert said == [line.encode() for line in expected]


@pytest.mark.parametrize(
    "call", ["user.mark(os.urandom(4))", "dist.all_reduce(torch.ones(len(os.urandom(1)) + 1))"]
)
def test_a_handler_may_do_what_it_interrupts(tmp_path: Path, call: str) -> None:
    """A lock that its own thread holds would never be free."""
    assert run(tmp_path, AGAIN.replace("CALL", call)) == [b"went on"]


def test_a_function_that_begins_unchecked_gets_the_error_in_its_try() -> None:
    """Python looks for signals before the first instruction of a function, where no ``try`` is."""

    def interrupt(*_: object) -> None:
        raise TimeoutError

    def inner() -> None:
        return

    def kernel() -> str:
        try:
            inner()
        except TimeoutError:
            return "caught"
        return "ran"

    begin_unchecked(kernel)
    # Calls from C, as torch makes them: no instruction lies between the two.
    calls = [partial(ctypes.CDLL(None)["raise"], signal.SIGALRM), partial(kernel)]
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(100):
            assert list(map(partial.__call__, calls))[1] == "caught"
            assert kernel() == "ran"
    finally:
        signal.signal(signal.SIGALRM, before)
