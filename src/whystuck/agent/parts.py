"""The parts of the agent: what each needs to start, what a reload means to it, how it ends."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Protocol

from whystuck.agent.config import AgentConfig, Launch


class Part(Protocol):
    """Something that starts and stops by itself, and may fail alone.

    ``asked_by`` are the settings that ask for exactly this part: given as options, its failure is
    that of the agent. A change in one of ``sections`` starts it anew. Parts that take requests are
    stopped first; those whose files are ``is_in_folder`` start anew when the folder was lost.
    """

    name: str
    asked_by: tuple[str, ...]
    sections: tuple[str, ...]
    takes_requests: bool
    is_in_folder: bool

    async def start(self, config: AgentConfig) -> None:
        """Begin; raises WhystuckError with what the user can do."""

    async def stop(self) -> None:
        """End, also where the start failed half-way."""

    def check(self, config: AgentConfig) -> None:
        """Raise WhystuckError when it could not start with these settings."""

    def abandon(self) -> None:
        """Leave nothing behind that hurts jobs, without waiting for anything."""


class Core:
    """What the parts share."""

    def __init__(self, config: AgentConfig, launch: Launch, folder: Path) -> None:
        self.launch = launch
        self.folder = folder
        self.node = config.agent.node or socket.gethostname()
        self.port = 0
        self.metrics_port = 0
        self.pace = 1.0

    def set_pace(self, factor: float) -> None:
        """Read figures this many times less often than asked."""
        self.pace = factor

    async def finish(self, timeout_s: float) -> None:
        """Wait until the traces that are being taken now have ended, and give up those to come."""

    def close(self) -> None:
        """Let go of what is left."""


def make_core(config: AgentConfig, launch: Launch, folder: Path) -> Core:
    """Return what the parts share."""
    return Core(config, launch, folder)


def make_parts(core: Core) -> list[Part]:  # noqa: ARG001 - they come one by one
    """Return all parts, in the order of their start."""
    return []
