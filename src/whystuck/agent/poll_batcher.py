"""Notes polls in batches while nobody is to be told anything: each alone costs some cold caches."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from whystuck.agent.interfaces import FabricHandler, FabricPoll

_MAX_WAITING = 1024
_MAX_KNOWN = 4096


class NoteLater:
    """Takes polls that say what the ones before them said, and hands them on when it is time.

    ``is_idle`` tells whether every answer is empty. Whoever reads what polls have told calls
    `flush` first, and whoever changes that reads before.
    """

    def __init__(self, handler: FabricHandler, is_idle: Callable[[], bool]) -> None:
        self._handler = handler
        self._is_idle = is_idle
        self._last: dict[bytes | str, FabricPoll] = {}
        self._waiting: list[tuple[FabricPoll, int]] = []

    def answer(self, poll: FabricPoll) -> str:
        """Return what the handler answers."""
        self.flush()
        if len(self._last) >= _MAX_KNOWN:
            self._last.clear()
        self._last[poll.address] = poll
        return self._handler.answer(poll)

    def repeat(self, address: bytes | str, time_ns: int) -> bool:
        """Take a poll like the last one from an address; False when it must be seen at once."""
        last = self._last.get(address)
        if last is None or not self._is_idle() or len(self._waiting) >= _MAX_WAITING:
            return False
        self._waiting.append((last, time_ns))
        return True

    def flush(self) -> None:
        """Hand on what waits."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for last, time_ns in waiting:
                self._handler.answer(msgspec.structs.replace(last, time_ns=time_ns))
