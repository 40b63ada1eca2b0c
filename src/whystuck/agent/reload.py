"""What a reload changes, and what has to wait for a restart."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from whystuck.agent.config import AgentConfig
from whystuck.agent.config_file import changed_settings, needs_restart


class ReloadPlan(msgspec.Struct, kw_only=True, frozen=True):
    """The settings that count from now on, and the names of those that changed."""

    config: AgentConfig
    applied: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()

    def touches(self, sections: Iterable[str]) -> bool:
        """Whether a setting in one of these tables changed."""
        prefixes = tuple(f"{one}." for one in sections)
        return any(key in sections or key.startswith(prefixes) for key in self.applied)

    def in_words(self) -> str:
        """Return one line for the log."""
        told = f"reloaded, changed: {', '.join(self.applied)}" if self.applied else "reloaded"
        if self.waiting:
            told += f"; only a restart changes: {', '.join(self.waiting)}"
        if not self.applied and not self.waiting:
            told += ", nothing has changed"
        return told


def plan_reload(now: AgentConfig, wanted: AgentConfig) -> ReloadPlan:
    """Return what becomes of ``wanted``: settings that need a restart stay as they are."""
    changed = changed_settings(now, wanted)
    waiting = tuple(one for one in changed if needs_restart(one))
    agent = msgspec.structs.replace(wanted.agent, folder=now.agent.folder, node=now.agent.node)
    return ReloadPlan(
        config=msgspec.structs.replace(wanted, agent=agent, fabric=now.fabric, traces=now.traces),
        applied=tuple(one for one in changed if one not in waiting),
        waiting=waiting,
    )
