"""One request for traces, of which each chosen process makes one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from whystuck.agent.ondemand.config_text import RawConfig
from whystuck.evidence.agent import TraceRequest

if TYPE_CHECKING:
    from whystuck.agent.ondemand.runs import Run

_NS_A_MS = 1_000_000
_NS_A_SECOND = 1_000_000_000


@dataclass
class Job:
    """One request, and the trace of each process that it chose.

    ``raw`` is the configuration of a client, None for a request of our own. ``start_ms`` and
    ``start_iteration`` are chosen when the first process asks for work, and hold for all.
    """

    request: TraceRequest
    raw: RawConfig | None = None
    runs: list[Run] = field(default_factory=list)
    requested_ns: int = 0
    is_chosen: bool = False
    start_ms: int = 0
    start_iteration: int = -1
    roundup: int = 1
    num_tries: int = 1

    @property
    def iterations(self) -> int:
        """How many iterations are wanted; 0 for a time."""
        return self.raw.iterations if self.raw else self.request.iterations

    @property
    def stop_ns(self) -> int:
        """When what has not begun is given up: the time to begin at does not count."""
        ahead_ns = max(0, self.start_time_ms * _NS_A_MS - self.requested_ns)
        return self.requested_ns + ahead_ns + int(self.request.stop_s * _NS_A_SECOND)

    @property
    def start_time_ms(self) -> int:
        """When it is to begin, wall-clock; 0 as soon as it can."""
        return self.raw.start_time_ms if self.raw else self.request.start_time_ms

    @property
    def stacks(self) -> bool:
        """Whether Python stacks are wanted."""
        return self.raw.has_stacks if self.raw else self.request.stacks

    @property
    def is_ended(self) -> bool:
        """Whether nothing more comes of it."""
        return all(run.is_ended for run in self.runs)
