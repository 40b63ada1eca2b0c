"""Notes polls in batches while nobody is to be told anything: each alone costs some cold caches."""

from __future__ import annotations

from collections.abc import Callable

from whystuck.agent.roles import FabricHandler, FabricPoll

_MAX_WAITING = 1024
_MAX_KNOWN = 4096


class NoteLater:
    """Answers polls that say what they said before, and hands them on in order, when it is time.

    ``is_idle`` tells whether every answer is empty; whoever reads what polls have told calls
    `flush` first, and whoever changes that reads before.
    """

    def __init__(self, handler: FabricHandler, is_idle: Callable[[], bool]) -> None:
        self._handler = handler
        self._is_idle = is_idle
        self._said: dict[bytes | str, tuple[int, int]] = {}
        self._waiting: list[FabricPoll] = []

    def answer(self, poll: FabricPoll) -> str:
        """Return what the handler answers, or would."""
        says = (poll.pid, poll.wants)
        is_known = self._said.get(poll.address) == says and poll.can_answer
        if is_known and self._is_idle() and len(self._waiting) < _MAX_WAITING:
            self._waiting.append(poll)
            return ""
        self.flush()
        if len(self._said) >= _MAX_KNOWN:
            self._said.clear()
        self._said[poll.address] = says
        return self._handler.answer(poll)

    def flush(self) -> None:
        """Hand on what waits."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for poll in waiting:
                self._handler.answer(poll)
