"""Says in the log which processes have come, in words that scripts for dynolog look for."""

from __future__ import annotations

import logging
from collections import OrderedDict

from whystuck.agent.interfaces import FabricHandler, FabricPoll
from whystuck.evidence.agent import ProcessEntry

_LOGGER = logging.getLogger(__name__)
_MAX_KNOWN = 4096


class TellRegistrations:
    """Hands each poll on, and logs the first one of each process."""

    def __init__(self, handler: FabricHandler) -> None:
        self._handler = handler
        self._known: OrderedDict[tuple[bytes | str, int], None] = OrderedDict()

    def answer(self, poll: FabricPoll) -> str:
        """Return what the handler answers."""
        key = (poll.address, poll.pid)
        if key not in self._known:
            self._known[key] = None
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
            pids = ", ".join(map(str, poll.told_pids))
            _LOGGER.info("Registered process (%s) for job %d.", pids, poll.job_number)
        return self._handler.answer(poll)

    def tell_end(self, entry: ProcessEntry) -> None:
        """Log that a process has ended, or is silent for so long that it is given up."""
        pids = ", ".join(map(str, entry.told_pids))
        _LOGGER.info("Stopped tracking process (%s) from job %d.", pids, entry.job_number)
