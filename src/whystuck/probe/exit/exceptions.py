"""Uncaught exceptions: written down, and held until the supervisor has looked around."""

from __future__ import annotations

import os
import sys

from .. import files, wire
from ..identity import Identity

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from types import TracebackType

_HOLD_S = 8.0
_SLACK_S = 30.0
HOLD_ENV = "WHYSTUCK_HOLD_S"


def read_hold_s() -> float:
    """Return how long the supervisor may keep us: it answers before that, or is gone."""
    try:
        return max(_HOLD_S, float(os.environ[HOLD_ENV]) + _SLACK_S)
    except (KeyError, ValueError):
        return _HOLD_S


class ExceptionKeeper:
    """A link in the chain of ``sys.excepthook`` that records, holds, and passes on."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._owner = os.getpid()
        self._seen: int | None = None

    def watch(self) -> None:
        """Put us first in the chain, again when somebody else has taken the place."""
        current = sys.excepthook
        if getattr(current, "_whystuck", False):
            return

        def hook(kind: type, value: BaseException, trace: TracebackType | None) -> None:
            try:
                self._keep(value, trace)
            except BaseException:  # a second Ctrl-C, too: the job's own report of its error goes on
                current(kind, value, trace)
                return
            current(kind, value, trace)

        hook._whystuck = True  # type: ignore[attr-defined]
        sys.excepthook = hook

    def _keep(self, value: BaseException, trace: TracebackType | None) -> None:
        if self._seen == id(value) or isinstance(value, KeyboardInterrupt):
            return
        if os.getpid() != self._owner or files.why_off():
            return  # a forked child is no rank
        from .description import describe

        self._seen = id(value)
        record = describe(value, trace)
        files.write_json(files.path_of("exception"), record)
        # The supervisor answers when it has looked at all ranks: the launcher ends the others
        # within a tenth of a second after this one is gone.
        wire.tell("exception", self._identity.rank, reply_timeout_s=read_hold_s())
