"""C206 device-out-of-memory."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.logs.log_rule import LogRule


class DeviceOutOfMemory(LogRule):
    """A device had no memory left for what a rank asked of it.

    ## What it means

    The allocator of torch, a library or NCCL asked the device for more memory than was free. On
    one rank, a longer batch, an uneven share of the model or a foreign process is behind it; on all
    ranks, the batch or the model is too large.

    ## How it is found

    The error of the allocator in the traceback or the log, with its sizes. Where at least three
    quarters of the ranks print it, no rank is named. Where the message tells of another
    process, of no rank, that holds as much of the device as was asked for, the summary says so:
    the rank is named for its device. A size that no device could have (more than an exabyte) is
    what an aborted communicator leaves behind, and never a cause. `details` holds `tried`,
    `capacity` and `free` as the message gives them, and `process` and `held` of the other
    process.

    ## False alarms

    An error that the program caught, when it left no other trace.

    ## What to do

    Make the batch smaller or its length bounded, recompute activations, shard more; look for other
    processes on the device with `nvidia-smi`.
    """

    code = codes.DEVICE_OUT_OF_MEMORY
    name = "device-out-of-memory"
    end_class = "computation-error"
    remedies: ClassVar[tuple[str, ...]] = (
        "make the batch smaller, bound its length, or recompute activations (`checkpoint`)",
        (
            "if much is reserved but not allocated, set "
            "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`"
        ),
        "see who uses the device: `nvidia-smi --query-compute-apps=pid,used_memory --format=csv`",
    )
