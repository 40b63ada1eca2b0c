"""The parts of the agent: what each needs to start, what a reload means to it, how it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whystuck.agent.agent_folder import FolderClaim
from whystuck.agent.config import AgentConfig, Launch, name_of_node
from whystuck.agent.poll_batcher import NoteLater
from whystuck.agent.processes.registrations import TellRegistrations
from whystuck.evidence.agent import ProcessEntry

if TYPE_CHECKING:
    from whystuck.agent.ondemand.tracer import OnDemandTracer
    from whystuck.agent.processes.registry import ProcessRegistry

_LOGGER = logging.getLogger(__name__)


class Part:
    """Something that starts and stops by itself, and may fail alone.

    ``asked_by`` are the settings that ask for exactly this part: given as options, its failure is
    that of the agent. A change in one of ``sections`` starts it anew, ``is_always_reloaded`` also
    when nothing has changed. Parts that take requests are stopped first.
    """

    name = ""
    asked_by: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()
    is_always_reloaded = False
    takes_requests = False

    def __init__(self, core: Core) -> None:
        self.core = core

    async def start(self, config: AgentConfig) -> None:
        """Begin; raises WhystuckError with what the user can do, or OSError."""
        raise NotImplementedError

    async def stop(self) -> None:
        """End, also where the start failed half-way."""
        raise NotImplementedError

    def check(self, config: AgentConfig) -> None:
        """Raise WhystuckError when it could not start with these settings."""

    def is_lost(self) -> bool:
        """Whether others no longer reach it, so that it has to start anew."""
        return False

    def abandon(self) -> None:
        """Leave nothing behind that hurts jobs, without waiting for anything."""

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Return how often what happened, by a short name of the part; called in any thread."""
        return {}

    def problems(self) -> Mapping[str, str]:
        """Return what is wrong now, by what it is wrong with."""
        return {}


class Core:
    """What the parts share: the processes of the node, and the traces of them."""

    def __init__(
        self, config: AgentConfig, launch: Launch, claim: FolderClaim, tell: Callable[[], object]
    ) -> None:
        """Make it; ``tell`` writes the record of the agent anew."""
        from whystuck.agent.ondemand.tracer import OnDemandTracer
        from whystuck.agent.processes.registry import ProcessRegistry

        self.launch = launch
        self.claim = claim
        self.folder: Path = claim.folder
        self.tell = tell
        self.node = name_of_node(config)
        self.port = 0
        self.metrics_port = 0
        self.pace = 1.0
        self.on_pace: Callable[[float], None] = _ignore_pace
        self.status: Callable[[], Mapping[str, Any]] = dict
        self.count: Callable[[], Mapping[tuple[str, str], float]] = dict
        self.missing: dict[str, str] = {}
        self.registry: ProcessRegistry = ProcessRegistry(node=self.node)
        raw = config.traces.raw_folder
        self.tracer: OnDemandTracer = OnDemandTracer(
            self.registry,
            output=config.traces.output,
            raw_root=Path(raw) if raw else None,
            folder=self.folder,
        )
        self._registrations = TellRegistrations(self.tracer)
        self.handler = NoteLater(self._registrations, lambda: self.tracer.is_idle)
        self.registry.before_read = self.handler.flush
        self.registry.on_end = self._process_ended

    def _process_ended(self, entry: ProcessEntry) -> None:
        self.tracer.process_ended(entry.pid)
        self._registrations.tell_end(entry)

    def set_pace(self, factor: float) -> None:
        """Read figures this many times less often than asked."""
        self.pace = factor
        self.on_pace(factor)

    async def finish(self, timeout_s: float) -> None:
        """Wait until the traces that are being taken now have ended, and give up those to come."""
        await self.tracer.finish(timeout_s)

    def close(self) -> None:
        """Let go of what is left."""
        self.registry.on_end = None
        for close in (self.tracer.close, self.registry.close):
            try:
                close()
            except Exception:
                _LOGGER.exception("the agent could not end in good order")


def _ignore_pace(factor: float) -> None:
    """Nothing is read."""
