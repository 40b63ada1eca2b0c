"""What ``whystuck run`` was asked to do, and whether that can be started at all."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from whystuck.evidence.errors import WhystuckError
from whystuck.launch.environment.nccl import NcclOptions
from whystuck.launch.environment.recorder import RecorderSettings
from whystuck.launch.stalls.stall import StallLimit

if TYPE_CHECKING:
    from whystuck.launch.restarts.ending import RootCause

    # It imports much that a job which is well does not need.
    from whystuck.pipeline import Signature

CANNOT_RUN_EXIT = 126
NOT_FOUND_EXIT = 127
# Ops that the ring of a rank holds, of 96 bytes each.
DEFAULT_OPS_BUFFER = 16384
MAX_OPS_BUFFER = 1_000_000
MAX_SPEC_CHARS = 16384
DEFAULT_HOLD_S = 3600.0
MIN_TRACED_LINES, MAX_TRACED_LINES = 10, 10_000


class UnfitError(WhystuckError):
    """The checks say that this node is not fit for the job; ``cause`` is the first thing wrong."""

    exit_code = 120

    def __init__(self, message: str, *, hint: str, cause: RootCause) -> None:
        super().__init__(message, hint=hint)
        self.cause = cause


class OnStall(StrEnum):
    """What to do when the job is stuck: tell, end it, or keep it for a look and end it then."""

    REPORT = "report"
    KILL = "kill"
    HOLD = "hold"


class CommandError(WhystuckError):
    """The command could not be started; the exit code is the shell's."""

    def __init__(self, message: str, *, hint: str, exit_code: int) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


@dataclass(frozen=True)
class SwitchOptions:
    """What the ranks record from their start, and what may change that later.

    ``ops_buffer`` is the number of ops that each rank keeps, ``trace_lines`` that of the executed
    lines of each thread, 0 for none. ``mirrors`` are the tools that are shown marks.
    """

    comm: str = "on"
    marks: str = "off"
    inspect: str = "off"
    file: Path | None = None
    ops_buffer: int = DEFAULT_OPS_BUFFER
    trace_lines: int = 0
    mirrors: tuple[str, ...] = ()


@dataclass(frozen=True)
class BootCheck:
    """What checks of the node found before the start: ``notes`` are lines for ``fault.log``.

    ``record`` is ``checks.json``, empty where nothing was checked.
    """

    notes: tuple[str, ...] = ()
    record: bytes = b""


@dataclass(frozen=True)
class RunOptions:
    """What ``whystuck run`` was asked to do; ``restarts`` is how often it had to start again."""

    command: list[str]
    evidence: Path
    limit: StallLimit = field(default_factory=StallLimit)
    on_stall: OnStall = OnStall.REPORT
    hold_s: float | None = None
    evidence_url: str = ""
    recorder: RecorderSettings = field(default_factory=RecorderSettings)
    switch: SwitchOptions = field(default_factory=SwitchOptions)
    nccl: NcclOptions = field(default_factory=NcclOptions)
    signatures: tuple[Signature, ...] = ()
    agent: bool = True
    gpu_coredump: bool = False
    boot_check: BootCheck = field(default_factory=BootCheck)
    restarts: int = 0

    @property
    def crash_hold_s(self) -> float | None:
        """For how long the scene of a crash is kept; None for not at all."""
        return None if self.on_stall is OnStall.HOLD or not self.hold_s else self.hold_s

    @property
    def holds_stalls(self) -> bool:
        """Whether a job that is stuck is kept for a look, and ended then."""
        return self.on_stall is OnStall.HOLD or (
            self.on_stall is OnStall.REPORT and bool(self.hold_s)
        )

    @property
    def stall_hold_s(self) -> float:
        """For how long it is kept."""
        return DEFAULT_HOLD_S if self.hold_s is None else self.hold_s

    @property
    def longest_hold_s(self) -> float:
        """For how long a scene is kept at most; 0 for not at all."""
        return max(self.crash_hold_s or 0.0, self.stall_hold_s if self.holds_stalls else 0.0)


def check_command(name: str) -> None:
    """Raise CommandError with the shell's 127 or 126 for what cannot be run."""
    if shutil.which(name) is not None:
        return
    if os.sep in name and Path(name).exists():
        raise CommandError(
            f"`{name}` cannot be run: it is not an executable file",
            hint=f"run a script with its interpreter, e.g. `python {name}`",
            exit_code=CANNOT_RUN_EXIT,
        )
    raise CommandError(
        f"the command `{name}` is not found",
        hint="check the spelling, and that its environment is active",
        exit_code=NOT_FOUND_EXIT,
    )
