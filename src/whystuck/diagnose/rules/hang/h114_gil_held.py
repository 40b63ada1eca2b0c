"""H114 gil-held."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.rule_kinds import SuspectRule


class GilHeld(SuspectRule):
    """A thread runs native code that holds the GIL, so that no Python of that rank can run.

    ## What it means

    An extension or a `ctypes.PyDLL` call blocks without giving the interpreter lock back.
    Heartbeats stop, although the process lives.

    ## How it is found

    The same thread owns the GIL at one place in two or more samples, which are taken from
    outside. It is certain when the probe, whose thread needs the GIL once a second, has not run for
    more than 3 s, and the process is not stopped.

    Native stacks of all threads (`gdb -batch -ex 'thread apply all bt'`) tell of it in one look, as
    `possible`: threads wait in `take_gil`, and the only other thread that runs Python is blocked in
    an extension; where somebody has pasted the stacks and two threads wait or more, it may be busy
    there as well. `py-spy dump --native` tells who owns the GIL, too, and it is `likely`: the owner
    may wait for a lock that one of the others holds.

    Of logs, it is the rank of which the watchdog of NCCL prints that it could not acquire the GIL:
    `possible`, and `likely` where a stack of that rank shows the owner; or where the only process
    that is shown, of which nobody says which rank it is, has an owner and two threads or more that
    wait for the GIL. The watchdog of that rank may give no sign instead.

    A thread without any frame belongs to an interpreter that starts or ends, and is not named.

    ## False alarms

    A long computation in an extension that ends by itself.

    ## What to do

    Release the GIL around the blocking call (`Py_BEGIN_ALLOW_THREADS`,
    `py::gil_scoped_release`), or load the library with `ctypes.CDLL`.
    """

    code = codes.GIL_HELD
    name = "gil-held"
    remedies: ClassVar[tuple[str, ...]] = (
        (
            "release the GIL around the call: `Py_BEGIN_ALLOW_THREADS`, "
            "`py::gil_scoped_release`, or `ctypes.CDLL` in place of `ctypes.PyDLL`"
        ),
    )
