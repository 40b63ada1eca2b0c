"""What the caller of ``whystuck run`` gave it, and each start of the command gets."""

from __future__ import annotations

from dataclasses import dataclass

from whystuck.launch import descriptors
from whystuck.launch.command import Handlers
from whystuck.launch.output.streams import OutputKinds, look_at_outputs


@dataclass(frozen=True)
class Caller:
    """Descriptors, kinds of outputs, and what is done about signals."""

    closed: list[int]
    inherited: list[int]
    kinds: OutputKinds
    handlers: Handlers

    @classmethod
    def look(cls) -> Caller:
        """Take stock, before anything is opened and any signal is blocked."""
        closed = descriptors.reserve_standard()
        inherited = descriptors.list_inherited()
        return cls(closed, inherited, look_at_outputs(), Handlers.of_this_process())
