"""What logs say went wrong: one module makes the cases of one class, and the story ranks them."""

from __future__ import annotations

from whystuck.diagnose.cases.busy import make_busy
from whystuck.diagnose.cases.config import make_config_errors
from whystuck.diagnose.cases.device import make_device_fault
from whystuck.diagnose.cases.devices import make_unbound
from whystuck.diagnose.cases.ends import make_crashes, make_killed
from whystuck.diagnose.cases.exceptions import make_exceptions
from whystuck.diagnose.cases.hardware import make_hardware
from whystuck.diagnose.cases.memory import make_device_memory, make_host_memory
from whystuck.diagnose.cases.mismatch import make_mismatches
from whystuck.diagnose.cases.missing import make_missing
from whystuck.diagnose.cases.parted import make_parted
from whystuck.diagnose.cases.reducer import make_reducer_errors
from whystuck.diagnose.cases.rendezvous import make_rendezvous
from whystuck.diagnose.cases.stopped import make_stopped
from whystuck.diagnose.cases.waits import make_lost, make_timeouts
from whystuck.diagnose.story import Maker

MAKERS: tuple[Maker, ...] = (
    make_stopped,
    make_host_memory,
    make_device_memory,
    make_hardware,
    make_device_fault,
    make_config_errors,
    make_unbound,
    make_reducer_errors,
    make_mismatches,
    make_missing,
    make_exceptions,
    make_killed,
    make_crashes,
    make_rendezvous,
    make_busy,
    make_parted,
    make_timeouts,
    make_lost,
)
