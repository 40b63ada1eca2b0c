"""What the probe of a rank tells of its calls: whom it waits for, and what torch never issued."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class Frame(msgspec.Struct, frozen=True, rename={"function": "name", "file": "filename"}):
    """One Python frame: ``function`` at ``file:line``."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, kw_only=True)
class PeerWaitEntry:
    """A send or receive that is not over, and that a thread of a rank is blocked in or waits for.

    ``kind`` is ``send``, ``recv``, ``any`` (a receive from any rank) or ``barrier`` (a
    monitored barrier, in which ranks wait for the first one of the group). ``peer`` is a global
    rank, -1 when unknown. ``sure`` is false where a thread waits for one of several ops and it is
    not known for which. ``count`` is how many ops of this kind the rank has posted to this peer
    in this group, this one included; 0 when unknown. ``frames`` is where the thread is, ``site``
    where the op was posted (the user's frames only), both innermost first.
    """

    kind: str = ""
    peer: int = -1
    group: str = ""
    tag: int = 0
    is_main: bool = True
    sure: bool = True
    count: int = 0
    frames: tuple[Frame, ...] = ()
    site: tuple[Frame, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PeerCountEntry:
    """How many sends to, or receives from, one peer a rank has posted in one group so far.

    ``kind`` and ``peer`` are those of `PeerWaitEntry`; ``site`` is where the last was posted.
    """

    kind: str = ""
    peer: int = -1
    group: str = ""
    count: int = 0
    site: tuple[Frame, ...] = ()


class PeersRecord(msgspec.Struct, kw_only=True):
    """``peers.json``: whom the threads of a rank send to or receive from."""

    pid: int = 0
    source: str = "probe"
    waits: list[PeerWaitEntry] = []
    counts: list[PeerCountEntry] = []


@dataclass(frozen=True)
class SkippedCalls:
    """Calls of a collective at one line that torch accepted and never issued.

    Times are of the wall clock of the rank; ``first_step`` and ``last_step`` count the optimizer
    steps made before. ``site`` has the user's frames, innermost first.
    """

    op: str = ""
    count: int = 0
    first_ns: int = 0
    last_ns: int = 0
    first_step: int = 0
    last_step: int = 0
    site: tuple[Frame, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FailedManagerEntry:
    """A coalescing manager that failed on one rank, and what its group lost after it.

    ``site`` is its ``with`` statement. ``count`` counts all lost calls; ``calls`` are those of the
    first lines, the one that was lost first at the front. ``members`` are the ranks of the
    group, empty when unknown.
    """

    group: str = ""
    members: frozenset[int] = frozenset()
    count: int = 0
    site: tuple[Frame, ...] = ()
    calls: tuple[SkippedCalls, ...] = ()


class SkippedRecord(msgspec.Struct, kw_only=True):
    """``skipped.json``: collectives that a rank called and torch never issued."""

    pid: int = 0
    failures: list[FailedManagerEntry] = []


class ExceptionRecord(msgspec.Struct, kw_only=True):
    """``exception.json``: an uncaught exception, frames innermost first."""

    pid: int = 0
    type: str = ""
    message: str = ""
    thread: str = "MainThread"
    is_main_thread: bool = True
    time_ns: int = 0
    frames: tuple[Frame, ...] = ()


class ThreadErrorsRecord(msgspec.Struct, kw_only=True):
    """``thread-errors.json``: exceptions that ended threads of a rank, the oldest one first."""

    errors: list[ExceptionRecord] = []


@dataclass(frozen=True, kw_only=True)
class LeavingRecord:
    """``leaving.json``: the call by which a rank ended itself, frames innermost first.

    ``call`` is ``sys.exit``, ``quit``, ``os._exit``, ``os.kill`` or the like; ``status`` is the
    exit code, a message, or the number of the signal.
    """

    pid: int = 0
    call: str = ""
    status: str = ""
    is_main_thread: bool = True
    time_ns: int = 0
    frames: tuple[Frame, ...] = ()
