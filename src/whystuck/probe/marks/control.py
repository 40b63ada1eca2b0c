"""Turning marks on and off, kind by kind: the file is made once, the rest comes and goes."""

from __future__ import annotations

import os
import sys

from .. import files, progress
from ..breaker import HOOKS
from ..calling.interrupts import let_through
from . import devices, foreign, forward, mirror, patches, phases, ring, user
from .compiler import hide_functions
from .ring import BACKWARD, CHECKPOINT, DATALOADER, FORWARD, OPTIMIZER, STEP, USER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..identity import Identity

FILE_KIND = "marks"
# What each key of the switch marks.
KEYS = {
    "step": (STEP, OPTIMIZER, USER),
    "forward": (FORWARD, BACKWARD),
    "checkpoint": (CHECKPOINT,),
    "dataloader": (DATALOADER,),
}
# Of CPU, for a mark: its begin, its end, and the functions around them.
_COST_NS = 3000


class Marking:
    """The marks of this process."""

    def __init__(self, identity: Identity) -> None:
        """Make the file; raises OSError."""
        self._identity = identity
        self._owner = os.getpid()
        self._kinds = 0
        self._counted = 0
        self._ring = ring.MarkRing(files.path_of(FILE_KIND))
        self._phases = phases.Phases(self._ring)
        self._phases.mirror = mirror.make_mirror(self._ring)
        self._ranges = foreign.Ranges(self._phases)
        self._patches = patches.Patches(self._phases, self._ranges.list_patches())
        self._forward = forward.Forward(self._phases)
        self._devices = devices.DeviceTimes(self._ring)
        user.DEVICES[:] = [self._devices]
        self.describe()
        for module in (devices, foreign, forward, mirror, patches, phases, ring, user):
            hide_functions(module)
        os.register_at_fork(after_in_child=self._phases.close)

    def switch(self, key: str, generation: int, *, on: bool) -> None:
        """Mark the kinds of a key from now on, or no longer."""
        bits = sum(1 << kind for kind in KEYS[key])
        kinds = self._kinds | bits if on else self._kinds & ~bits
        if kinds == self._kinds or os.getpid() != self._owner:
            return
        changed, self._kinds = self._kinds ^ kinds, kinds
        if changed >> USER & 1:
            self._ranges.forget()
        self._phases.switch(kinds, generation)
        self._patches.follow()
        if changed >> FORWARD & 1:
            if on:
                self._forward.start()
            else:
                self._forward.stop()
        progress.COUNTS.marks = self if kinds else None
        user.PHASES[:] = [self._phases] if kinds else []

    def optimizer_begins(self, optimizer: Any) -> None:
        """Mark the step of an optimizer; these three never raise."""
        try:
            self._phases.begin_optimizer(type(optimizer).__name__)
        except Exception as error:  # the job goes on
            let_through(error)
            return

    def optimizer_ends(self) -> None:
        """Mark its end."""
        try:
            self._phases.end_optimizer()
        except Exception as error:  # as above
            let_through(error)
            return

    def step_ends(self) -> None:
        """Mark the step that has just been counted."""
        try:
            self._phases.end_step()
            self._forward.step_ended()
        except Exception as error:  # as above
            let_through(error)
            return

    def beat(self) -> None:
        """Note the clocks, and what marks have cost; called once a second by the probe's thread."""
        if os.getpid() == self._owner:
            newest = self._ring.newest
            HOOKS.count(newest - self._counted, _COST_NS)
            self._counted = newest
            self._forward.look()
            self._devices.tend()
            self._ring.put_totals()
            self._ring.beat(progress.COUNTS.optimizer_steps)

    def close(self) -> None:
        """Note all once more; the process is on its way out."""
        if os.getpid() == self._owner:
            self._devices.stop()
            self.beat()

    def describe(self) -> None:
        """Write whose marks they are, as it is known now."""
        if os.getpid() != self._owner:
            return
        self._ring.describe(
            {
                "rank": self._identity.rank,
                "world_size": self._identity.world_size,
                "host": os.uname().nodename,
                "pid": self._owner,
                "python": sys.version.split()[0],
                "torch": str(sys.modules["torch"].__version__),
            }
        )
