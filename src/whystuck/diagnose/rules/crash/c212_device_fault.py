"""C212 device-fault."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.logs.log_rule import LogRule


class DeviceFault(LogRule):
    """Device code of a rank touched memory that is not its own, or failed an assertion.

    ## What it means

    A kernel read or wrote outside its tensors, used an address that does not fit its type, or
    checked an index and found it out of range. The device context is lost with it; peers then only
    see that the rank is gone.

    ## How it is found

    `CUDA error: an illegal memory access`, `device-side assert triggered` and the like in the log
    or the traceback of a rank, the assertion that the kernel printed, and the driver's Xid 13 or
    31 for its process. The line of the traceback is where a later call met the error, unless
    launches were synchronous (`details.synchronous`).

    ## False alarms

    A broken device can look the same; then the driver's other Xids tell, and C208 is reported.

    ## What to do

    Run that rank's batch alone with `CUDA_LAUNCH_BLOCKING=1`, or under `compute-sanitizer`: the
    traceback then shows the call. Indices out of range (tokens, labels) are the usual reason.
    """

    code = codes.DEVICE_FAULT
    name = "device-fault"
    end_class = "computation-error"
    remedies: ClassVar[tuple[str, ...]] = (
        "find the call: run again with `CUDA_LAUNCH_BLOCKING=1`",
        "check indices: tokens below the size of the table, labels below the number of classes",
        "find the access: `compute-sanitizer --tool memcheck python train.py`",
    )
