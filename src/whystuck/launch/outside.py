"""A signal that somebody sent to the whole job, and who it was."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass

from whystuck.collect.claims import read_command
from whystuck.evidence.records import SignalRecord

SI_KERNEL = 0x80


@dataclass
class OutsideSignal:
    """The first signal of those that end a job; ``number`` is 0 before one came.

    ``idle_s`` is how long no rank had made progress when it came, and ``is_moving`` whether that
    is no longer than usual; None when no rank was watched.
    """

    number: int = 0
    time_ns: int = 0
    sender_pid: int = 0
    sender: str = ""
    is_typed: bool = False
    is_interrupt: bool = False
    idle_s: float | None = None
    is_moving: bool | None = None

    def note(self, message: Mapping[str, int]) -> None:
        """Take a signal; the sender often lives for a moment only, and is looked at now.

        ``message`` has its ``number``, ``code`` (why it was sent), ``sender_pid`` and ``time_ns``.
        """
        self.is_interrupt = self.is_interrupt or message["number"] == signal.SIGINT
        if self.number:
            return
        self.number, self.time_ns = message["number"], message["time_ns"]
        self.is_typed = message["code"] == SI_KERNEL
        if not self.is_typed:
            self.sender_pid = max(0, message["sender_pid"])
            self.sender = read_command(self.sender_pid) if self.sender_pid else ""

    def describe(self) -> str:
        """Return a sentence for ``fault.log``."""
        name = signal.Signals(self.number).name
        if self.is_typed:
            return f"{name} was typed at the terminal."
        who = f"process {self.sender_pid}" if self.sender_pid else "an unknown process"
        return f"{name} came from {who}{f' ({self.sender})' if self.sender else ''}."

    def as_record(self) -> SignalRecord:
        """Return what records keep of it."""
        return SignalRecord(
            outside_signal=self.number,
            outside_ns=self.time_ns,
            sender_pid=self.sender_pid,
            sender=self.sender,
            is_typed=self.is_typed,
            idle_s=self.idle_s,
            is_moving=self.is_moving,
        )


def copy_signal(source: SignalRecord, target: SignalRecord) -> None:
    """Copy the signal from one record to another."""
    for name in SignalRecord.__struct_fields__:
        setattr(target, name, getattr(source, name))
