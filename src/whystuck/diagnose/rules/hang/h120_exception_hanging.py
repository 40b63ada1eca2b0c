"""H120 exception-hanging."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.rule_kinds import SuspectRule


class ExceptionHanging(SuspectRule):
    """A rank raised an exception, but its process stays alive, so that its peers wait for ever.

    ## What it means

    The main thread ended with an error; a non-daemon thread, an `atexit` handler or a blocked
    clean-up keeps the process, so that no launcher notices.

    ## How it is found

    An uncaught exception of the main thread is recorded, and the process has not ended.

    Or one of another thread, such as a loader or the trainer, while the main thread waits for
    threads (a queue, an event, a future, `join`). Of an error long before the stall nothing is
    said, nor where the rank computes. Where the rank is in a call of its own, the thread must have
    failed in the function from which the others call the op that they wait in.

    Of pasted texts, it is a traceback of a rank and a later stack of it, whose main thread waits
    for its other threads to end (`threading._shutdown`); or a traceback of another thread
    (`Exception in thread`), and a later stack whose main thread waits for threads in a call of the
    user (a queue, an event, a future, `join`).

    ## False alarms

    A process that is about to end within moments.

    ## What to do

    Fix the exception first. Then make background threads daemons, and keep collectives out of
    clean-up code.
    """

    code = codes.EXCEPTION_HANGING
    name = "exception-hanging"
    remedies: ClassVar[tuple[str, ...]] = (
        "fix the exception: its line comes first here",
        (
            "make background threads `daemon=True` and keep waits out of `atexit` and `finally`, "
            "so that a failed rank ends"
        ),
    )
