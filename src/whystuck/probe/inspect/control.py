"""Turning inspection on and off, by the texts of the switch."""

from __future__ import annotations

import os
import sys
import time
from collections import deque

from .. import files, progress
from ..heap import HEAP
from .deepspeed import DeepSpeedWatch
from .guard import GuardWatch
from .inspector import Inspector
from .lines import Lines
from .scaler import ScalerWatch
from .spec import Spec, SpecError, parse_spec
from .weights import WeightWatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Union

    from ..oplog.log import OpLog
    from ..switch import Setting

    Part = Union[WeightWatch, ScalerWatch, GuardWatch, DeepSpeedWatch]

FILE_KIND = "inspect"
# Of the lines; a reader of another version reads none of them.
VERSION = 1
OFF = "off"


class Inspection:
    """What is inspected in this process; ``log`` returns its op log while that is on."""

    def __init__(self, log: Callable[[], OpLog | None], rank: Callable[[], int]) -> None:
        self._find_log = log
        self._rank = rank
        self._owner = os.getpid()
        self._lines: Lines | None = None
        self._parts: list[Part] = []
        self._deepspeed: DeepSpeedWatch | None = None
        self._inspector: Inspector | None = None
        self._log: OpLog | None = None
        self._text = OFF
        self._waiting: deque[Callable[[], bool]] = deque()

    def switch(self, setting: Setting) -> str:
        """Inspect what a setting says; return one sentence when that cannot be, else nothing."""
        if os.getpid() != self._owner or setting.value == self._text:
            return ""
        spec = None
        if setting.value != OFF:
            try:
                spec = parse_spec(setting.value)
            except SpecError as error:
                return str(error)
            if spec.needs_ops and self._find_log() is None:
                return "ops are inspected only while they are recorded (comm=on)"
        self._stop()
        self._text = setting.value
        if spec is not None:
            self._start(spec, setting)
        return ""

    def look(self) -> None:
        """Follow what the job has imported meanwhile; called every second."""
        if os.getpid() == self._owner and self._deepspeed is not None:
            self._deepspeed.look()

    def close(self) -> None:
        """The process is on its way out."""
        if os.getpid() != self._owner:
            return
        if self._inspector is not None:
            self._inspector.close()
        while self._waiting and self._waiting[0]():
            self._waiting.popleft()
        for part in self._parts:
            part.close()

    def _start(self, spec: Spec, setting: Setting) -> None:
        if self._lines is None:
            self._lines = Lines(files.path_of(FILE_KIND))
        lines = self._lines
        self._note("start", setting)
        self._log = self._find_log()
        if spec.needs_ops and self._log is not None:
            self._inspector = Inspector(self._log, spec, lines)
            self._log.inspect(self._inspector)
        if spec.weights is not None:
            self._parts.append(WeightWatch(spec.weights, lines, self._defer))
        if spec.counts_updates:
            scalers = ScalerWatch(lines, self._defer, self._newest)
            guards = GuardWatch(lines, self._defer, self._newest, scalers)
            self._deepspeed = DeepSpeedWatch(lines, self._defer, scalers)
            self._parts += [scalers, guards, self._deepspeed]
        for part in self._parts:
            part.install()

    def _stop(self) -> None:
        if self._log is not None:
            self._log.inspect(None)
        if self._inspector is not None:
            self._inspector.close()
        self._inspector = self._deepspeed = None
        for part in self._parts:
            part.remove()
        self._parts = []
        HEAP.note_use()

    def _note(self, kind: str, setting: Setting) -> None:
        assert self._lines is not None  # noqa: S101 - the caller has made it
        self._lines.put(
            {
                "kind": kind,
                "version": VERSION,
                "rank": self._rank(),
                "pid": os.getpid(),
                "spec": setting.value,
                "step": progress.COUNTS.optimizer_steps,
                "generation": setting.generation,
                "time_ns": time.time_ns(),
                "torch": str(sys.modules["torch"].__version__),
            }
        )

    def _defer(self, later: Callable[[], bool]) -> None:
        """Read figures that are on their way by the op log's thread, or at the next one."""
        if self._log is not None:
            self._log.completion.defer(later)
            return
        self._waiting.append(later)
        while self._waiting and self._waiting[0]():
            self._waiting.popleft()

    def _newest(self) -> int:
        return 0 if self._inspector is None else self._inspector.newest
