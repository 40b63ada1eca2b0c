"""Pipes and terminals between the job and the relay."""

from __future__ import annotations

import os
import pty
import termios
from dataclasses import dataclass


@dataclass(frozen=True)
class OutputKinds:
    """What our own outputs are, as they were when we were started.

    ``identities`` name the files behind stdout and stderr as the probe does, ``are_terminals`` says
    which are terminals. Where both are one file, one channel for both keeps the order of lines.
    """

    identities: tuple[str, str]
    are_terminals: tuple[bool, bool]

    @property
    def is_joined(self) -> bool:
        """Whether stdout and stderr are the same file."""
        return self.identities[0] == self.identities[1]

    def target_of(self, stream: int) -> int:
        """Return the output (1 or 2) where what is written to ``stream`` (1 or 2) goes."""
        return 1 if self.is_joined else stream

    def open_channel(self, stream: int) -> tuple[int, int]:
        """Open (read end, write end) for a rank: a terminal where ours is one, else a pipe."""
        return _open_terminal() if self.are_terminals[stream - 1] else os.pipe()


def look_at_outputs() -> OutputKinds:
    """Return what our stdout and stderr are."""
    return OutputKinds((identify(1), identify(2)), (os.isatty(1), os.isatty(2)))


def identify(fd: int) -> str:
    """Name the file behind a descriptor as the probe does, to see whether they share it."""
    status = os.fstat(fd)
    return f"{status.st_dev}:{status.st_ino}:{status.st_rdev}"


def _open_terminal() -> tuple[int, int]:
    master, slave = pty.openpty()
    attributes = termios.tcgetattr(slave)
    # The real terminal turns \n into \r\n; doing it twice would change what arrives.
    attributes[1] &= ~termios.OPOST
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    return master, slave
