"""How often rules may take traces, also over restarts of the agent."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from whystuck.agent.triggers.rules import TriggerRule
from whystuck.evidence.decoding import decode_json
from whystuck.guarded.folders import folder_at, put_file, read_file

STATE_FILE: Final = "triggers.json"
"""In the folder of the agent."""
_DAY_NS: Final = 86_400 * 10**9
_MAX_BYTES: Final = 1 << 20
_MAX_TIMES: Final = 1000
_MAX_RULES: Final = 256


class _State(msgspec.Struct, kw_only=True):
    """When each rule took traces, in nanoseconds since the epoch."""

    schema_version: int = 1
    taken_ns: dict[str, list[int]] = {}


class RateLimits:
    """Remembers when rules took traces, in a file; one that is lost or broken is begun anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._taken_ns = _read(path)

    def refusal(self, rule: TriggerRule, now_ns: int) -> str:
        """Return why a rule may not take a trace now, and "" when it may."""
        # A clock that was set back must not switch a rule off for ever.
        taken = [t for t in self._taken_ns.get(rule.name, []) if t <= now_ns < t + _DAY_NS]
        if len(taken) >= rule.max_per_day:
            return f"it has taken {len(taken)} traces in 24 hours, and may take {rule.max_per_day}"
        if taken and now_ns - max(taken) < rule.cooldown_s * 1e9:
            ago_s = (now_ns - max(taken)) / 1e9
            return f"it took one {ago_s:.0f} s ago, and waits {rule.cooldown_s:.0f} s"
        return ""

    def note(self, rule: TriggerRule, now_ns: int) -> None:
        """Remember that a rule takes a trace now."""
        taken = [t for t in self._taken_ns.get(rule.name, []) if t <= now_ns < t + _DAY_NS]
        self._taken_ns[rule.name] = [*taken, now_ns][-_MAX_TIMES:]
        self._write()

    def _write(self) -> None:
        """Write the file whole; on a full disk it is remembered until the agent ends."""
        data = msgspec.json.encode(_State(taken_ns=self._taken_ns))
        # Others may make files in the folder of an agent that serves them, too.
        with suppress(OSError), folder_at(self._path.parent, uid=os.geteuid()) as folder:
            put_file(folder, self._path.name, data)


def _read(path: Path) -> dict[str, list[int]]:
    try:
        uid = os.geteuid()
        with folder_at(path.parent, uid=uid) as folder:
            data, _ = read_file(folder, path.name, _MAX_BYTES, uid=uid)
        state = decode_json(data, _State)
    except (OSError, ValueError):
        return {}
    return {name: taken[-_MAX_TIMES:] for name, taken in list(state.taken_ns.items())[:_MAX_RULES]}
