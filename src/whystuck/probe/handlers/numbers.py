"""The signals by which whystuck asks a rank for something."""

from __future__ import annotations

import signal


def stacks_signal() -> int:
    """Return the real-time signal that makes faulthandler write all stacks."""
    return int(signal.SIGRTMIN) + 5


def dump_signal() -> int:
    """Return the real-time signal that makes the probe dump the flight recorder."""
    return int(signal.SIGRTMIN) + 6
