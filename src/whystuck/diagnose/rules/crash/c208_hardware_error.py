"""C208 hardware-error."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.logs.log_rule import LogRule


class HardwareError(LogRule):
    """A device, a link, a memory module or a whole host failed under the job.

    ## What it means

    The kernel, the fabric manager or the scheduler says that hardware broke, and the failure of the
    ranks fits it. The error messages of the ranks are only what they felt of it.

    ## How it is found

    Lines of kernel logs (Xid, SXid, AER, machine checks, links, disks), of the fabric manager and
    of schedulers. Their device is led to a rank by its bus id, as NCCL prints it, or by the process
    that the line names. A line counts when its ranks felt it: they print device or
    communication errors, end by a signal, or are silent while their peers wait. The driver's lines
    of another day, of before the last boot, or of a host whose ranks are well, are passed
    over, and so are errors after the job was told to end. A switch of the fabric comes before
    the devices that lose it. Two hosts that failed within what their clocks can tell are both
    only possible. Without such lines, NVIDIA's driver may tell at a stall that it no longer reaches
    a device, or of an Xid or an uncorrected memory error while it is looked at. The log that the
    controller of a host keeps (`ipmitool sel list`) counts as that of its kernel. A device for
    which Megatron or a test got another result than elsewhere computes wrong. That mpirun lost its
    daemon on a host is `possible` only, as the network may have failed as well. `details` holds
    `kind`, `xid`, `device` and the `action` that is advised.

    ## False alarms

    A wrong program can cause some Xids (13, 31, 43, 45): those are C212, or follow from others.

    ## What to do

    Take the host out of service before the job starts again, and hand the line to who repairs it.
    """

    code = codes.HARDWARE_ERROR
    name = "hardware-error"
    end_class = "hardware-error"
    needs = ("logs", "exceptions", "exits", "devices")
    remedies: ClassVar[tuple[str, ...]] = (
        "start the job again without that host, and give the cited line to who repairs it",
    )
