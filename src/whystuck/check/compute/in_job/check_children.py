"""Runs functions in children with a deadline: a device that hangs costs one of them alone."""

import ctypes
import json
import os
import select
import signal
import time

DEADLINE_S = 20.0
_PR_SET_PDEATHSIG = 1
# What was found of the devices of this node, once for all parts.
_found = {}


def end_with_parent():
    """Have this process killed when its parent ends: nobody hears what it finds then."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run_children(works, deadline_s=DEADLINE_S):
    """Run functions in children, side by side; return what each tells, or a problem."""
    children, parent = [], os.getpid()
    for work in works:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            be_child(work, writer, parent)
        os.close(writer)
        children.append((pid, reader))
    until_s = time.monotonic() + deadline_s
    answers = [read_answer(reader, until_s, deadline_s) for _, reader in children]
    for pid, reader in children:
        os.close(reader)
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    reap([pid for pid, _ in children])
    return answers


def be_child(work, writer, parent):
    """Do the work and tell the answer; never returns."""
    try:
        end_with_parent()
        if os.getppid() != parent:
            return
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        try:
            answer = work()
        except Exception as error:
            answer = {"problem": "%s: %s" % (type(error).__name__, str(error)[:500])}
        os.write(writer, json.dumps(answer).encode() + b"\n")
    finally:
        os._exit(0)


def read_answer(reader, until_s, limit_s):
    """Return the line that a child tells before the deadline."""
    data = b""
    while not data.endswith(b"\n"):
        ready, _, _ = select.select([reader], [], [], max(0.0, until_s - time.monotonic()))
        if not ready:
            return {"problem": "no answer in %g s" % limit_s, "is_late": True}
        piece = os.read(reader, 65536)
        if not piece:
            return {"problem": "the process that measures it ended"}
        data += piece
    return json.loads(data)


def reap(pids):
    """Take note of children that ended; one that hangs in a driver is left behind."""
    until_s = time.monotonic() + 0.5
    for pid in pids:
        while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < until_s:
            time.sleep(0.005)


def find_devices(torch):
    """Return the names of the devices that torch can use, or a problem; asked once, in a child."""
    if not _found:
        _found.update(run_children([lambda: {"devices": list_devices(torch)}])[0])
    return _found


def list_devices(torch):
    """Return the names of the CUDA devices, which those of ROCm are to torch."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return ["cuda:%d" % index for index in range(count)]


def wait(torch, device):
    """Wait for a device; the host has no queue."""
    if device != "cpu":
        torch.cuda.synchronize(device)
