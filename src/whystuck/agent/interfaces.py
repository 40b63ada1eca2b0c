"""What the parts of the agent are to each other; each part knows only these."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from whystuck.evidence.agent import ProcessEntry, TraceProgress, TraceRequest
from whystuck.evidence.nodes.metrics import MetricFamily, Sample

RpcCall = Callable[[Mapping[str, Any]], Awaitable[bytes | None]]
"""Takes the JSON object of a request; returns the reply's bytes, or None to close without one."""


class FabricPoll(msgspec.Struct, kw_only=True, frozen=True):
    """One ``req`` datagram of a Kineto client.

    ``address`` is its socket, ``pid`` and ``uid`` are what the kernel says of the sender (0 and -1
    when it does not), ``told_pids`` what it says of itself and its ancestors. ``wants`` is Kineto's
    bit mask: without bit 2 a trace is active in it now. Where ``can_answer`` is false its socket
    was removed: it asks, and can be told nothing for the rest of its life.
    """

    address: bytes | str
    pid: int
    uid: int
    told_pids: tuple[int, ...]
    job_number: int
    wants: int
    time_ns: int
    can_answer: bool = True


class FabricHandler(Protocol):
    """Answers polls; must not block, and never raise."""

    def answer(self, poll: FabricPoll) -> str:
        """Return the text of a Kineto configuration, or "" when there is nothing to do."""


class Asker(Protocol):
    """What is needed of a process each time it asks; its `ProcessEntry` takes longer to make.

    ``steps`` is how many it has made at the wall-clock time ``steps_ns``, -1 when unknown.
    """

    @property
    def pid(self) -> int:
        """Its pid on this host."""

    @property
    def steps(self) -> int:
        """Optimizer steps."""

    @property
    def steps_ns(self) -> int:
        """When it had made them, 0 when unknown."""


class Registry(Protocol):
    """The processes of this node that talk to us."""

    def note(self, poll: FabricPoll) -> Asker:
        """Take a poll, and return the process it came from."""

    def find(self, pid: int) -> ProcessEntry | None:
        """Return the process with this pid of the host."""

    def match(self, request: TraceRequest) -> list[ProcessEntry]:
        """Return the processes that a request chooses, ranks first, launchers and helpers last."""

    def list_all(self) -> list[ProcessEntry]:
        """Return all that live."""


class Tracer(FabricHandler, Protocol):
    """Starts traces, and follows each until its file lies where it was wanted."""

    def start(self, request: TraceRequest) -> list[TraceProgress]:
        """Ask for a trace; what is refused or busy says so at once."""

    def start_raw(self, config: str, request: TraceRequest) -> list[TraceProgress]:
        """Ask for a trace with a configuration that a client of dynolog has written.

        What harms the process is taken out of ``config``. ``request.pids`` are the very processes
        wanted, none of them by an ancestor, and ``request.id`` is set. Raises UsageError for a text
        that Kineto could misread.
        """

    def cancel(self, request_id: str) -> list[TraceProgress]:
        """Give up what has not begun."""

    def progress(self, request_id: str) -> list[TraceProgress]:
        """Return how far it is in each process; raises KeyError for an id nobody gave."""

    async def wait(self, request_id: str, timeout_s: float) -> list[TraceProgress]:
        """Return when all have ended, or something changed after ``timeout_s`` at most."""


class Source(Protocol):
    """Reads figures. What cannot be read is left out, and said once in ``problem``."""

    name: str
    every_s: float

    @property
    def families(self) -> Sequence[MetricFamily]:
        """All that it may give."""

    @property
    def problem(self) -> str:
        """Why some or all of it is missing, in one sentence; empty when nothing is."""

    def collect(self) -> Iterable[Sample]:
        """Read now, in a few milliseconds; never raises."""


class Sink(Protocol):
    """Passes figures on; it must never hold up those who read them."""

    name: str

    def write(self, samples: Sequence[Sample]) -> None:
        """Take all samples of one round."""

    def close(self) -> None:
        """Pass on what is left, in a second at most."""
