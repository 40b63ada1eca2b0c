"""A signal that somebody sent to the whole job, and who it was."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass

from whystuck.collect.claims import read_command
from whystuck.evidence.records import IncidentRecord

SI_KERNEL = 0x80


@dataclass
class OutsideSignal:
    """The first signal of those that end a job; ``number`` is 0 before one came."""

    number: int = 0
    time_ns: int = 0
    sender_pid: int = 0
    sender: str = ""
    is_typed: bool = False
    is_interrupt: bool = False

    def note(self, info: signal.struct_siginfo) -> None:
        """Take a signal; the sender often lives for a moment only, and is looked at now."""
        self.is_interrupt = self.is_interrupt or info.si_signo == signal.SIGINT
        if self.number:
            return
        self.number, self.time_ns = info.si_signo, time.time_ns()
        self.is_typed = info.si_code == SI_KERNEL
        if not self.is_typed:
            self.sender_pid = max(0, info.si_pid)
            self.sender = read_command(self.sender_pid) if self.sender_pid else ""

    def describe(self) -> str:
        """Return a sentence for ``fault.log``."""
        name = signal.Signals(self.number).name
        if self.is_typed:
            return f"{name} was typed at the terminal."
        who = f"process {self.sender_pid}" if self.sender_pid else "an unknown process"
        return f"{name} came from {who}{f' ({self.sender})' if self.sender else ''}."

    def fill(self, record: IncidentRecord) -> None:
        """Put it into the record of an incident."""
        record.outside_signal, record.outside_ns = self.number, self.time_ns
        record.sender_pid, record.sender = self.sender_pid, self.sender
        record.is_typed = self.is_typed
