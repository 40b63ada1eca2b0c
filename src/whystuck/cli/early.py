"""Keeps a hang-up from ending an agent that does not listen to signals yet.

To be imported before all that takes long. It is lost then: the settings are still to be read. A
handler, unlike an ignored signal, is not passed on to commands that are started.
"""

from __future__ import annotations

import os
import signal
import sys

_COLORS = ("auto", "always", "never")


def _is_agent(argv: list[str]) -> bool:
    """Whether this process becomes an agent, as far as its words tell."""
    program, *words = argv or [""]
    name = program.rpartition("/")[2]
    commands = [one for one in words if not one.startswith("-") and one not in _COLORS]
    # On its way to `__main__`, Python has `-m` in its place.
    is_ours = name in {"whystuck", "__main__.py", "-m"} and commands[:1] == ["agent"]
    return is_ours or name == "dynolog"


def _lose(*_: object) -> None:
    """Do nothing."""


# On a terminal that is closed it shall end; under nohup it is ignored, and stays so.
if _is_agent(sys.argv) and not os.isatty(2) and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
    signal.signal(signal.SIGHUP, _lose)
