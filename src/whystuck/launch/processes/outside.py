"""A signal that somebody sent to the whole job, and who it was."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass

from whystuck.collect.processes.claims import read_command
from whystuck.evidence.records import SignalRecord

SI_KERNEL = 0x80
_OUTLIVED_NS = 60_000_000_000


@dataclass
class OutsideSignal:
    """The first signal of those that end a job; ``number`` is 0 before one came.

    A job that still moves a minute later handles it, and has outlived it: a checkpoint on SIGTERM.

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
    is_outlived: bool = False

    @property
    def is_pending(self) -> bool:
        """Whether the job may be about to end by it."""
        return bool(self.number) and not self.is_outlived

    def note_progress(self, now_ns: int) -> None:
        """Take notice that the job moves."""
        self.is_outlived = bool(self.number) and now_ns - self.time_ns > _OUTLIVED_NS

    def note(self, message: Mapping[str, int]) -> None:
        """Take a signal; the sender often lives for a moment only, and is looked at now.

        ``message`` has its ``number``, ``code`` (why it was sent), ``sender_pid`` and ``time_ns``.
        """
        is_interrupt = message["number"] == signal.SIGINT
        if self.is_pending:
            self.is_interrupt = self.is_interrupt or is_interrupt
            return
        self.is_interrupt, self.is_outlived = is_interrupt, False
        self.number, self.time_ns = message["number"], message["time_ns"]
        self.is_typed = message["code"] == SI_KERNEL
        self.sender_pid, self.sender = 0, ""
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
